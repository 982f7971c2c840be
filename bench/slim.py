"""What slimming the visibility table buys: starts per second and bytes per sleeping message, with and without."""

from typing import Any

from bench.harness import database_bytes, fill, fresh_server, new_prefix, read_count, report

COUNT = 5000


async def main(arguments: list[str]) -> None:
    """Start `COUNT` (or as many as the argument says) messages on a slimmed and on a full server."""
    count = read_count(arguments, COUNT)
    rows: list[dict[str, Any]] = []
    for name in ("slimmed", "full", "slimmed", "full"):
        async with fresh_server(slim=name == "slimmed") as server:
            before = database_bytes(server)
            rate = await fill(await server.connect(), "dormice", new_prefix(), count, 3600)
            rows.append({"server": name, "starts/s": rate, "bytes/message": (database_bytes(server) - before) / count})
    report("slim", rows, note=f"{count:,} messages started, none run yet; bytes = growth of the database and its log")
