"""Schedules of kafka-message-scheduler: what their records ask for, and what is sent for them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.handlers.topic import RecordPlan, read_plans, to_payload
from shared.errors import InvalidSetting
from shared.messages.envelope import EnvelopeRules
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.producers.schedules import ScheduleOptions, is_own_tombstone
from starter.records.record import DeadRecord, Record
from starter.starting.delivery import Delivery

RULES = EnvelopeRules({"topic": "short"}, payload_max_bytes=1000)
WRITTEN_AT = 1_795_291_200  # 2026-11-21T20:00:00Z
HEADERS = {
    "scheduler-epoch": b"1795294800",
    "scheduler-target-topic": b"online-videos",
    "scheduler-target-key": b"vid1",
    "customer": b"\xff",
}
Pairs = tuple[tuple[str, bytes | None], ...]


def schedule(value: bytes | None = b"video 1", key: bytes | None = b"vid1-online", **changes: bytes | None) -> Record:
    """Make a schedule's record; a header that is None is left out."""
    named = {name.replace("_", "-"): raw for name, raw in changes.items()}
    headers = tuple((name, raw) for name, raw in {**HEADERS, **named}.items() if raw is not None)
    return Record("schedules", 2, 17, WRITTEN_AT * 1000 + 999, key, value, headers)


def read(given_record: Record, **options: Any) -> Delivery:
    """Read a record as the bridge does; raises DeadRecord."""
    formats = Formats(FormatOptions.of_schedules("topic", ScheduleOptions(**options)), RULES)
    (found,) = formats.decode_many([given_record])
    if isinstance(found, DeadRecord):
        raise found
    assert found == formats.decode(given_record)
    return found


def plan(given_record: Record, **options: Any) -> list[RecordPlan]:
    """Give the records that a schedule's message will send."""
    envelope = read(given_record, **options).envelope
    assert envelope is not None
    return read_plans(envelope.payload)


def test_a_schedule_becomes_a_message_that_sends_its_record() -> None:
    """Under its key, at its epoch, with all its headers and the three that its scheduler adds; then it is deleted."""
    found = read(schedule(), history_topic="history")

    own = tuple(HEADERS.items())
    said = (
        ("scheduler-timestamp", b"1795291200"),
        ("scheduler-key", b"vid1-online"),
        ("scheduler-topic", b"schedules"),
    )
    assert (found.kind, found.id, found.source, found.offset) == ("topic", "vid1-online", "schedules/2", 17)
    assert found.envelope is not None
    assert found.envelope.scheduled_at is not None
    assert found.envelope.scheduled_at.isoformat() == "2026-11-21T21:00:00+00:00"
    assert found.envelope.lane == "short"
    assert plan(schedule(), history_topic="history") == [
        RecordPlan("online-videos", None, b"vid1", b"video 1", own + said),
        RecordPlan("history", None, b"vid1", b"video 1", own + said),
        RecordPlan("schedules", 2, b"vid1-online", None, (("dormice.origin", b"schedules/2/18"),)),
    ]
    assert [each.topic for each in plan(schedule())] == ["online-videos", "schedules"]


def test_a_tombstone_stops_the_message_of_its_key() -> None:
    """One that was written after sending counts as the record after its schedule, so it never stops a newer one.

    While its message may be ending, it is left alone.
    """
    tombstone = schedule(None)._replace(offset=30)
    sent = tombstone._replace(headers=plan(schedule())[-1].headers)
    replayed = sent._replace(headers=(("dormice.replay-of", b"x/0/0"), *sent.headers))

    assert read(tombstone) == Delivery("topic", "vid1-online", "schedules/2", 30)
    assert read(sent) == Delivery("topic", "vid1-online", "schedules/2", 18)
    assert [is_own_tombstone(each, WRITTEN_AT + 1) for each in (tombstone, sent, replayed)] == [False, True, False]
    assert not is_own_tombstone(sent, WRITTEN_AT + 100)


def test_a_schedule_from_before_is_left_to_who_had_to_send_it() -> None:
    """It stops what an older record of its key asked for, as its scheduler forgets that; nothing is sent or deleted."""
    due_at = datetime.fromtimestamp(WRITTEN_AT + 3600, UTC)

    assert read(schedule(), due_since=due_at).envelope is not None
    assert read(schedule(), due_since=due_at + timedelta(seconds=1)) == Delivery(
        "topic", "vid1-online", "schedules/2", 17
    )


def test_a_schedule_without_a_target_key_is_sent_without_a_key() -> None:
    """Its scheduler does so for a header that is absent or null; an empty one is an empty key."""
    assert plan(schedule(scheduler_target_key=None))[0].key is None
    assert plan(schedule()._replace(headers=(*HEADERS.items(), ("scheduler-target-key", None))))[0].key == b"vid1"
    assert plan(schedule(scheduler_target_key=b""))[0].key == b""


@pytest.mark.parametrize("value", [b"", b"\x00\xff", b"{", "ü".encode(), b'{"id": "x"}'])
def test_any_value_is_sent_as_it_is(value: bytes) -> None:
    """It need not be JSON, and a CloudEvent is sent on, not read."""
    event = {"ce_specversion": b"1.0", "ce_id": b"e", "ce_type": b"x", "ce_source": b"/s"}

    assert plan(schedule(value))[0].value == value
    assert plan(schedule(value, **event))[0].value == value


def test_of_two_headers_with_one_name_the_first_counts() -> None:
    """As their scheduler has it; both are sent on, in their order."""
    twice = schedule()._replace(headers=(*HEADERS.items(), *HEADERS.items(), ("scheduler-target-topic", b"other")))

    assert plan(twice)[0].topic == "online-videos"
    assert plan(twice)[0].headers[: len(twice.headers)] == twice.headers


def test_a_replayed_schedule_counts_as_the_first_one() -> None:
    """What a replay adds to its headers is not sent on."""
    added = {"dormice.replay-of": b"letters/0/0", "dormice.origin": b"schedules/2/3", "dormice.attempts": b"1"}
    replayed = schedule()._replace(headers=(*HEADERS.items(), *added.items()))

    assert (read(replayed).source, read(replayed).offset) == ("schedules/2", 3)
    assert plan(replayed)[0].headers[:-3] == tuple(HEADERS.items())
    assert plan(replayed)[-1].headers == (("dormice.origin", b"schedules/2/4"),)


@pytest.mark.parametrize(
    ("epoch", "grace", "is_sent"),
    [
        (WRITTEN_AT - 86400, None, True),
        (WRITTEN_AT, timedelta(0), True),
        (WRITTEN_AT - 1, timedelta(0), False),
        (WRITTEN_AT - 1, timedelta(seconds=1), True),
        (WRITTEN_AT - 2, timedelta(seconds=1), False),
    ],
)
def test_a_late_schedule_is_sent_or_deleted_by_its_grace(epoch: int, grace: timedelta | None, *, is_sent: bool) -> None:
    """Late is what lay before its record when that was written, in whole seconds; so a replay decides alike."""
    found = plan(schedule(scheduler_epoch=b"%d" % epoch), grace=grace, history_topic="history")

    assert [each.topic for each in found] == (["online-videos", "history", "schedules"] if is_sent else ["schedules"])
    assert (found[-1].key, found[-1].value) == (b"vid1-online", None)


@pytest.mark.parametrize(
    ("given_record", "error_class", "sentence"),
    [
        (
            schedule(scheduler_epoch=None),
            "MissingField",
            "scheduler-epoch: is missing; every schedule needs this header",
        ),
        (
            schedule(scheduler_epoch=b"soon"),
            "InvalidField",
            "scheduler-epoch: is 'soon'; give whole seconds since 1970",
        ),
        (schedule(scheduler_epoch=b"1795294800000"), "InvalidField", "scheduler-epoch: is '1795294800000'; give whole"),
        (schedule(scheduler_epoch=b"-1"), "InvalidField", "scheduler-epoch: is '-1'; give"),
        (schedule(scheduler_epoch=b"0"), "InvalidField", "scheduler-epoch: is '0'; give"),
        (schedule(scheduler_epoch=b"\xff"), "NotUtf8", "scheduler-epoch: is not UTF-8 text (byte 1)"),
        (schedule(scheduler_epoch=b"9999999999"), "InvalidField", "scheduled_at: is 2286-11-20"),
        (schedule(scheduler_target_topic=None), "MissingField", "scheduler-target-topic: is missing"),
        (schedule(scheduler_target_topic=b""), "InvalidField", "scheduler-target-topic: is '', which is no name of a"),
        (schedule(scheduler_target_topic=b"a/b"), "InvalidField", "scheduler-target-topic: is 'a/b', which is no name"),
        (schedule(scheduler_target_topic=b"schedules"), "InvalidField", "scheduler-target-topic: is the topic of the"),
        (schedule(key=None), "MissingKey", "key: is null"),
        (schedule(None, key=None), "MissingKey", "key: is null"),
        (schedule(key=b""), "InvalidField", "id: is empty"),
        (schedule(key=b"\xff"), "NotUtf8", "key: is not UTF-8 text"),
        (schedule(b"x" * 1000), "TooLarge", "payload: is "),
    ],
)
def test_a_schedule_that_can_not_be_kept_says_why(given_record: Record, error_class: str, sentence: str) -> None:
    """In one sentence that names the header."""
    with pytest.raises(DeadRecord) as caught:
        read(given_record)

    assert caught.value.error_class == error_class
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("kind", "mapping", "sentence"),
    [
        ("topic", {"id_from": "key"}, "--id-from: can't be used with --format scheduler-headers, whose headers say"),
        ("topic", {"delay_from": None, "scheduled_at_from": "/at"}, "--scheduled-at-from: can't be used with --format"),
        ("header:k", {}, "--kind: is header 'k', but with --format scheduler-headers it must be a kind"),
        ("Topic", {}, "--kind: is 'Topic'; use lower-case letters"),
    ],
)
def test_a_mapping_of_schedules_is_refused(kind: str, mapping: dict[str, str | None], sentence: str) -> None:
    """Their headers have their meaning already."""
    with pytest.raises(InvalidSetting) as caught:
        FormatOptions.of_schedules(kind, ScheduleOptions(), **mapping)

    assert str(caught.value).startswith(sentence)


RAW = st.none() | st.binary(max_size=20) | st.text(max_size=5).map(str.encode)
HEADER_LISTS = st.lists(st.tuples(st.sampled_from(["a", "b", "scheduler-epoch"]), RAW), max_size=4).map(tuple)
NAMES = st.sampled_from(["a", "b.c", "D-1"])
PLANS = st.builds(RecordPlan, NAMES, st.none() | st.integers(0, 9), RAW, RAW, HEADER_LISTS)


@given(st.lists(PLANS, min_size=1, max_size=4))
def test_a_payload_gives_the_records_it_was_made_of(plans: list[RecordPlan]) -> None:
    """Whatever they share with the first."""
    assert read_plans(to_payload(plans)) == plans


@given(RAW, RAW, st.lists(st.tuples(st.sampled_from([*HEADERS, "x"]), RAW), max_size=6).map(tuple))
def test_any_record_is_a_schedule_or_dead(value: bytes | None, key: bytes | None, headers: Pairs) -> None:
    """No bytes lead to another error, and what is sent is what came."""
    given_record = schedule(value, key)._replace(headers=(*headers, *HEADERS.items()))
    try:
        found = read(given_record)
    except DeadRecord:
        return
    assert (found.envelope is None) == (value is None)
    if value is not None:
        sent = plan(given_record)[0]
        assert (sent.value, sent.headers[:-3]) == (value, given_record.headers)
