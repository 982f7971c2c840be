"""Chunks of a manifest: the same entries in the same packs as an envelope would give, and nothing doubtful in them."""

import importlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.envelope import DOT_IDS, EnvelopeRules, parse_envelope
from shared.messages.json_value import encode_json
from shared.messages.placement import Layout, PackSpread, pack_index
from spark.prepare.manifest import MESSAGES_DDL
from spark.tables import to_batch, to_schema
from spark.tasks.chunks import PLACE, SortedChunks, are_clearly_valid, read_columns, split_by
from spark.tasks.placement import Placement, to_index
from starter.files.columns import Columns
from starter.starting.start_request import encode_first_entries_fast, first_entry
from tests.support.orders import make_rules

arrow: Any = importlib.import_module("pyarrow")

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
RULES = EnvelopeRules({"feed": "medium"}, 100)
LAYOUT = Layout("feed", "short", 50, 1000, 300.0)
DDL = f"{MESSAGES_DDL}, {PLACE} long"
NAMES = tuple(to_schema(MESSAGES_DDL).names[1:])  # without the number of the row

moments = st.datetimes(datetime(2026, 11, 22), datetime(2027, 11, 22)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001 — UTC is added
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
rows = st.fixed_dictionaries(
    {
        "id": texts.filter(lambda text: text not in DOT_IDS),
        "scheduled_at": st.none() | moments,
        "tolerance_seconds": st.just(0.0) | st.floats(0, 3000),
        "priority": st.integers(1, 5),
        "tenant": st.just("") | texts.filter(lambda text: len(text.encode()) <= 64),
        "payload": st.none() | st.recursive(st.integers() | texts, st.lists).map(lambda v: encode_json(v).decode()),
        "correlation_id": st.just("") | texts,
        "lane": st.sampled_from(["short", "medium"]),
    }
)


def batch_of(messages: Iterable[dict[str, Any]]) -> Any:
    """Make a batch of rows that `prepare` might have written; they belong to pack 7."""
    usual = {"row": 1, "kind": "feed", "tolerance_seconds": 0.0, "priority": 3, "tenant": "", "payload": "null"}
    usual |= {
        "correlation_id": "",
        "idempotency_key": "",
        "lane": "short",
        "scheduled_at": None,
        "expires_at": None,
        PLACE: 7,
    }
    schema = to_schema(DDL)
    return to_batch([[(usual | message)[name] for name in schema.names] for message in messages], schema)


@given(st.lists(rows, min_size=1, max_size=5), st.floats(0, 86_400).map(lambda seconds: NOW.timestamp() + seconds))
def test_entries_are_those_of_envelopes(messages: list[dict[str, Any]], now: float) -> None:
    """Whatever a checked row holds, its pack gets the entry that the envelope of the row would give."""
    batch = batch_of(messages)
    spread = PackSpread.of("feed", 7, LAYOUT.coalesce)
    entries = encode_first_entries_fast(read_columns(batch, LAYOUT), now, spread)
    columns = Columns(NAMES, "a test")
    rules = EnvelopeRules(RULES.kinds, 0)

    for row, entry in zip(batch.select(NAMES).to_pylist(), entries, strict=True):
        envelope = parse_envelope(columns.to_fields(list(row.values())), rules)
        expected = first_entry(envelope, now, LAYOUT.lane, spread=spread)
        assert json.loads(entry) == json.loads(encode_json(expected))


@given(st.lists(texts, max_size=20), st.sampled_from([1, 7, 10_000, 5_000_000]))
def test_places_are_those_of_single_messages(ids: list[str], packs: int) -> None:
    """Thousands of ids at once are placed as one is."""
    kinds = ["feed", "news"]
    places = [
        Placement({"feed": packs, "news": 3}).find(arrow.array([kind] * len(ids)), arrow.array(ids, "string"))
        for kind in kinds
    ]

    assert [to_index(place) for place in places[0].to_pylist()] == [pack_index(text, packs) for text in ids]
    assert [to_index(place) for place in places[1].to_pylist()] == [pack_index(text, 3) for text in ids]
    assert not {*places[0].to_pylist()} & {*places[1].to_pylist()}


@pytest.mark.parametrize(
    "damaged",
    [
        {"kind": "nobody"},
        {"kind": None},
        {"id": "a\nb"},
        {"id": None},
        {"id": ".."},
        {"lane": None},
        {"payload": "{"},
        {"payload": "1,2"},
        {"payload": "1],[2"},
        {"payload": "NaN"},
        {"payload": json.dumps("x" * 100)},
        {"scheduled_at": datetime.now(UTC) + timedelta(days=3700)},
    ],
)
def test_a_doubtful_row_is_looked_at_by_itself(damaged: dict[str, Any]) -> None:
    """Nothing that could break the chunk it travels in is sent unseen."""
    fine = [{"id": "a"}, {"id": "b", "payload": '{"a": [1]}'}, {"id": "ä ☃"}]

    assert are_clearly_valid(batch_of(fine), RULES)
    assert not are_clearly_valid(batch_of([*fine, {"id": "c", **damaged}]), RULES)


def test_rows_are_checked_by_the_model_of_their_kind() -> None:
    """A manifest may be older than a model; kinds without one are not looked at."""
    rules = make_rules()
    good = {"id": "a", "payload": '{"price": 1}'}
    bad = {"id": "b", "payload": '{"price": 0}'}
    orders = [{**row, "kind": "order"} for row in (good, bad)]

    assert are_clearly_valid(batch_of([orders[0], {**bad, "kind": "any"}]), rules)
    assert not are_clearly_valid(batch_of(orders), rules)


def test_rows_of_a_pack_share_a_chunk_over_batches() -> None:
    """Only the last chunk is held back, until the next pack begins."""
    given_rows = [{"id": f"m{n}", PLACE: n // 4} for n in range(10)]
    chunks = SortedChunks()
    made = list[Any]()
    for batch in (batch_of(given_rows[:3]), batch_of(given_rows[3:7]), batch_of(given_rows[7:])):
        for place, part in split_by(PLACE, batch):
            made += chunks.add(LAYOUT, place, read_columns(part, LAYOUT))
    assert len(made) == 2
    made += chunks.take_last()

    assert [chunk.index for chunk in made] == [0, 1, 2]
    assert [chunk.ids for chunk in made] == [[f"m{n}" for n in range(10) if n // 4 == pack] for pack in range(3)]
