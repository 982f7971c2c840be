"""Age and expiry: when a message ends because its time is over, and what its handler is told of its age."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities import Again, Context, Done, Message, Pack, RetryAfter, handler
from activities.api.handler import ExpiryFunction, Handler
from activities.testing import BEGIN, Life, live, make_message
from shared.errors import InvalidEnvelope, InvalidHandler
from shared.messages.decision import begin, decide
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope, parse_envelope_fast
from shared.messages.message import HandlerCall, MessageState, Outcome
from shared.messages.outcome_event import to_event
from shared.messages.placement import PackSpread
from shared.messages.signals import Pause, Reschedule, Resume, Revise, RunNow, Stop
from shared.packs.entry import is_over, to_entry, to_state
from shared.packs.reading import read_chunk
from starter.starting.start_request import first_entry
from workflows.description import explain_due

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
PACK = Pack(packs=2, size=10)


class Notes:
    """What a handler that comes back every hour, and its expiry function, were called with."""

    def __init__(self) -> None:
        self.calls: list[Message] = []
        self.expired: list[tuple[Message, Context]] = []

    def handler(self, after: timedelta = HOUR, problem: BaseException | None = None, **options: Any) -> Handler:
        """Make the handler; `problem` is what its expiry function raises."""

        async def on_expiry(message: Message, ctx: Context) -> None:
            self.expired.append((message, ctx))
            if problem is not None:
                raise problem

        @handler("told", expires_after=10 * HOUR, on_expiry=on_expiry, max_attempts=3, **options)
        async def note(message: Message, ctx: Context) -> Again:
            self.calls.append(message)
            return Again(after=after)

        return note


@pytest.mark.parametrize("encoding", [None, PACK])
async def test_a_message_ends_at_its_expiry_even_asleep(encoding: Pack | None) -> None:
    """It wakes for that alone: its expiry function is called then, and its handler no more."""
    notes = Notes()
    asleep = notes.handler(after=DAY, encoding=encoding)
    life = await live(asleep, make_message(asleep))

    assert (life.state, len(notes.calls), len(notes.expired)) == ("expired", 1, 1)
    assert [(cycle.outcome, cycle.at - BEGIN) for cycle in life.cycles] == [
        ("again", timedelta(0)),
        ("expired", 10 * HOUR),
    ]
    assert life.decisions[-1].reason == "its time was over 2026-01-01 10:00:00 UTC"
    assert notes.expired[0][1].idempotency_key == "told:1:1"


@pytest.mark.parametrize("encoding", [None, PACK])
async def test_until_then_it_runs_as_ever(encoding: Pack | None) -> None:
    """No call comes after the expiry, and none is pushed beyond it by the spread of its tolerance."""
    notes = Notes()
    hourly = notes.handler(after=timedelta(hours=9.9), encoding=encoding)
    life = await live(hourly, make_message(hourly))

    assert [cycle.outcome for cycle in life.cycles] == ["again", "again", "expired"]
    assert life.cycles[1].at < BEGIN + 10 * HOUR


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (ValueError("no"), "on_expiry failed: ValueError: no"),
        (RetryAfter(DAY, "later"), "on_expiry failed: later"),
        (asyncio.CancelledError(), "on_expiry failed: CancelledError"),
    ],
)
async def test_an_expiry_function_that_fails_stands_in_the_way_for_some_attempts(
    problem: BaseException, reason: str
) -> None:
    """As many as a call has; then the message expires, and says why."""
    notes = Notes()
    failing = notes.handler(DAY, problem)
    life = await live(failing, make_message(failing))

    assert [cycle.outcome for cycle in life.cycles] == ["again", "failed", "failed", "expired"]
    assert [ctx.attempt for _, ctx in notes.expired] == [1, 2, 3]
    assert life.decisions[-1].reason.endswith(reason)


async def test_what_is_held_does_not_expire_before_a_person_decides() -> None:
    """Paused or parked it stays, and once it goes on its time is over."""
    notes = Notes()
    asleep = notes.handler(after=5 * HOUR)
    life = Life(asleep, make_message(asleep))
    await life.run(HOUR)
    life.signal(Pause())
    await life.run(2 * DAY)
    held = life.state
    life.signal(Resume())
    await life.run(3 * DAY)

    assert (held, life.state, len(notes.calls)) == ("paused", "expired", 1)
    assert life.cycles[-1].at == BEGIN + 2 * DAY


async def test_a_handler_is_told_the_age_of_its_message() -> None:
    """In cycles, and from its first due time on where its handler keeps that."""
    notes = Notes()
    aged = replace(notes.handler(keeps_age=True), kind="aged")
    life = Life(aged, make_message(aged, 0))
    await life.run(2.5 * HOUR)
    life.signal(Revise(1))
    await life.run(5 * HOUR)
    plain = notes.handler()
    await live(plain, make_message(plain), until=HOUR)

    assert [message.cycles for message in notes.calls[:3]] == [0, 1, 2]
    assert {message.started_at for message in notes.calls if message.kind == "aged"} == {BEGIN}
    assert {message.started_at for message in notes.calls if message.kind == "told"} == {None}


def test_a_version_that_a_revision_began_is_no_cycle() -> None:
    """Only decided cycles count."""
    state = MessageState("a", "b", "short", 0.0, 0.0, started_at=1.0)
    failed = decide(begin(state), Outcome("failed"), 1.0)
    revised = decide(failed, Revise({}), 2.0)
    again = decide(begin(revised), Outcome("again", after=5.0), 3.0)
    call = HandlerCall.of(again, 1)

    assert (again.version, call.version - call.skipped) == (2, 1)


def test_signals_change_the_due_time_up_to_the_expiry() -> None:
    """A newer record gives another one, and begins an expired message anew."""
    state = MessageState("a", "b", "short", 100.0, 100.0, expires_at=200.0)
    moved = decide(state, Reschedule("1970-01-01T01:00:00Z"), 10.0)
    longer = decide(moved, Revise({}, "t/0", 1, due_at="1970-01-01T01:00:00Z", expires_at="1970-01-01T02:00:00Z"), 20.0)
    expired = decide(begin(moved), Outcome("done", is_expired=True), 200.0)
    late = decide(state, RunNow(), 300.0)

    assert (moved.due_at, moved.is_expiring, explain_due(moved)) == (
        *(200.0, True),
        "expires 1970-01-01 00:03:20 UTC since reschedule",
    )
    assert (longer.due_at, longer.expires_at) == (3600.0, 7200.0)
    assert (expired.phase, expired.ended, explain_due(expired)) == ("expired", "done", "expired since expired")
    assert decide(expired, RunNow(), 201.0) is expired
    anew = decide(expired, Revise({}, "t/0", 1), 300.0)
    assert (anew.phase, anew.expires_at, anew.due_at) == ("active", 0.0, 300.0)
    assert late.due_at == 300.0, "its time is over, and the next call finds that out"
    assert decide(late, Stop(), 301.0).phase == "stopped"


def test_an_expired_message_has_ended_in_each_wire_form() -> None:
    """As a state, as an entry on its way to another pack, and as an outcome."""
    outcome = Outcome("done", "over", is_expired=True)
    state = MessageState("a", "b", "short", 100.0, 100.0, expires_at=90.0)
    expired = decide(begin(state), Outcome.load(outcome.dump()), 100.0)
    entry = to_entry(expired, "short")

    assert Outcome.load(outcome.dump()) == outcome
    assert MessageState.load(expired.dump()).phase == to_state(entry, "a", "short").phase == "expired"
    assert read_chunk([{"token": "t", "entries": [], "ended": [entry]}])["ended"] == [entry]
    assert "expires_at" not in state._replace(expires_at=0.0).dump()


def test_the_outcome_event_says_that_a_message_has_expired() -> None:
    """And until then its next due time is its expiry at the latest."""
    call = HandlerCall("feed", "a", "short", 3, 1, None, due_at=1000.0, expires_at=2000.0)
    ended = to_event(call, Outcome("done", is_expired=True, ended_at=2000.0), 2000.0)
    again = to_event(call, Outcome("again", after=86400.0, ended_at=1010.0), 1005.0)

    assert (ended["outcome"], ended["state"], ended["next_due_at"]) == ("expired", "expired", None)
    assert again["next_due_at"] == "1970-01-01T00:33:20.000Z"


NOON = datetime.now(UTC).replace(microsecond=0) + DAY
RULES = EnvelopeRules({"feed": "short", "told": "short"}, expires_after={"told": 2 * DAY})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kind": "feed"}, None),
        ({"kind": "feed", "expires_at": NOON.isoformat()}, NOON),
        ({"kind": "told", "scheduled_at": NOON.isoformat()}, NOON + 2 * DAY),
        ({"kind": "told", "expires_at": NOON.isoformat()}, NOON),
    ],
)
def test_an_envelope_has_an_expiry_of_its_own_or_its_handlers(
    given: Mapping[str, Any], expected: datetime | None
) -> None:
    """Counted from the first due time; the short cut for ordinary envelopes leaves all others to the rules."""
    envelope = parse_envelope({"id": "1", **given}, RULES)

    assert envelope.expires_at == expected
    assert parse_envelope_fast({"id": "1", **given}, RULES) == (envelope if expected is None else None)


def test_an_envelope_that_expires_before_it_is_due_is_refused() -> None:
    """Equal moments too: its handler would never be called."""
    with pytest.raises(InvalidEnvelope, match=r"expires_at: is .*, not after scheduled_at, .*; give a later moment"):
        parse_envelope(
            {"kind": "feed", "id": "1", "scheduled_at": NOON.isoformat(), "expires_at": NOON.isoformat()}, RULES
        )


def test_the_first_run_is_spread_up_to_the_expiry_only() -> None:
    """However wide the tolerance is."""
    envelope = Envelope(
        kind="feed", id="1", lane="short", scheduled_at=NOON, expires_at=NOON + HOUR, tolerance_seconds=86400.0
    )
    entry = first_entry(envelope, 0.0, "short", spread=PackSpread(0.99, 0.0))

    assert entry[1] / 1000 == pytest.approx(NOON.timestamp() + 0.99 * 3600)
    assert entry[7] == {"expires_at": (NOON + HOUR).timestamp()}


def test_an_expiry_before_1970_has_passed_like_any_other() -> None:
    """A pack can read it, and it does not stand for no expiry, as 0 does."""
    envelope = Envelope(kind="feed", id="1", lane="short", expires_at=datetime(1960, 1, 1, tzinfo=UTC))
    entry = first_entry(envelope, NOON.timestamp(), "short")

    assert read_chunk([{"token": "t", "entries": [entry]}])["entries"] == [entry]
    assert is_over(entry, NOON.timestamp())


async def _expire(message: Message, ctx: Context) -> Done:
    return Done()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"expires_after": timedelta(0)}, "expires_after 0:00:00 is not between 0 and ten years; correct it"),
        ({"expires_after": timedelta(days=4000)}, "expires_after 4000 days"),
        ({"on_expiry": print}, "on_expiry <built-in function print> is no 'async def'"),
    ],
)
def test_an_impossible_declaration_is_refused(options: Mapping[str, Any], sentence: str) -> None:
    """At import, in one sentence."""
    with pytest.raises(InvalidHandler, match=f"handler 'told': {sentence}"):
        handler("told", **options)(_expire)


def test_an_expiry_function_may_be_any_async_function() -> None:
    """What it returns is ignored."""
    told: ExpiryFunction = _expire  # pyright: ignore[reportAssignmentType] — what the test is about

    assert handler("told", on_expiry=told)(_expire).on_expiry is _expire
