"""Reading signals: whatever somebody sends becomes what it asks for, or one sentence; nothing else is ever raised."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from shared.keepers.capacity import Measurement, read_measurement
from shared.keepers.gates import CloseRequest, read_close, read_open
from shared.messages.message import MessageState
from shared.messages.signal_reading import PackSignal, read_nothing, read_pull_forward, read_signal, read_steering
from shared.messages.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    PullMany,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    UnreadableSignal,
    make_signal,
    write_steering,
)
from shared.packs.entry import to_entry
from shared.packs.reading import read_chunk, read_pack_count
from shared.temporal.converter import DATA_CONVERTER

NOW = 1_795_262_400.123
MOMENT = "2026-11-21T20:00:00Z"
AT = datetime(2026, 11, 21, 20, tzinfo=UTC)
AT_TEXT = AT.isoformat()
Reader = Callable[[Sequence[Any]], Any]

SIGNALS: list[Signal] = [
    RunNow("because"),
    Reschedule(MOMENT, "because"),
    Reprioritize(1, MOMENT),
    Reprioritize(5),
    Revise({"a": [1, None, 0.5]}, "t/0", 7, "long", MOMENT, "because", 2, {"traceparent": "00-x"}),
    Revise(None),
    Pause(),
    Resume(),
    Stop("because", "t/0", 9),
    PullForward(MOMENT),
]


def raw(data: bytes, encoding: bytes = b"json/plain") -> RawValue:
    """Give what the converter gives for a payload that it can't read."""
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


WRONG: list[tuple[type[Signal], list[Any], str]] = [
    (Pause, [{}, {}], "it came with 2 arguments; give one"),
    (Pause, [b"\x00"], "its input is binary; give JSON"),
    (Pause, ["x"], "its input is 'x'; give an object"),
    (Pause, [[1]], "its input is a list; give an object"),
    (Pause, [raw(b"{")], "its input is no JSON (expecting property name enclosed in double quotes at character 2)"),
    (Pause, [raw(b"\xff")], "its input is not UTF-8 text (byte 1)"),
    (
        Pause,
        [raw(b"x", b"\xff/y")],
        "its input has the encoding '\ufffd/y', which is none of those read here; give JSON",
    ),
    (Pause, [{"reason": 5}], "reason is 5; give a string"),
    (Reschedule, [], "due_at is missing"),
    (Reschedule, [None], "due_at is missing"),
    (Reschedule, [{"due_at": 5}], "due_at is 5; give a moment, for example 2026-11-21T20:00:00Z"),
    (Reschedule, [{"due_at": None}], "due_at is null; give a moment, for example 2026-11-21T20:00:00Z"),
    (Reprioritize, [{"priority": "1"}], "priority is '1'; give a whole number from 1 to 5"),
    (Reprioritize, [{"priority": True}], "priority is True; give a whole number from 1 to 5"),
    (Reprioritize, [{"priority": 1.0}], "priority is 1.0; give a whole number from 1 to 5"),
    (Revise, [{"payload": math.nan}], "holds nan, which JSON does not know"),
    (Revise, [{"payload": {"a": ["\ud800"]}}], "holds a lone surrogate, which UTF-8 can't carry"),
    (Revise, [{"payload": 1, "source": "\ud800"}], "holds a lone surrogate, which UTF-8 can't carry"),
    (Revise, [{"payload": 1, "offset": math.inf}], "holds inf, which JSON does not know"),
    (Revise, [{"payload": 1, "offset": True}], "offset is True; give a whole number of at most 64 bits"),
    (
        Revise,
        [{"payload": 1, "trace": {"a": 1}}],
        "trace is an object; give an object of strings, of at most 1,000 characters in all",
    ),
    (Revise, [{"payload": json.loads("[" * 70 + "]" * 70)}], "is nested deeper than 64 levels"),
    (PullForward, [{"expected_due_at": 7}], "expected_due_at is 7; give a moment, for example 2026-11-21T20:00:00Z"),
]


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_is_read_as_it_was_sent(signal: Signal) -> None:
    """By a message of its own, from the SDK's dataclass or an object, and by a pack."""
    name = SIGNAL_NAMES[type(signal)]
    wire = dataclasses.asdict(signal)
    sent = DATA_CONVERTER.payload_converter.from_payloads(DATA_CONVERTER.payload_converter.to_payloads([signal]))

    assert read_signal(type(signal), sent) == read_signal(type(signal), [wire]) == signal
    assert read_steering(name, [write_steering(["a", "b"], signal, "t")]) == PackSignal(["a", "b"], signal, "t")


MADE: list[tuple[str, dict[str, Any], Signal]] = [
    ("run_now", {"reason": "because"}, RunNow("because")),
    ("reschedule", {"due_at": AT, "reason": ""}, Reschedule(AT_TEXT)),
    ("reprioritize", {"priority": 1, "due_at": None}, Reprioritize(1)),
    ("reprioritize", {"priority": 1, "due_at": AT}, Reprioritize(1, AT_TEXT)),
    ("revise", {"payload": None, "lane": None}, Revise(None)),
    ("revise", {"payload": [1], "lane": "long", "if_due_before": AT}, Revise([1], lane="long", if_due_before=AT_TEXT)),
    ("pull_forward", {"expected_due_at": AT}, PullForward(AT_TEXT)),
]


@pytest.mark.parametrize(("verb", "given_values", "signal"), MADE)
def test_a_verb_makes_its_signal_of_what_is_given(verb: str, given_values: dict[str, Any], signal: Signal) -> None:
    """Moments are written as on the wire; None is a payload, and elsewhere means that nothing is given."""
    assert make_signal(verb, **given_values) == signal


@pytest.mark.parametrize("kind", [RunNow, Pause, Resume, Stop])
@pytest.mark.parametrize("arguments", [[], [None], [{}], [{"reason": None}]])
def test_a_signal_that_needs_no_input_comes_without(kind: type[Signal], arguments: list[Any]) -> None:
    """As the Web UI sends what a person leaves empty."""
    assert read_signal(kind, arguments) == kind()  # pyright: ignore[reportCallIssue] — these four need nothing


@pytest.mark.parametrize(("kind", "arguments", "sentence"), WRONG)
def test_what_is_wrong_with_a_signal_is_said(kind: type[Signal], arguments: list[Any], sentence: str) -> None:
    """In half a sentence that names the field and what to give."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_signal(kind, arguments)

    assert str(caught.value) == sentence


def test_a_signal_for_messages_of_a_pack_says_to_them_what_is_wrong() -> None:
    """Where its ids can be read; otherwise it is nobody's."""
    found = read_steering("reprioritize", [{"ids": ["a"], "priority": "1", "token": "t"}])

    assert found == PackSignal(
        ["a"], UnreadableSignal("Reprioritize", "priority is '1'; give a whole number from 1 to 5"), "t"
    )
    flawed: list[Any] = [{}, [1], None, "a", ["\ud800"]]
    for ids in flawed:
        with pytest.raises(ValueError, match="a pack wants an object with ids"):
            read_steering("pause", [{"ids": ids}])


ODD: list[Any] = [True, [[]], 10**40]
ODD_FIELDS: list[dict[str, Any]] = [{"lane": "x"}, {"priority": 9}, {"sources": {}}]
ENTRY = to_entry(
    MessageState("feed", "a", "short", NOW, NOW, payload={"n": 1}, sources={"t/0": 7}, priority=1).remember(
        NOW, "started"
    ),
    "short",
)
CHUNK = {"token": "t", "entries": [ENTRY], "sent_at": NOW, "size": 9, "packs": 3, "coalesce": 60.0, "revises": True}
RIGHT: list[tuple[Reader, list[Any], Any]] = [
    (read_chunk, [CHUNK], CHUNK),
    (read_pack_count, [{"packs": 7}], 7),
    (
        read_close,
        [{"gate": "x", "opens_at": 5, "reason": "r\n r", "replaces": True}],
        CloseRequest("x", 5, "r r", replaces=True),
    ),
    (read_open, [{"gate": "x"}], "x"),
    (read_measurement, ["worker", 5], Measurement("worker", 5)),
    (read_nothing, [], None),
    (read_pull_forward, [{"count": 1, "at": 1, "until": 2.5, "token": "t"}], PullMany(1, 1, 2.5, "t")),
]


@pytest.mark.parametrize(("read", "arguments", "expected"), RIGHT)
def test_what_is_right_is_read(read: Reader, arguments: list[Any], expected: Any) -> None:
    """As its sender meant it."""
    assert read(arguments) == expected


def change(entry: list[Any], position: int, value: Any) -> list[Any]:
    """Give an entry with another value at a position."""
    return [*entry[:position], value, *entry[position + 1 :]]


@pytest.mark.parametrize(
    "flaw",
    [
        *({"entries": [change(ENTRY, n, v)]} for n in range(8) for v in ("\ud800", math.nan)),
        *({"entries": [change(ENTRY, n, v)]} for n in (0, 1, 2, 3, 4, 6, 7) for v in ODD),
        *({"entries": [change(ENTRY, 7, {**ENTRY[7], **other})]} for other in ODD_FIELDS),
        {"entries": [change(ENTRY, 6, [[0, 0, "started", 0]])]},
        {"entries": [ENTRY[:3]]},
        {"entries": {}},
        {"entries": [ENTRY], "ended": [ENTRY]},
        {"token": ""},
        {"token": 5},
        {"size": 0},
        {"size": True},
        {"coalesce": math.inf},
        {"sent_at": "now"},
        {"revises": 1},
    ],
)
def test_a_chunk_with_one_wrong_value_is_refused(flaw: dict[str, Any]) -> None:
    """Whatever column or field it is in: a pack keeps what it takes in for months."""
    with pytest.raises(ValueError, match=r"start messages with dormice|; give "):
        read_chunk([CHUNK | flaw])


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(2**63), 2**64]),
    st.floats(),
    st.text(),
    st.sampled_from(["\ud800", MOMENT, "again", "short", "a"]),
)
names = st.sampled_from(
    [
        "ids",
        "token",
        "entries",
        "ended",
        "packs",
        "size",
        "coalesce",
        "sent_at",
        "lane",
        "reason",
        "due_at",
        "priority",
        "payload",
        "offset",
        "trace",
        "gate",
        "opens_at",
        "count",
        "at",
        "until",
    ]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(names | st.text(), inner, max_size=6)
)
READERS: list[Reader] = [
    *(lambda given, kind=kind: read_signal(kind, given) for kind in SIGNAL_NAMES),
    *(lambda given, name=name: read_steering(name, given) for name in SIGNAL_NAMES.values()),
    *(read_chunk, read_pack_count, read_close, read_open, read_measurement, read_nothing),
    read_pull_forward,
]


@given(st.lists(values | st.dictionaries(names, values) | st.binary().map(raw), max_size=3))
def test_nothing_but_a_sentence_is_ever_raised(arguments: list[Any]) -> None:
    """Whatever the arguments are, for every reader there is."""
    for read in READERS:
        with contextlib.suppress(ValueError):
            read(arguments)
