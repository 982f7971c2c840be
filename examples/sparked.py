"""The demonstration's way through Spark: a file of rows becomes a manifest, whose messages are then started."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from shared.errors import RetryLater
from shared.messages.envelope import Envelope
from starter.local.supervised_process import start_supervised, stop_supervised

END_SECONDS = 5.0

# a process of some seconds ends before better compilation pays off
SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

OWN_FILE = """\
Start messages from a file of your own, beside a worker of your own:
  dormice spark prepare feeds.csv my-feeds --kind http --id-from /url
  dormice spark start my-feeds
"""


async def start_with_spark(
    folder: str,
    environment: Mapping[str, str],
    envelopes: Sequence[Envelope],
    console: Console,
    stopping: asyncio.Event,
) -> bool:
    """Write messages as rows, then prepare and start them with Spark; gives False if stopped before the end.

    Raises RetryLater with Spark's last line of output when it fails.
    """
    rows, log = Path(folder, "messages.jsonl"), Path(folder, "spark.log")
    lines = [envelope.model_dump_json(exclude_defaults=True) for envelope in envelopes]
    await asyncio.to_thread(rows.write_text, "\n".join(lines), "utf-8")
    console.print("dormice spark prepare messages.jsonl manifest && dormice spark start manifest …")
    with log.open("wb") as output:  # noqa: ASYNC230 — once, while nothing else runs
        command = [sys.executable, "-m", "examples.spark_job", str(rows), str(Path(folder, "manifest"))]
        process = await start_supervised(command, output.fileno(), {**SHORT_LIVED, **environment})
    waiting = [asyncio.create_task(process.wait()), asyncio.create_task(stopping.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if process.returncode is None:
            return False
    finally:
        await stop_supervised(process, END_SECONDS)
        for task in waiting:
            task.cancel()
    if process.returncode:
        said = (await asyncio.to_thread(log.read_text, errors="replace")).strip()
        raise RetryLater(f"Spark has ended with {process.returncode}: {said.rpartition(chr(10))[2][:300]}")
    return True
