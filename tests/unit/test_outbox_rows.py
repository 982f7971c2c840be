"""What a row of an outbox asks for, what its table may be called, and what is said when neither is right."""

from typing import Any

import pytest

from shared.errors import InvalidEnvelope, InvalidSetting
from shared.messages.envelope import Envelope, EnvelopeRules
from starter.extras.outbox.connection import OutboxConnection
from starter.extras.outbox.kind_backoff import REST_SECONDS_MAX, KindBackoff
from starter.extras.outbox.rows import OutboxRow, RowReader
from starter.extras.outbox.table import OutboxTable
from starter.starting.delivery import Delivery

READER = RowReader.of(EnvelopeRules({"order": "short"}, payload_max_bytes=100), "outbox/1")
EMPTY = OutboxRow(7, "start", "order", "a", *[None] * 9)


def row(**fields: Any) -> OutboxRow:
    """Give a row with some fields filled in."""
    return EMPTY._replace(**fields)


def test_a_row_becomes_the_envelope_that_it_describes() -> None:
    """With every field; what it leaves out has its default."""
    filled = row(
        payload='{"n": 1}',
        scheduled_at="2030-01-01T00:00:00+00:00",
        expires_at="2030-01-02T00:00:00+00:00",
        tolerance_seconds=5.0,
        lane="long",
        priority=1,
        tenant="acme",
        correlation_id="c",
    )
    found = READER.read(filled)

    assert isinstance(found, Envelope)
    assert found.model_dump(mode="json", exclude_defaults=True) == {
        "kind": "order",
        "id": "a",
        "lane": "long",
        "scheduled_at": "2030-01-01T00:00:00Z",
        "expires_at": "2030-01-02T00:00:00Z",
        "tolerance_seconds": 5.0,
        "priority": 1,
        "tenant": "acme",
        "payload": {"n": 1},
        "correlation_id": "c",
    }
    assert READER.read(EMPTY) == Envelope(kind="order", id="a", lane="short")


def test_changes_are_deliveries_with_the_rows_number() -> None:
    """So that a message knows a row that comes again."""
    upsert = READER.read(row(action="upsert"))
    stop = READER.read(row(action="stop"))

    assert upsert == Delivery("order", "a", "outbox/1", 7, Envelope(kind="order", id="a", lane="short"))
    assert stop == Delivery("order", "a", "outbox/1", 7)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"action": "delete"}, "action: is 'delete'; write start, upsert, stop"),
        ({"kind": "other"}, "kind: no handler for 'other' is loaded; loaded: order"),
        ({"kind": "other", "action": "stop"}, "kind: no handler for 'other' is loaded; loaded: order"),
        ({"id": ""}, "id: is empty; give 1 to 200 bytes"),
        ({"payload": '{"a": 1, "a": 2}'}, "payload: is ambiguous (the key 'a' is there twice); write plain JSON"),
        ({"payload": f'"{"x" * 99}"'}, "payload: is 101 bytes of JSON, the limit is 100; keep bulk data elsewhere"),
        ({"payload_bytes": 5000}, "payload: is 5000 bytes, the limit is 100; keep bulk data elsewhere"),
        ({"scheduled_at": "infinity"}, "scheduled_at: is 'infinity', not RFC 3339 with an offset; write it like"),
        ({"priority": 9}, "priority: is 9; give a whole number from 1 (first) to 5 (last)"),
    ],
)
def test_a_bad_row_is_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    """Which names the field, and is what its column `problem` will say."""
    with pytest.raises(InvalidEnvelope) as caught:
        READER.read(row(**fields))

    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", "x" * 51, "a\nb"])
def test_a_name_that_no_table_has_is_refused(text: str) -> None:
    """Before anything is sent to the database."""
    with pytest.raises(ValueError, match=r"write NAME or SCHEMA\.NAME"):
        OutboxTable.read(text)


def test_names_are_quoted_in_every_statement() -> None:
    """No name ends a statement."""
    table = OutboxTable.read('s.a"; DROP TABLE b; --')

    statements = (table.ddl.encode(), table.check, table.take, table.delete, table.fail, table.count, table.failed)
    assert all(b'"s"."a""; DROP TABLE b; --"' in statement for statement in statements)


@pytest.mark.parametrize(
    "dsn", ["password=ab secret host=x", "postgresql://u:p@ss:secret@h:1/d", "postgresql://u:p@secret@h/d", "secret"]
)
def test_a_wrong_connection_string_is_not_quoted(dsn: str) -> None:
    """Any part of it may be a part of the password."""
    with pytest.raises(InvalidSetting) as caught:
        OutboxConnection.read(dsn, OutboxTable())

    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_connection_shows_no_password() -> None:
    """Whoever prints it."""
    connection = OutboxConnection.read("postgresql://u:secret@h/d", OutboxTable())

    assert connection.has_password
    assert "secret" not in f"{connection} {connection!r}"


def test_a_kind_that_can_not_be_stored_rests_longer_each_time() -> None:
    """Others do not; once something of it is stored, its rest is short again, and over once nothing is left."""
    backoff = KindBackoff()
    seen = list[float]()
    for _ in range(12):
        backoff.note({"b"}, {"a": 3}, "no worker")
        seen.append(backoff.seconds)

    assert backoff.kinds == ["a"]
    assert backoff.reason == "no worker"
    assert seen[0] <= 0.2 * REST_SECONDS_MAX / 5
    assert REST_SECONDS_MAX / 2 - 1 < seen[-1] <= REST_SECONDS_MAX
    backoff.note({"a"}, {"a": 1}, "slow")
    assert backoff.seconds <= 0.2 * REST_SECONDS_MAX / 5
    backoff.note({"a"}, {}, "")
    assert (backoff.kinds, backoff.reason, backoff.seconds) == ([], "", float("inf"))
