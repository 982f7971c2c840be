"""The commands about dead letters, records that could not become messages: list, show, replay, drop."""

import base64
import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from click import argument, option

from shared.errors import InvalidSetting
from shared.exit import FINE, PARTLY, WRONG
from shared.settings import Settings
from starter.cli.arguments import COUNT, MOMENT, OFFSET, Arguments, Group, join, section
from starter.cli.connection import check_kafka
from starter.cli.program import program
from starter.local.terminal import describe_moment, echo_err, plural, print_fields, print_items, print_json

if TYPE_CHECKING:
    from starter.records.dead_letter_topic import DeadLetterTopic, LetterPosition, LetterSelection, LetterState
    from starter.records.dead_letters import DeadLetter

    Found = tuple[DeadLetter, LetterState]

DONE = {"replay": "replayed", "drop": "dropped"}
_LETTER = re.compile(r"([0-9]{1,9})/([0-9]{1,18})")
_HEADER = ("LETTER", "STATE", "SOURCE", "FAILED", "CLASS", "KEY", "REASON")


def _letter(text: str) -> tuple[int, int]:
    if (found := _LETTER.fullmatch(text)) is None:
        raise ValueError(f"is {text!r}; write PARTITION/OFFSET, for example 0/42")
    return int(found[1]), int(found[2])


dead_letters = Group("dead-letters", "Records that could not become messages: list, show, replay or drop them.")
program.add_command(dead_letters)
topic_options = join(
    argument("topic", help="the topic that the records came from"),
    option("--servers", metavar="HOST:PORT", help="Kafka brokers, in place of the setting kafka_servers"),
)
letters_argument = functools.partial(argument, "letters", nargs=-1, type=_letter, help="as 'list' names them")
in_filter = section("Filter")
filter_options = join(
    in_filter("--error-class", metavar="CLASS", help="dead for this reason, for example NotJson"),
    in_filter("--key", type=os.fsencode, metavar="KEY", help="records with this key"),
    in_filter("--partition", **OFFSET, help="from this partition of TOPIC"),
    in_filter("--from-offset", **OFFSET, help="from this offset of TOPIC on"),
    in_filter("--to-offset", **OFFSET, help="up to this offset of TOPIC"),
    in_filter("--since", **MOMENT, help="produced then or later"),
    in_filter("--before", **MOMENT, help="produced before then"),
)


def _read_filter(args: Arguments) -> "LetterSelection":
    from starter.records.dead_letter_topic import LetterSelection

    names = ("error_class", "key", "partition", "from_offset", "to_offset", "since", "before")
    return LetterSelection(**{name: getattr(args, name) for name in names})


@contextlib.asynccontextmanager
async def _open(args: Arguments, settings: Settings) -> "AsyncGenerator[DeadLetterTopic]":
    from starter.records.dead_letter_topic import open_box

    if args.servers is not None:
        settings = dataclasses.replace(settings, kafka_servers=args.servers)
    async with open_box(await check_kafka(settings), args.topic) as box:
        yield box
        if box.foreign:
            echo_err(f"{plural(box.foreign, 'record')} of {box.topic} are no dead letters and were passed over")


@dead_letters.command("list")
@topic_options
@option("--all", is_flag=True, help="those that were replayed or dropped, and copies, as well")
@filter_options
@in_filter("--limit", **COUNT, default=50, help="most letters (50)")
async def run_list(args: Arguments, settings: Settings) -> int:
    """List the dead letters of a topic with their reasons."""
    return await _list(args, settings)


async def _list(args: Arguments, settings: Settings) -> int:
    found: list[Found] = []
    is_cut = False

    async with _open(args, settings) as box:
        async for letter, state in box.find(_read_filter(args), is_all=getattr(args, "all", False)):
            if is_cut := len(found) == args.limit:
                break
            found.append((letter, state))

    print_items(found, _to_line, _HEADER, _to_cells, is_json=args.json)
    if not found:
        echo_err("no dead letter matches")
    if is_cut:
        echo_err(f"the first {args.limit:,} of more; --limit N lists more")
    return FINE


@dead_letters.command("show")
@topic_options
@letters_argument(metavar="PARTITION/OFFSET...", required=True)
async def run_show(args: Arguments, settings: Settings) -> int:
    """Show dead letters whole: key, value, headers and reason."""
    missing: set[LetterPosition] = set(args.letters)
    async with _open(args, settings) as box:
        async for letter, state in _find_named(box, missing):
            if args.json:
                print_json(_to_document((letter, state)))
            else:
                print_fields(_to_fields(letter, state))
    return PARTLY if missing else FINE


async def _run_verb(verb: str, args: Arguments, settings: Settings) -> int:
    from starter.records.dead_letter_topic import LetterSelection, LetterState

    if args.letters and (_read_filter(args) != LetterSelection() or args.limit is not None):
        raise InvalidSetting(f"dead-letters {verb}: letters and a filter are given; use one of the two")
    if args.dry_run and not args.letters:
        return await _list(args, settings)
    left_alone: list[LetterPosition] = []
    count = 0
    async with _open(args, settings) as box:
        letters = _pick_named(box, args.letters, left_alone) if args.letters else _pick_selected(box, args)
        if args.dry_run:
            found = [(letter, LetterState.WAITING) async for letter in letters]
            print_items(found, _to_line, _HEADER, _to_cells, is_json=args.json)
        elif args.letters or args.yes:
            await _act(verb, box, letters, is_json=args.json)
        else:
            count = len([None async for _ in letters])
    if args.letters or args.yes:
        return PARTLY if left_alone else FINE
    if args.json:
        print_json({"verb": verb, "matched": count, DONE[verb]: 0})
    echo_err(f"{verb}: {plural(count, 'dead letter')} would be meant; nothing was {DONE[verb]}, add --yes to do it")
    return WRONG


async def _find_named(box: "DeadLetterTopic", named: "set[LetterPosition]") -> "AsyncIterator[Found]":
    """Give the named letters, removing each from the names; report those that are left at the end."""
    from starter.records.dead_letter_topic import LetterSelection

    async for letter, state in box.find(LetterSelection(places=frozenset(named)), is_all=True):
        named.discard((letter.record.partition, letter.record.offset))
        yield letter, state
    for partition, offset in sorted(named):
        hint = "'dormice dead-letters list' shows them"
        echo_err(f"dormice: no dead letter {partition}/{offset} lies in {box.topic}; {hint}")


async def _pick_named(
    box: "DeadLetterTopic", named: "Sequence[LetterPosition]", left_alone: "list[LetterPosition]"
) -> "AsyncIterator[DeadLetter]":
    """Give the named letters that wait; report and collect the others."""
    from starter.records.dead_letter_topic import LetterState

    missing = set(named)
    async for letter, state in _find_named(box, missing):
        if state is LetterState.WAITING:
            yield letter
        else:
            left_alone.append((letter.record.partition, letter.record.offset))
            what = "a copy of another one" if state is LetterState.COPY else f"{state} already"
            echo_err(f"dormice: dead letter {letter.position} is {what}; nothing was done to it")
    left_alone.extend(missing)


async def _pick_selected(box: "DeadLetterTopic", args: Arguments) -> "AsyncIterator[DeadLetter]":
    count = 0
    async for letter, _ in box.find(_read_filter(args)):
        if count == args.limit:
            return
        count += 1
        yield letter


async def _act(verb: str, box: "DeadLetterTopic", letters: "AsyncIterator[DeadLetter]", *, is_json: bool) -> None:
    """Replay or drop letters; at the end, also after an error, print how many."""
    done = 0
    try:
        async for done in box.handle(verb, letters):  # noqa: B007 — the last one is printed
            pass
    finally:
        if is_json:
            print_json({"verb": verb, DONE[verb]: done})
        else:
            echo_err(f"{verb}: {plural(done, 'dead letter')} {DONE[verb]}")


def _to_line(found: "Found") -> dict[str, Any]:
    letter, state = found
    return {
        "letter": letter.position,
        "state": state.value,
        **{name: getattr(letter, name) for name in ("topic", "partition", "offset")},
        "produced_at": _to_moment(letter.record.timestamp),
        **{name: getattr(letter, name) for name in ("attempts", "error_class", "stage")},
        "reason": letter.message,
        **_to_text("key", letter.record.key),
    }


def _to_document(found: "Found") -> dict[str, Any]:
    letter, _ = found
    return {
        **_to_line(found),
        **_to_text("value", letter.record.value),
        "headers": [{"name": name, **_to_text("value", value)} for name, value in letter.headers],
        "replay_of": letter.replay_of or None,
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


def _to_cells(found: "Found") -> tuple[str, ...]:
    letter, state = found
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


for name, purpose in (
    ("replay", "Send the original records to their topic again."),
    ("drop", "Give dead letters up; they stay in their topic, marked."),
):
    options = join(
        topic_options,
        letters_argument(metavar="[PARTITION/OFFSET]..."),
        filter_options,
        in_filter("--limit", **COUNT, help="most letters (all)"),
        option("--dry-run", is_flag=True, help="only list the letters that would be meant"),
        option("--yes", is_flag=True, help="do it; without this, a filter only counts"),
    )
    dead_letters.command(name, help=purpose)(options(functools.partial(_run_verb, name)))
