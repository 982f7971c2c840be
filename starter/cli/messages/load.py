"""The command `load`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.settings import Settings
from starter.cli.arguments import Commands
from starter.cli.exit_codes import FINE, INTERRUPTED, PARTLY, WRONG
from starter.files.duplicates import DUPLICATE_RULES
from starter.files.progress import Progress, open_progress
from starter.screen import echo_err, plural, print_json

if TYPE_CHECKING:
    from starter.files.load import Load, LoadCounts
    from starter.files.rows import RowSource
    from starter.starting.bulk import BulkStarter

SETTLE_SECONDS = 15.0
"""Time limit for starts under way after Ctrl-C: one call to the server takes at most 10 s."""

DUPLICATES = {
    "newest": "the one with the newest scheduled_at counts, of several such, or without any, the last",
    "first": "the first counts",
}


ROWS_HELP = """\
JSONL holds one envelope a line. In CSV and Parquet, columns named like fields of the envelope (id, kind, lane,
scheduled_at, tolerance_seconds, priority, tenant, correlation_id, idempotency_key) fill those; a column payload holds
JSON or text, and without one all further columns make up the payload. Empty cells and nulls are absent. Cells of CSV
have no types: in the payload, what JSON reads as a number, true, false or null is that, and all else is text, also
numbers with leading zeroes, a plus sign, or more digits than a float keeps. An id may be a whole number, not a float.

Of several rows with one kind and id one counts: the one with the newest scheduled_at, of several such, or without any,
the last; the file is read once before for that, which takes 8 bytes of memory a row. Of a pipe, which can be read but
once, the first row counts, as with --duplicates first; that takes 100 bytes a row.

Refused rows are written as JSON, one a line: line or row_number, field, reason, and the row as it was. An interrupted
load is run again: it goes on where it was, because nothing is started twice for as long as the server remembers it."""


def add_load(commands: Commands) -> None:
    """Add `load`."""
    parser = commands.add(
        "load", run_load, "start a message for every row of a file; running it again starts nothing twice"
    )
    parser.epilog = ROWS_HELP
    add = parser.add_argument
    add("file", metavar="FILE", help="JSONL, CSV or Parquet; - reads standard input")
    add("--format", choices=("jsonl", "csv", "parquet"), help="by the file's suffix when left out; jsonl for -")
    add("--kind", help="kind of rows that name none")
    add("--lane", choices=list(LANES), help="lane of rows that name none; else their handler's own")
    add("--restart-finished", action="store_true", help="start messages anew that have finished")
    add("--rejects", metavar="FILE", type=Path, help="where refused rows go; FILE.rejects.jsonl when left out")
    add("--duplicates", choices=DUPLICATE_RULES, help="which row counts; newest, or of a pipe first, when left out")
    add("--dry-run", action="store_true", help="check all rows and write the refused ones, start nothing")


def run_load(args: argparse.Namespace, settings: Settings) -> int:
    """Start the rows of a file."""
    from activities.registry import declared_packs, envelope_rules, load_registry
    from starter.files.load import Load, LoadOptions
    from starter.files.rows import RowSource

    registry = load_registry(settings)
    rules = envelope_rules(settings, registry)
    with RowSource(args.file, args.format) as source:
        rejects = args.rejects or Path(f"{source.name}.rejects.jsonl")
        _check_rejects(rejects, Path(args.file))
        if args.duplicates == "newest" and not source.is_repeatable:
            raise InvalidSetting(
                f"--duplicates: newest takes a second reading, and {source.name} can be read but once; leave it out"
            )
        options = LoadOptions(
            rules=rules,
            packs=declared_packs(registry),
            rejects=rejects,
            kind=args.kind,
            lane=args.lane,
            duplicates=args.duplicates,
            failures_max=settings.in_flight,
        )
        return asyncio.run(_Run(args, settings, source, Load(source, options), rejects).run())


def _check_rejects(rejects: Path, file: Path) -> None:
    if rejects.resolve() == file.resolve():
        raise InvalidSetting(f"--rejects: {rejects} is the file to load; give another path")
    if rejects.is_dir() or not os.access(rejects.parent, os.W_OK):
        raise InvalidSetting(f"--rejects: {rejects} can't be written; give a path in a folder that can")


class _Run:
    """One load on the command line, with its progress, interruption and summary."""

    def __init__(
        self, args: argparse.Namespace, settings: Settings, source: "RowSource", load: "Load", rejects: Path
    ) -> None:
        self._args = args
        self._settings = settings
        self._source = source
        self._load = load
        self._rejects = rejects
        self._is_interrupted = False

    async def run(self) -> int:
        starter = None if self._args.dry_run else await self._open_starter()
        loading = asyncio.create_task(self._load.run(starter))
        with self._interruptible(loading), open_progress(self._source.total) as progress:
            async with _showing(progress, self._load.summary):
                await asyncio.wait({loading})
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await loading
        finally:
            self._report(starter)
        return self._judge()

    async def _open_starter(self) -> "BulkStarter":
        from starter.cli.connection import open_client
        from starter.starting.bulk import BulkStarter

        client = await open_client(self._settings, is_starting=True)
        return BulkStarter(
            client, self._settings, restarts_finished=self._args.restart_finished, encodings=self._load.options.packs
        )

    @contextlib.contextmanager
    def _interruptible(self, loading: "asyncio.Task[None]") -> Generator[None]:
        """Let starts under way finish after the first Ctrl-C, and end the load at the second one."""
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            if self._is_interrupted:
                loading.cancel()
                return
            self._is_interrupted = True
            self._load.stop()
            loop.call_later(SETTLE_SECONDS, loading.cancel)
            echo_err("interrupted: waiting for starts that are under way; once more leaves at once")

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _report(self, starter: "BulkStarter | None") -> None:
        summary = self._load.summary
        if self._args.json:
            print_json(
                {
                    "file": self._source.name,
                    "rows": summary.rows,
                    "started": summary.started,
                    "already_running": summary.already_running,
                    "rejected": summary.rejected,
                    "failed": summary.failed,
                    "duplicates": summary.duplicates,
                    "valid": summary.valid if starter is None else None,
                    "throttled": 0 if starter is None else starter.caller.throttled,
                    "seconds": round(summary.seconds, 3),
                    "rejects": str(self._rejects) if summary.rejected else None,
                    "is_interrupted": self._is_interrupted,
                }
            )
        echo_err(f"{plural(summary.rows, 'row')}: {self._describe(starter)} in {summary.seconds:.1f} s")
        if summary.rejected:
            echo_err(f"rejected rows and reasons: {self._rejects}")
        if summary.duplicates:
            echo_err(f"duplicates are rows with the kind and id of another one; {DUPLICATES[self._load.rule]}")
        if self._load.flaw is not None:
            echo_err(f"dormice: {self._load.flaw}")
        elif self._load.is_stopped and not self._is_interrupted:
            echo_err("dormice: the server stayed away; run the same command again, nothing is started twice")

    def _describe(self, starter: "BulkStarter | None") -> str:
        summary = self._load.summary
        if starter is None:
            counts = f"{summary.valid:,} fine, {summary.rejected:,} rejected{_describe_duplicates(summary)}"
            return f"{counts}, nothing started (dry run)"
        return _describe_counts(summary)

    def _judge(self) -> int:
        if self._is_interrupted:
            return INTERRUPTED
        if self._load.flaw is not None:
            return WRONG
        return FINE if self._load.summary.is_clean else PARTLY


def _describe_counts(summary: "LoadCounts") -> str:
    return (
        f"{summary.started:,} started, {summary.already_running:,} already running, {summary.rejected:,} rejected, "
        f"{summary.failed:,} failed{_describe_duplicates(summary)}"
    )


def _describe_duplicates(summary: "LoadCounts") -> str:
    return f", {plural(summary.duplicates, 'duplicate')}" if summary.duplicates else ""


@contextlib.asynccontextmanager
async def _showing(progress: Progress, summary: "LoadCounts") -> AsyncGenerator[None]:
    """Show regularly how far the load is."""

    async def show() -> Any:
        while True:
            await asyncio.sleep(progress.every_seconds)
            seconds = time.monotonic() - summary.phase_began_at
            text = "looking for duplicates" if summary.is_searching else _describe_counts(summary)
            progress.show(summary.done_position, summary.done, seconds, text)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
