"""The Spark start: runs `dormice spark start` on a prepared manifest during the run, again after each kill."""

import asyncio
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chaos.ledger import Ledger, What
from chaos.load.groups import NUMBER_OF, SPARK
from chaos.load.workload import make_envelope
from chaos.system.processes import ProgramPart
from shared.errors import RetryLater
from shared.exit import FINE

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options: a process of some minutes ends before better compilation pays off."""

TASKS = 6
SHARE_OF_RUN = 0.3
"""Share of the run over which the starts are spread, so that kills hit a working driver."""

PAUSE_SECONDS = 2.0


class SparkStart:
    """Prepares a manifest, and runs the start until it succeeds."""

    def __init__(self, folder: Path, environment: Mapping[str, str], count: int, minutes: float) -> None:
        self._folder = folder
        (folder / "tmp").mkdir()
        self._count = count
        rate = count / (minutes * 60 * SHARE_OF_RUN)
        self._environment = {
            **environment,
            "JDK_JAVA_OPTIONS": f"{SHORT_LIVED} -Djava.io.tmpdir={folder / 'tmp'}",
            "TMPDIR": str(folder / "tmp"),
            "DORMICE_STARTS_PER_SECOND": f"{rate:.2f}",
        }
        command = ("-m", "starter", "spark", "start", str(self._manifest), "--tasks", str(TASKS))
        self.part = self._make("spark", command)
        self.part.is_wanted = False  # `run` restarts it, not the injector
        self.runs = 0

    @property
    def _manifest(self) -> Path:
        return self._folder / "manifest"

    def _make(self, name: str, command: tuple[str, ...]) -> ProgramPart:
        return ProgramPart(name, command, self._environment, self._folder / "spark.log")

    async def prepare(self) -> None:
        """Write the manifest; raises RetryLater when Spark fails."""
        rows = self._folder / "messages.jsonl"
        envelopes = (make_envelope(SPARK, number) for number in range(self._count))
        lines = [json.dumps(envelope.model_dump(mode="json", exclude_defaults=True)) for envelope in envelopes]
        rows.write_text("\n".join(lines) + "\n")

        part = self._make("spark prepare", ("-m", "starter", "spark", "prepare", str(rows), str(self._manifest)))
        try:
            await part.start()
            if code := await part.wait():
                raise RetryLater(f"'spark prepare' ended with {code}; read {self._folder / 'spark.log'}")
        finally:
            await part.end()

    async def run(self, ledger: Ledger, notify: Callable[[str], None]) -> None:
        """Start all messages, and repeat the start whenever it fails."""
        for number in range(self._count):
            ledger.append(What.START_SENT, NUMBER_OF[SPARK.kind], number)
        while True:
            async with self.part.lock:
                await self.part.start()
            self.runs += 1
            if await self.part.wait() == FINE:
                notify(f"spark: all is started, in {self.runs} runs")
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def note_receipts(self, ledger: Ledger) -> None:
        """Write an acknowledgement to the ledger for each message with a receipt."""
        dataset: Any = importlib.import_module("pyarrow.dataset")
        receipts = self._manifest / "receipts"
        files = [str(path) for path in receipts.glob("*.parquet")] if receipts.exists() else []
        if not files:
            return
        for row in dataset.dataset(files).to_table(columns=["id", "outcome"]).to_pylist():
            if row["outcome"] in ("started", "already running"):
                ledger.append(What.START_ACKNOWLEDGED, NUMBER_OF[SPARK.kind], int(row["id"]))
