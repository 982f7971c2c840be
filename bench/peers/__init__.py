"""The same work done by others: Kafka with Redis by hand, APScheduler, procrastinate, DBOS, and dormice beside them.

`./run bench peers` measures cycles a second, by turns. `./run bench peers kills` kills workers and servers, then tells
what is gone or lives twice. Needs the dependency group `peers` and Debian's `redis-server`.
"""

from bench.peers.scenario import main

__all__ = ["main"]
