"""The demonstration's Spark job: `dormice spark prepare` and `dormice spark start` in one process, with one Java."""

import sys

from starter.cli.main import run


def main(rows: str, manifest: str) -> int:
    """Make a manifest of a file of envelopes, and start all its messages; gives the exit code."""
    return run(["spark", "prepare", rows, manifest]) or run(["spark", "start", manifest])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
