"""Visits of pages, whole: nginx on loopback, by `http` and by a handler of ten lines, beside the bare client.

`./run bench visits [CASE …] [FLAGS]` measures the cases of bench/visits/cases.py, all unless some are named, each on a
server of its own with one worker process; and before each the bare loop of the client, which is the limit. It needs
Debian's nginx, which `./run servers` installs. `--help` lists the flags.
"""

from bench.visits.scenario import main

__all__ = ["main"]
