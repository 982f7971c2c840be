"""Handlers whose I/O has a long tail: calls that hang, last, or are many at once; `peers`: others with the same I/O.

`./run bench slow [ROW …] [FLAGS]` measures the rows `hanging`, `long`, `tail`, `solo`, `thousands` and `visits`, all
unless some are named; `./run bench slow peers [CONTESTANT …] [FLAGS]` the row `tail`, or another one with `--row`, with
Kafka + Redis, a table and procrastinate.
Handlers sleep; with `--http` they make requests to a site of their own. `--help` lists the flags.
"""

from bench.slow.scenario import main

__all__ = ["main"]
