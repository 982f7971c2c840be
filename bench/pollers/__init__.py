"""What polling costs: a table polled by hand, procrastinate and APScheduler 3, beside packs.

`./run bench pollers` runs three parts, or those that are named: `lag` (fresh messages behind a backlog), `bloat` (the
store after many cycles), `herd` (idle pollers, then all for the same messages). Needs the dependency group `peers`.
"""

from bench.pollers.scenario import main

__all__ = ["main"]
