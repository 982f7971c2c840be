"""The command `load`."""

import asyncio
import contextlib
import functools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import Choice, argument, option

from shared.errors import InvalidSetting
from shared.exit import FINE, INTERRUPTED, PARTLY, WRONG
from shared.messages.json_value import encode_json
from shared.messages.timespan import format_moment
from shared.settings import Settings
from starter.cli.arguments import FILE, Arguments, read_row_mapping, row_mapping_options
from starter.cli.connection import open_client, open_control
from starter.cli.interruption import call_at_signals
from starter.cli.program import program
from starter.files.duplicates import DUPLICATE_RULES
from starter.files.progress import Progress, open_progress
from starter.local.terminal import echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from shared.messages.envelope import Envelope
    from starter.files.load import Load, LoadCounts
    from starter.files.rows import RowSource
    from starter.insight.reconcile import FileReconciliation
    from starter.starting.bulk import BulkStarter

SETTLE_SECONDS = 15.0
"""Time limit for starts under way after Ctrl-C: one call to the server takes at most 10 s."""

DUPLICATES = {
    "newest": "the one with the newest scheduled_at counts, of several such, or without any, the last",
    "first": "the first counts",
}

KINDS_SHOWN = 5
"""Kinds whose rows are told one by one."""

COUNTS = ("rows", "started", "revised", "already_running", "rejected", "failed", "duplicates")

ROWS_HELP = """\
JSONL holds one envelope a line; a file of JSON may also be a list of them, or hold one after another. In CSV and
Parquet, columns named like fields of the envelope (id, kind, lane, scheduled_at, expires_at, tolerance_seconds,
priority, tenant, correlation_id, idempotency_key) fill those; a column payload holds JSON or text, and without one all
further columns make up the payload. Empty cells and nulls are absent.

Cells of CSV have no types: in the payload, what JSON reads as a number, true, false or null is that, and all else is
text, also numbers with leading zeroes, a plus sign, or more digits than a float keeps. An id may be a whole number,
not a float.

Of several rows with one kind and id one counts: the one with the newest scheduled_at, of several such, or without any,
the last; the file is read once before for that, which takes 8 bytes of memory a row. Of a pipe, which can be read but
once, the first row counts, as with --duplicates first; that takes 100 bytes a row.

With --id-from a row is any JSON object, or the columns of a table, and PART is a JSON pointer like /user/id.

Refused rows are written as JSON, one a line: line or row_number, field, reason, and the row as it was. An interrupted
load is run again: it goes on where it was, because nothing is started twice for as long as the server remembers it.

With --upsert a row also gives its payload, lane, priority and due time to its message if that is alive, and starts it
anew if it has finished; once for its idempotency_key, and without one once for this row of this file, until the file
changes. So an interrupted load is run again here, too.

--reconcile starts nothing: it says where the messages of the file are. Rows whose message the server does not know are
written to FILE.missing.jsonl, in the form of refused rows; and the names of messages of the same kinds that are alive
and not in the file to FILE.others.txt, which 'dormice stop -' reads, for example. It takes 200 bytes of memory for each
message of these kinds. The server forgets a finished message after the namespace's retention."""

PLACES = ("alive", "finished", "stopped")


@program.command("load", epilog=ROWS_HELP)
@argument("file", type=click.Path(), help="JSON, CSV or Parquet, also as .gz or .zst; - reads standard input")
@option("--format", type=Choice(("jsonl", "csv", "parquet")), help="by the file's suffix when left out; jsonl for -")
@option("--restart-finished", is_flag=True, help="start messages anew that have finished")
@option("--upsert", is_flag=True, help="change messages that are alive, and start anew those that have finished")
@option("--rejects", **FILE, help="where refused rows go; FILE.rejects.jsonl when left out")
@option(
    "--duplicates", type=Choice(DUPLICATE_RULES), help="which row counts; newest, or of a pipe first, when left out"
)
@option(
    "--dry-run",
    is_flag=True,
    help="check all rows and write the refused ones, show the first three messages, start nothing",
)
@option("--reconcile", is_flag=True, help="say where the messages of the file are, start nothing")
@row_mapping_options
def run(args: Arguments, settings: Settings) -> int:
    """Start a message for every row of a file; running it again starts nothing twice."""
    from activities.registry import declared_packs, envelope_rules, load_registry
    from starter.files.load import Load, LoadOptions
    from starter.files.rows import RowSource

    if args.upsert and args.restart_finished:
        raise InvalidSetting("--restart-finished: --upsert does so anyway; leave one of them out")
    if args.reconcile and (args.dry_run or args.upsert or args.restart_finished):
        raise InvalidSetting("--reconcile: starts and changes nothing; leave the others out")
    registry = load_registry(settings)
    rules = envelope_rules(settings, registry)
    mapping = read_row_mapping(args)
    mapping.options.check_kind(rules)
    with RowSource(args.file, args.format, mapping) as source:
        rejects = args.rejects or Path(f"{source.name}.rejects.jsonl")
        _check_rejects(rejects, Path(args.file))
        if args.duplicates == "newest" and not source.is_repeatable:
            why = f"newest takes a second reading, and {source.name} can be read but once"
            raise InvalidSetting(f"--duplicates: {why}; leave it out")
        options = LoadOptions(
            rules=rules,
            packs=declared_packs(registry),
            rejects=rejects,
            duplicates=args.duplicates,
            failures_max=settings.in_flight,
            upserts=args.upsert,
        )
        return asyncio.run(_LoadRun(args, settings, source, Load(source, options)).run())


def _check_rejects(rejects: Path, file: Path) -> None:
    if rejects.resolve() == file.resolve():
        raise InvalidSetting(f"--rejects: {rejects} is the file to load; give another path")
    if rejects.is_dir() or not os.access(rejects.parent, os.W_OK):
        raise InvalidSetting(f"--rejects: {rejects} can't be written; give a path in a folder that can")


@dataclass
class _LoadRun:
    """One load on the command line, with its progress, interruption and summary."""

    args: Arguments
    settings: Settings
    source: "RowSource"
    load: "Load"
    is_interrupted: bool = False
    found: "FileReconciliation | None" = field(default=None, init=False)

    async def run(self) -> int:
        starter = None
        if self.args.reconcile:
            from starter.insight.reconcile import FileReconciliation

            self.found = FileReconciliation(await open_control(self.settings), self.source)
        elif not self.args.dry_run:
            starter = await self._open_starter()
        return await self._run(starter)

    async def _open_starter(self) -> "BulkStarter":
        from starter.starting.bulk import BulkStarter

        options = self.load.options
        return BulkStarter(
            await open_client(self.settings, is_starting=True),
            self.settings,
            restarts_finished=self.args.restart_finished,
            encodings=options.packs,
            revises=options.upserts,
        )

    async def _run(self, starter: "BulkStarter | None") -> int:
        loading = asyncio.create_task(self.load.run(starter, self.found and self.found.add))
        call_at_signals(functools.partial(self._interrupt, loading), loading.cancel)

        with open_progress(self.source.total) as progress:
            showing = asyncio.create_task(_show_regularly(progress, self.load.summary))
            await asyncio.wait({loading})
            showing.cancel()

        try:
            with contextlib.suppress(asyncio.CancelledError):
                await loading
        finally:
            if self.found is not None:
                is_read = loading.done() and not loading.cancelled() and loading.exception() is None
                self.found.close(is_complete=is_read and not self.load.is_stopped and self.load.flaw is None)
            self._report(starter)

        if self.is_interrupted:
            return INTERRUPTED
        if self.load.flaw is not None:
            return WRONG

        is_all_there = self.found is None or self.found.is_complete
        return FINE if self.load.summary.is_clean and is_all_there else PARTLY

    def _interrupt(self, loading: "asyncio.Task[None]") -> None:
        """Let starts under way finish."""
        self.is_interrupted = True
        self.load.stop()
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, loading.cancel)
        echo_err("interrupted: waiting for starts that are under way; once more leaves at once")

    def _report(self, starter: "BulkStarter | None") -> None:
        load = self.load
        summary = self.load.summary
        if self.args.json:
            print_json(self._to_document(starter))
        elif load.examples:
            print_table(("MESSAGE", "LANE", "DUE", "PAYLOAD"), map(_show_example, load.examples))

        if self.found is None:
            counts = _describe(summary, is_dry_run=starter is None)
        else:
            counts = self._describe_places(self.found)
        echo_err(f"{plural(summary.rows, 'row')}: {counts} in {summary.seconds:.1f} s")

        if summary.rejected:
            echo_err(f"rejected rows and reasons: {load.options.rejects}")
        if summary.duplicates:
            echo_err(f"duplicates are rows with the kind and id of another one; {DUPLICATES[load.rule]}")
        if self.found is None and (taken := self._describe_rows()):
            echo_err(f"taken: {taken}")
        if self.source.is_end_open:
            echo_err(f"the last line of {self.source.name} has no line end; see that the file was not cut off")
        if load.flaw is not None:
            echo_err(f"dormice: {load.flaw}")
        elif load.is_stopped and not self.is_interrupted:
            echo_err("dormice: the server stayed away; run the same command again, nothing is started twice")

    def _to_document(self, starter: "BulkStarter | None") -> dict[str, Any]:
        load = self.load
        summary = load.summary
        kinds = summary.kinds.most_common()
        document: dict[str, Any] = {
            "file": self.source.name,
            **{name: getattr(summary, name) for name in COUNTS},
            "valid": summary.valid if starter is None else None,
            "throttled": 0 if starter is None else starter.caller.throttled,
            "seconds": round(summary.seconds, 3),
            "rejects": str(load.options.rejects) if summary.rejected else None,
            "is_interrupted": self.is_interrupted,
            "header": list(self.source.header),
            "messages": [{"kind": kind, "lane": lane, "rows": rows} for (kind, lane), rows in kinds],
        }
        if self.args.dry_run:
            document["examples"] = [envelope.model_dump(exclude={"schema_version"}) for envelope in load.examples]
        if self.found is not None:
            document |= {name: getattr(self.found, name) for name in (*PLACES, "missing", "others")}

        return document

    def _describe_rows(self) -> str:
        """Say what the lines and rows of the input were taken for."""
        kinds = self.load.summary.kinds
        parts = ["line 1 as the header"] if self.source.header else []
        for (kind, lane), rows in kinds.most_common(KINDS_SHOWN):
            parts.append(f"{plural(rows, 'row')} as {kind} on lane {lane}")
        if len(kinds) > KINDS_SHOWN:
            parts.append(f"and {plural(len(kinds) - KINDS_SHOWN, 'more kind')}")
        return ", ".join(parts)

    def _describe_places(self, found: "FileReconciliation") -> str:
        """Print where the messages are, and give the verdict."""
        summary = self.load.summary
        places = [(place, getattr(found, place)) for place in PLACES]
        places += [("rejected", summary.rejected), ("duplicates", summary.duplicates), ("missing", found.missing)]
        if not self.args.json:
            print_table(("WHERE", "ROWS"), [(place, f"{count:,}") for place, count in places])

        for sentence in found.examples:
            echo_err(sentence)

        if found.missing:
            echo_err(f"missing rows and reasons: {found.missing_path}")
        if found.others:
            echo_err(f"alive and not in the file: {plural(found.others, 'message')}, named in {found.others_path}")
        return "complete, nothing is missing" if found.is_complete else "not complete"


def _show_example(envelope: "Envelope") -> tuple[str, ...]:
    due = "at once" if envelope.scheduled_at is None else format_moment(envelope.scheduled_at.timestamp())
    return f"{envelope.kind}:{envelope.id}", envelope.lane or "", due, encode_json(envelope.payload).decode()


def _describe(summary: "LoadCounts", *, is_dry_run: bool = False) -> str:
    duplicates = f", {plural(summary.duplicates, 'duplicate')}" if summary.duplicates else ""
    if is_dry_run:
        return f"{summary.valid:,} fine, {summary.rejected:,} rejected{duplicates}, nothing started (dry run)"
    revised = f", {summary.revised:,} revised" if summary.revised else ""
    started = f"{summary.started:,} started{revised}, {summary.already_running:,} already running"
    return f"{started}, {summary.rejected:,} rejected, {summary.failed:,} failed{duplicates}"


async def _show_regularly(progress: Progress, summary: "LoadCounts") -> None:
    while True:
        await asyncio.sleep(progress.every_seconds)
        seconds = time.monotonic() - summary.scan.began_at
        text = "looking for duplicates" if summary.scan.is_searching else _describe(summary)
        progress.show(summary.done_position, summary.done, seconds, text)
