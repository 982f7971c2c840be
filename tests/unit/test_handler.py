"""The `handler` decorator: what it makes of a function, and which declarations it refuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.api.context import Context
from activities.api.handler import Gate, Handler, handler
from activities.api.outcome import Again, Done, Message
from activities.testing import make_context
from shared.errors import InvalidHandler, InvalidOutcome
from shared.lanes import LANES

SECOND = timedelta(seconds=1)
MESSAGE = Message(kind="feed", id="a", version=4, lane="short", payload={"n": 1})


async def poll(message: Message, ctx: Context) -> Again:
    """Poll a feed.

    This line is not part of the summary.
    """
    return Again(after=timedelta(minutes=message.version), reason=ctx.idempotency_key)


def test_a_handler_has_its_lanes_defaults() -> None:
    """A kind is enough."""
    expected = Handler(
        kind="feed",
        function=poll,
        lane="short",
        max_attempts=5,
        timeout=None,
        backoff=timedelta(seconds=2),
        backoff_max=timedelta(hours=1),
    )

    assert handler("feed")(poll) == expected


async def test_a_handler_is_still_its_function() -> None:
    """Tests of a handler call it with a message and a context."""
    made = handler("feed")(poll)

    assert await made(MESSAGE, make_context(MESSAGE)) == Again(after=timedelta(minutes=4), reason="feed:a:4")


@pytest.mark.parametrize(
    ("declared", "timeout", "lane", "expected"),
    [
        ("short", None, "short", timedelta(seconds=10)),
        ("short", None, "medium", timedelta(minutes=5)),
        ("short", None, "long", timedelta(hours=2)),
        ("short", SECOND, "short", SECOND),
        ("short", timedelta(seconds=30), "short", timedelta(seconds=30)),
        ("short", SECOND, "long", SECOND),
        ("long", timedelta(hours=24), "long", timedelta(hours=24)),
        ("long", timedelta(hours=24), "medium", timedelta(minutes=30)),
        ("long", timedelta(hours=24), "short", timedelta(seconds=30)),
    ],
)
def test_a_timeout_never_exceeds_what_the_messages_lane_bears(
    declared: str, timeout: timedelta | None, lane: str, expected: timedelta
) -> None:
    """A message may be on another lane than its handler's own: the lane it is on decides."""
    assert handler("feed", lane=declared, timeout=timeout)(poll).timeout_on(lane) == expected


def test_every_lane_bears_its_own_default_timeout() -> None:
    """A handler that declares nothing fits its lane."""
    assert [lane.name for lane in LANES.values() if lane.handler_timeout > lane.handler_timeout_max] == []


@pytest.mark.parametrize(
    ("declared", "phrase"),
    [
        ({"kind": ""}, "handler '': a kind is 1 to 50 of a-z 0-9 _ . -, letter or digit first"),
        ({"kind": "Feed"}, "handler 'Feed': a kind is 1 to 50 of"),
        ({"kind": "a:b"}, "a kind is 1 to 50 of"),
        ({"kind": "feed\n"}, "a kind is 1 to 50 of"),
        ({"kind": "-feed"}, "a kind is 1 to 50 of"),
        ({"kind": "f" * 51}, "a kind is 1 to 50 of"),
        (
            {"kind": "feed", "lane": "express"},
            "handler 'feed': there is no lane 'express'; use one of short, medium, long",
        ),
        ({"kind": "feed", "max_attempts": 0}, "handler 'feed': max_attempts is 0; give at least 1"),
        (
            {"kind": "feed", "timeout": timedelta(0)},
            "a timeout of 0:00:00 is not between 0 and 0:00:30 on lane short; use a longer lane",
        ),
        (
            {"kind": "feed", "timeout": timedelta(seconds=31)},
            "a timeout of 0:00:31 is not between 0 and 0:00:30 on lane short",
        ),
        (
            {"kind": "feed", "lane": "medium", "timeout": timedelta(hours=1)},
            "is not between 0 and 0:30:00 on lane medium",
        ),
        ({"kind": "feed", "backoff": timedelta(0)}, "backoff 0:00:00 must be above 0 and at most backoff_max 1:00:00"),
        (
            {"kind": "feed", "backoff": SECOND, "backoff_max": SECOND / 2},
            "backoff 0:00:01 must be above 0 and at most backoff_max",
        ),
        (
            {"kind": "feed", "gate": ""},
            "handler 'feed': '' names no gate; give 1 to 300 bytes without control characters",
        ),
        ({"kind": "feed", "gate": "host\n"}, "handler 'feed': 'host\\n' names no gate"),
    ],
)
def test_an_unusable_declaration_is_refused_at_import(declared: dict[str, Any], phrase: str) -> None:
    """The mistake shows when the module loads, before any message runs."""
    with pytest.raises(InvalidHandler) as caught:
        handler(**declared)

    assert phrase in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def name_by_payload(message: Message) -> Any:
    """Name the gate that a payload names, whatever that is."""
    return message.payload


@pytest.mark.parametrize(
    ("gate", "payload", "expected"),
    [(None, "b", ""), ("mail", "b", "mail"), (name_by_payload, "host:a", "host:a"), (name_by_payload, None, "")],
)
def test_a_gate_is_a_name_or_a_function_of_the_message(gate: Gate, payload: Any, expected: str) -> None:
    """Nothing, an empty name and None all mean that a message needs no gate."""
    message = Message(kind="feed", id="a", version=0, lane="short", payload=payload)

    assert handler("feed", gate=gate)(poll).gate_of(message) == expected


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (7, "handler(gate=int 7) is no string; write for example gate='host:example.org'"),
        ("a\x00", "handler(gate): 'a\\x00' names no gate; give 1 to 300 bytes without control characters"),
        ("ä" * 151, f"handler(gate): {'ä' * 40!r} names no gate; give 1 to 300 bytes without control characters"),
    ],
)
def test_what_names_no_gate_is_told_to_the_author(named: Any, sentence: str) -> None:
    """The message is parked with the sentence, as with an outcome that is none."""
    message = Message(kind="feed", id="a", version=0, lane="short", payload=named)

    with pytest.raises(InvalidOutcome) as caught:
        handler("feed", gate=name_by_payload)(poll).gate_of(message)

    assert str(caught.value) == sentence


@pytest.mark.parametrize("kind", ["f", "0", "a.b-c_d", "f" * 50])
def test_usable_kinds_are_taken(kind: str) -> None:
    """One to fifty lower-case letters, digits, dots, dashes and underscores."""
    assert handler(kind)(poll).kind == kind


def test_a_function_that_is_not_async_is_refused() -> None:
    """A blocking function would hold up every other message of its process."""

    def block(message: Message, ctx: Context) -> Done:
        return Done()

    with pytest.raises(InvalidHandler, match=r"handler 'feed': <function .*block at .*> is no 'async def'"):
        handler("feed")(block)  # pyright: ignore[reportArgumentType] — the wrong type is the point


def test_a_hook_that_is_no_async_function_is_refused() -> None:
    """At import, like a handler that is none."""
    with pytest.raises(InvalidHandler, match=r"handler 'feed': on_parked='tell' is no 'async def'; write one that"):
        handler("feed", on_parked="tell")  # pyright: ignore[reportArgumentType] — the wrong type is the point


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    """What a list of handlers shows; empty without a docstring."""

    async def silent(message: Message, ctx: Context) -> Done:
        return Done()

    assert handler("feed")(poll).summary == "Poll a feed."
    assert handler("feed")(silent).summary == ""


async def test_a_context_knows_how_late_the_call_is() -> None:
    """Lateness counts from the due time; a heartbeat may be sent from anywhere."""
    due_at = datetime(2026, 11, 21, 20, tzinfo=UTC)
    context = make_context(due_at=due_at, started_at=due_at + timedelta(seconds=5))

    context.heartbeat()

    assert context.lateness == timedelta(seconds=5)
