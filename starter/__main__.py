"""`python -m starter` is the command line too, for processes that start each other."""

from starter.cli.main import main

if __name__ == "__main__":
    main()
