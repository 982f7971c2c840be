"""The request that starts a message is what the SDK's own client would send, and names one wish by one id."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import SearchAttributes
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes
from temporalio.converter import encode_search_attributes

from shared.lanes import LANES
from shared.messages.envelope import TOLERANCE_MAX, Envelope, EnvelopeRules, parse_envelope
from shared.messages.message import NO_TRACE
from shared.messages.placement import PackSpread
from shared.packs.entry import to_entry, to_state
from shared.settings import Settings
from shared.temporal.search_attributes import REQUIRED, attributes_at_start
from starter.starting.start_request import build_start_request, first_entry, first_state, make_request_id

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ENVELOPE = Envelope(kind="echo", id="ä ☃:1", lane="medium", priority=2, tenant="t", payload={"delay": 1})


async def test_search_attributes_are_written_as_the_sdk_writes_them(client: Client, settings: Settings) -> None:
    """Our own encoder and the SDK's agree to the byte."""
    now = time.time()
    later = ENVELOPE.model_copy(update={"scheduled_at": datetime.now(UTC) + timedelta(hours=1)})
    state = first_state(later, now)
    request = await build_start_request(client, settings, state, "r", restarts_finished=False)
    expected = SearchAttributes()
    encode_search_attributes(TypedSearchAttributes(attributes_at_start(state, now, 60)), expected)

    assert request.search_attributes == expected
    assert set(expected.indexed_fields) == set(REQUIRED)


async def test_a_message_that_is_due_at_once_is_not_indexed_by_time(client: Client, settings: Settings) -> None:
    """What has no DueAt is due by now: two attributes less to write for each of millions."""
    state = first_state(ENVELOPE, time.time())
    request = await build_start_request(client, settings, state, "r", restarts_finished=False)

    assert set(request.search_attributes.indexed_fields) == {"Kind", "Lane", "State"}


async def test_the_request_carries_identity_lane_priority_and_tenant(client: Client, settings: Settings) -> None:
    """Placement, priority key and fairness key come from the envelope, the task timeout from the settings."""
    state = first_state(ENVELOPE, 0.0)
    request = await build_start_request(client, settings, state, "r", restarts_finished=False)

    assert request.workflow_id == "echo:ä ☃:1"
    assert request.task_queue.name == f"{settings.task_queue_prefix}-medium"
    assert (request.priority.priority_key, request.priority.fairness_key) == (2, "t")
    assert request.workflow_task_timeout.seconds == settings.workflow_task_timeout.total_seconds()
    assert json.loads(request.user_metadata.summary.data) == "echo ä ☃:1"


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [(("", "a"), ("", "a"), True), (("", "a"), ("", "b"), False), (("key", "a"), ("key", "b"), True)],
)
def test_one_wish_has_one_request_id(first: tuple[str, str], second: tuple[str, str], *, is_same: bool) -> None:
    """A retry in one session is the same wish; the sender's idempotency key makes it so across sessions."""
    ids = [
        make_request_id(ENVELOPE.model_copy(update={"idempotency_key": key}), session)
        for key, session in (first, second)
    ]

    assert (ids[0] == ids[1]) is is_same


def test_an_idempotency_key_stands_for_one_body() -> None:
    """What a sender asks for has one number, however it is written; each change of it has another."""
    rules = EnvelopeRules({"echo": "short", "brief": "short"}, expires_after={"brief": timedelta(hours=1)})

    def find(**fields: Any) -> int:
        return parse_envelope({"kind": "echo", "id": "1", "payload": {"a": 1, "b": [2]}} | fields, rules).fingerprint

    same = [
        {},
        {"payload": {"b": [2], "a": 1}},
        {"lane": "short"},
        {"idempotency_key": "k"},
        {"id": "2"},
        {"kind": "brief"},
        {"kind": "brief", "id": "2"},
    ]
    others: list[dict[str, Any]] = [
        {"payload": None},
        {"payload": {"a": 1.0, "b": [2]}},
        {"scheduled_at": "2026-12-01T12:00:00Z"},
        {"scheduled_at": "2026-12-01T13:00:00Z"},
        {"expires_at": "2026-12-01T12:00:00Z"},
        {"lane": "long"},
        {"priority": 1},
        {"tolerance_seconds": 5},
        {"tenant": "t"},
        {"correlation_id": "c"},
    ]
    assert {find(**fields) for fields in same} == {find()}
    assert find(scheduled_at="2026-12-01T12:00:00Z") == find(scheduled_at="2026-12-01T13:00:00+01:00")
    assert len({find(**fields) for fields in others} | {find()}) == len(others) + 1
    assert all(0 < find(**fields) < 2**32 for fields in others)


moments = st.datetimes(NOON.replace(tzinfo=None) - timedelta(days=1), NOON.replace(tzinfo=None) + timedelta(days=400))
envelopes = st.builds(
    Envelope,
    kind=st.just("feed"),
    id=st.sampled_from(["a", "ä ☃:1"]),
    lane=st.sampled_from(list(LANES)),
    scheduled_at=st.none() | moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    tolerance_seconds=st.just(0.0) | st.floats(0, TOLERANCE_MAX.total_seconds()),
    priority=st.integers(1, 5),
    tenant=st.sampled_from(["", "t"]),
    payload=st.none() | st.integers() | st.text(max_size=3),
    correlation_id=st.sampled_from(["", "c"]),
)


@given(
    envelopes,
    st.floats(0, 86_400).map(lambda seconds: NOON.timestamp() + seconds),
    st.sampled_from([{}, {"feeds/0": 7}]),
    st.sampled_from([NO_TRACE, {"traceparent": "00-1-1-01"}]),
    st.none() | st.builds(PackSpread, st.floats(0, 1, exclude_max=True), st.floats(0, 600)),
)
def test_the_first_entry_is_that_of_the_first_state(
    envelope: Envelope, now: float, sources: dict[str, int], trace: dict[str, str], spread: PackSpread | None
) -> None:
    """What is written straight from an envelope is what a pack writes of its state, which a solo message has too."""
    entry = first_entry(envelope, now, "short", sources=sources, trace=trace, spread=spread)
    state = to_state(entry, envelope.kind, "short")

    assert entry == to_entry(state, "short")
    if spread is None:
        assert state == first_state(envelope, now, sources, trace)
