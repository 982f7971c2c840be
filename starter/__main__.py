"""Run the command line as `python -m starter`, for processes that start each other."""

from starter.cli.main import main

if __name__ == "__main__":
    main()
