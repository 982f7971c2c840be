"""The commands about dead letters, records that could not become messages: list, show, replay, drop."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import base64
import contextlib
import dataclasses
import functools
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidSetting
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import CommandParser, Commands
from starter.cli.exit_codes import FINE, PARTLY, WRONG
from starter.cli.interruption import run_interruptibly
from starter.screen import describe_moment, echo_err, plural, print_fields, print_json, print_table

if TYPE_CHECKING:
    from starter.records.dead_letter_topic import DeadLetterTopic, LetterSelection, LetterState
    from starter.records.dead_letters import DeadLetter

TOGETHER = 200
"""Letters held in memory at once while they are replayed or dropped."""
DONE = {"replay": "replayed", "drop": "dropped"}
_LETTER = re.compile(r"([0-9]{1,9})/([0-9]{1,18})")
_HEADER = ("LETTER", "STATE", "SOURCE", "FAILED", "CLASS", "KEY", "REASON")


def add_dead_letters(commands: Commands) -> None:
    """Add `dead-letters list`, `show`, `replay` and `drop`."""
    group = commands.add_group(
        "dead-letters", "records that could not become messages: list, show, replay or drop them"
    )
    parser = group.add("list", _run_list, "list the dead letters of a topic with their reasons")
    _add_topic(parser)
    parser.add_argument("--all", action="store_true", help="those that were replayed or dropped, and copies, as well")
    _add_filter(parser, limit=50)
    parser = group.add("show", _run_show, "show dead letters whole: key, value, headers and reason")
    _add_topic(parser)
    parser.add_argument("letters", metavar="PARTITION/OFFSET", nargs="+", type=_letter, help="as 'list' names them")
    for name, purpose in (
        ("replay", "send the original records to their topic again"),
        ("drop", "give dead letters up; they stay in their topic, marked"),
    ):
        parser = group.add(name, functools.partial(_run_verb, name), purpose)
        _add_topic(parser)
        parser.add_argument("letters", metavar="PARTITION/OFFSET", nargs="*", type=_letter, help="as 'list' names them")
        _add_filter(parser, limit=None)
        parser.add_argument("--dry-run", action="store_true", help="only list the letters that would be meant")
        parser.add_argument("--yes", action="store_true", help="do it; without this, a filter only counts")


def _add_topic(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the topic that the records came from")
    parser.add_argument("--servers", metavar="HOST:PORT", help="Kafka brokers, in place of the setting kafka_servers")


def _add_filter(parser: CommandParser, limit: int | None) -> None:
    group = parser.add_argument_group("filter")
    group.add_argument("--error-class", metavar="CLASS", help="dead for this reason, for example NotJson")
    group.add_argument("--key", help="records with this key")
    group.add_argument("--partition", metavar="N", type=_number, help="from this partition of TOPIC")
    group.add_argument("--from-offset", metavar="N", type=_number, help="from this offset of TOPIC on")
    group.add_argument("--to-offset", metavar="N", type=_number, help="up to this offset of TOPIC")
    group.add_argument("--since", metavar="MOMENT", type=arguments.moment, help="produced then or later")
    group.add_argument("--before", metavar="MOMENT", type=arguments.moment, help="produced before then")
    group.add_argument(
        "--limit", metavar="N", type=arguments.count, default=limit, help=f"most letters ({limit or 'all'})"
    )


def _letter(text: str) -> tuple[int, int]:
    if (found := _LETTER.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"is {text!r}; write PARTITION/OFFSET, for example 0/42")
    return int(found[1]), int(found[2])


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"is {text!r}; give a whole number, 0 or more")
    return int(text)


def _read_filter(args: argparse.Namespace) -> "LetterSelection":
    from starter.records.dead_letter_topic import LetterSelection

    return LetterSelection(
        error_class=args.error_class,
        key=None if args.key is None else args.key.encode(errors="surrogateescape"),
        partition=args.partition,
        from_offset=args.from_offset,
        to_offset=args.to_offset,
        since=args.since,
        before=args.before,
    )


@contextlib.asynccontextmanager
async def _open(args: argparse.Namespace, settings: Settings) -> "AsyncGenerator[DeadLetterTopic]":
    from shared.kafka.connection import check_broker, kafka_options
    from starter.records.dead_letter_topic import open_box

    # if the broker is away, one sentence reports that in place of the client's log lines
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if args.servers is not None:
        settings = dataclasses.replace(settings, kafka_servers=args.servers)
    options = kafka_options(settings)
    await check_broker(settings)
    async with open_box(options, args.topic) as box:
        yield box
        if box.foreign:
            echo_err(f"{plural(box.foreign, 'record')} of {box.topic} are no dead letters and were passed over")


def _run_list(args: argparse.Namespace, settings: Settings) -> int:
    run_interruptibly(_list(args, settings))
    return FINE


async def _list(args: argparse.Namespace, settings: Settings) -> None:
    found: list[tuple[DeadLetter, LetterState]] = []
    is_cut = False
    async with _open(args, settings) as box:
        async for letter, state in box.find(_read_filter(args), is_all=getattr(args, "all", False)):
            if is_cut := len(found) == args.limit:
                break
            found.append((letter, state))
    if args.json:
        for letter, state in found:
            print_json(_to_line(letter, state))
    elif found:
        print_table(_HEADER, (_to_cells(letter, state) for letter, state in found))
    if not found:
        echo_err("no dead letter matches")
    if is_cut:
        echo_err(f"the first {args.limit:,} of more; --limit N lists more")


def _run_show(args: argparse.Namespace, settings: Settings) -> int:
    return run_interruptibly(_show(args, settings))


async def _show(args: argparse.Namespace, settings: Settings) -> int:
    from starter.records.dead_letter_topic import LetterSelection

    missing = set(args.letters)
    async with _open(args, settings) as box:
        async for letter, state in box.find(LetterSelection(places=frozenset(missing)), is_all=True):
            missing.discard((letter.record.partition, letter.record.offset))
            if args.json:
                print_json(_to_document(letter, state))
            else:
                print_fields(_to_fields(letter, state))
        _tell_missing(missing, box)
    return PARTLY if missing else FINE


def _run_verb(verb: str, args: argparse.Namespace, settings: Settings) -> int:
    selection = _read_filter(args)
    if args.letters:
        if selection != type(selection)() or args.limit is not None:
            raise InvalidSetting(f"dead-letters {verb}: letters and a filter are given; use one of the two")
        return run_interruptibly(_act_on_named(verb, args, settings))
    if args.dry_run:
        return _run_list(args, settings)
    return run_interruptibly(_act_on_selection(verb, args, settings, selection))


async def _act_on_named(verb: str, args: argparse.Namespace, settings: Settings) -> int:
    from starter.records.dead_letter_topic import LetterSelection, LetterState

    missing = set(args.letters)
    waiting: list[DeadLetter] = []
    passed = 0
    async with _open(args, settings) as box:
        async for letter, state in box.find(LetterSelection(places=frozenset(missing)), is_all=True):
            missing.discard((letter.record.partition, letter.record.offset))
            if state is LetterState.WAITING:
                waiting.append(letter)
            else:
                passed += 1
                what = "a copy of another one" if state is LetterState.COPY else f"{state} already"
                echo_err(f"dormice: dead letter {letter.position} is {what}; nothing was done to it")
        _tell_missing(missing, box)
        if args.dry_run:
            _print_meant(waiting, is_json=args.json)
        else:
            work = _Work(verb, box, is_json=args.json)
            try:
                await work.add(waiting)
            finally:
                work.report()
    return PARTLY if missing or passed else FINE


async def _act_on_selection(
    verb: str, args: argparse.Namespace, settings: Settings, selection: "LetterSelection"
) -> int:
    count = 0
    held: list[DeadLetter] = []
    async with _open(args, settings) as box:
        work = _Work(verb, box, is_json=args.json)
        try:
            async for letter, _ in box.find(selection):
                if count == args.limit:
                    break
                count += 1
                if args.yes:
                    held.append(letter)
                if len(held) == TOGETHER:
                    await work.add(held)
                    held = []
            await work.add(held)
        finally:
            if args.yes:
                work.report()
    return FINE if args.yes else _ask(verb, count, is_json=args.json)


def _ask(verb: str, count: int, *, is_json: bool) -> int:
    if is_json:
        print_json({"verb": verb, "matched": count, DONE[verb]: 0})
    echo_err(f"{verb}: {plural(count, 'dead letter')} would be meant; nothing was {DONE[verb]}, add --yes to do it")
    return WRONG


class _Work:
    """One verb, applied to dead letters, with the number of those done."""

    def __init__(self, verb: str, box: "DeadLetterTopic", *, is_json: bool) -> None:
        self._verb = verb
        self._act = box.replay if verb == "replay" else box.drop
        self._is_json = is_json
        self._done = 0

    async def add(self, letters: "Sequence[DeadLetter]") -> None:
        await self._act(letters)
        self._done += len(letters)

    def report(self) -> None:
        if self._is_json:
            print_json({"verb": self._verb, DONE[self._verb]: self._done})
        else:
            echo_err(f"{self._verb}: {plural(self._done, 'dead letter')} {DONE[self._verb]}")


def _tell_missing(missing: set[tuple[int, int]], box: "DeadLetterTopic") -> None:
    for partition, offset in sorted(missing):
        echo_err(
            f"dormice: no dead letter {partition}/{offset} lies in {box.topic}; 'dormice dead-letters list' shows them"
        )


def _print_meant(letters: "Sequence[DeadLetter]", *, is_json: bool) -> None:
    from starter.records.dead_letter_topic import LetterState

    if is_json:
        for letter in letters:
            print_json(_to_line(letter, LetterState.WAITING))
    elif letters:
        print_table(_HEADER, (_to_cells(letter, LetterState.WAITING) for letter in letters))


def _to_line(letter: "DeadLetter", state: "LetterState") -> dict[str, Any]:
    return {
        "letter": letter.position,
        "state": state.value,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "produced_at": _to_moment(letter.record.timestamp),
        "attempts": letter.attempts,
        "error_class": letter.error_class,
        "stage": letter.stage,
        "reason": letter.message,
        **_to_text("key", letter.record.key),
    }


def _to_document(letter: "DeadLetter", state: "LetterState") -> dict[str, Any]:
    headers = [{"name": name, **_to_text("value", value)} for name, value in letter.headers]
    replay_of = letter.replay_of or None
    return {
        **_to_line(letter, state),
        **_to_text("value", letter.record.value),
        "headers": headers,
        "replay_of": replay_of,
    }


def _to_text(name: str, raw: bytes | None) -> dict[str, str | None]:
    """Give bytes for JSON: as text, or in Base64 under another name when they are not UTF-8."""
    try:
        return {name: None if raw is None else raw.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(raw or b"").decode()}


def _to_moment(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None
    except (ValueError, OverflowError):
        return None  # Kafka accepts any number, but datetime ends with the year 9999


def _to_shown(raw: bytes | None) -> str:
    return "-" if raw is None else raw.decode(errors="backslashreplace")


def _to_cells(letter: "DeadLetter", state: "LetterState") -> tuple[str, ...]:
    source = f"{letter.topic}/{letter.partition}/{letter.offset}"
    key = _to_shown(letter.record.key)
    return letter.position, state.value, source, str(letter.attempts), letter.error_class, key, letter.message


def _to_fields(letter: "DeadLetter", state: "LetterState") -> list[tuple[str, str]]:
    return [
        ("dead letter", letter.position),
        ("state", state.value),
        ("source", f"{letter.topic}/{letter.partition}/{letter.offset}"),
        ("produced", describe_moment(_to_moment(letter.record.timestamp))),
        ("failed", f"{letter.attempts} x, last at stage {letter.stage or '-'}"),
        ("class", letter.error_class),
        ("reason", letter.message),
        *([("replay of", letter.replay_of)] if letter.replay_of else []),
        ("key", _to_shown(letter.record.key)),
        ("value", _to_shown(letter.record.value)),
        *((f"header {name}", _to_shown(value)) for name, value in letter.headers),
    ]
