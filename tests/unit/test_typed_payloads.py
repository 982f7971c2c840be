"""Typed payloads: what a model reads, writes and refuses, and where messages enter, without a server."""

import importlib
import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NoReturn

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf
from typing_extensions import TypedDict

from activities import Again, Context, Done, Message, handler
from activities.api.outcome import to_outcome
from activities.api.payload import InvalidPayload, PayloadModel, make_model
from shared.errors import InvalidEnvelope, InvalidHandler, InvalidOutcome
from shared.messages.envelope import parse_envelope, parse_envelope_fast
from shared.messages.message import REASON_MAX
from spark.prepare.validator import Validator
from spark.source.raw_rows import LineReader
from starter.files.load import Load, LoadOptions
from starter.files.mapping import RowMapping
from starter.files.rows import RowSource
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.record import DeadRecord, Record
from starter.starting.delivery import Delivery
from tests.support.orders import BAD, GOOD, OLD, PRICE, PROBLEM, Item, Order, make_rules, read_older

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@dataclass
class Visit:
    """A payload as a dataclass."""

    at: datetime
    cost: Decimal = Decimal(1)


class Place(TypedDict):
    """A payload as a typed dictionary."""

    at: datetime


class Strict(BaseModel):
    """A payload that converts nothing, and knows its fields by other names."""

    model_config = ConfigDict(strict=True, extra="forbid")

    at: datetime = Field(alias="dueAt")


def model_of(payload: Any, before: Any = None) -> PayloadModel:
    """Give the model of a handler with such payloads."""
    model = make_model("handler 'a'", payload, before)
    assert model is not None
    return model


@pytest.mark.parametrize(
    ("payload", "stored", "wanted"),
    [
        (Order, GOOD, Order(items=[Item(price=2)])),
        (Visit, {"at": "2026-12-01T12:00:00Z", "cost": "0.1"}, Visit(NOON, Decimal("0.1"))),
        (Place, {"at": "2026-12-01T12:00:00Z"}, {"at": NOON}),
        (Strict, {"dueAt": "2026-12-01T12:00:00Z"}, Strict(dueAt=NOON)),
        (list[int], [1, 2**70], [1, 2**70]),
    ],
)
def test_a_handler_gets_what_it_declares_and_may_give_it_back(payload: Any, stored: Any, wanted: Any) -> None:
    """Of each sort of type; what is written is plain JSON, and is read as the same again."""
    model = model_of(payload)
    found = model.read(stored)
    outcome = to_outcome(Again(after=timedelta(1), payload=found), 4096, model)

    assert found == wanted
    assert model.read(json.loads(json.dumps(outcome.payload))) == wanted


@pytest.mark.parametrize(
    ("payload", "stored", "sentence"),
    [
        (Order, BAD, "payload.items.0.price: should be greater than 0"),
        (Order, {}, "payload.items: is missing"),
        (Order, None, "payload: should be an object"),
        (Strict, {"dueAt": "2026-12-01T12:00:00Z", "at": 1}, "payload.at: is no field of Strict"),
        (Place, {"at": "noon"}, "payload.at: should be a valid datetime or date, input is too short"),
    ],
)
def test_what_does_not_fit_is_told_by_its_field(payload: Any, stored: Any, sentence: str) -> None:
    """With what is wrong and what to do."""
    with pytest.raises(InvalidPayload) as caught:
        model_of(payload).read(stored)

    assert str(caught.value) == (
        f"{sentence}; replace it with 'dormice revise', or let before= of its handler read it; then 'dormice now'"
    )


def test_the_next_step_is_kept_however_much_is_wrong() -> None:
    """A reason holds 300 characters, and a field's name may come from the sender."""
    with pytest.raises(InvalidPayload) as caught:
        model_of(dict[str, int]).read({"\n" + "long" * 200: "x"})

    assert len(str(caught.value)) <= REASON_MAX
    assert str(caught.value).endswith("then 'dormice now'")
    assert len(str(caught.value).splitlines()) == 1


def test_what_an_older_model_wrote_is_read_by_before() -> None:
    """Only what the model can't read reaches it, as a copy; what it gives is checked too."""
    asked: list[Any] = []

    def read_older(old: Any) -> Any:
        asked.append(dict(old))
        return {"items": [{"price": old.pop("price")}]}

    model = model_of(Order, read_older)
    old = dict(OLD)

    assert model.read(GOOD) == model.read(old) == Order(items=[Item(price=2)])
    assert asked == [OLD]
    assert old == OLD
    with pytest.raises(InvalidPayload, match=r"payload.items: is missing, and before= raised KeyError: 'price';"):
        model.read({})
    with pytest.raises(InvalidPayload, match=r"is missing, and after before= payload.items.0.price: should be greater"):
        model.read({"price": -1})


def fail(_: Any) -> NoReturn:
    """Be a validator that is wrong itself."""
    raise RuntimeError("broken\nhere")


def test_a_validator_that_fails_is_a_flaw_like_others() -> None:
    """Whatever it raises; nothing comes through to whoever checks many payloads."""
    for model in (model_of(Annotated[int, BeforeValidator(fail)]), model_of(Order, fail)):
        with pytest.raises(InvalidPayload, match="raised RuntimeError: broken;"):
            model.read(1)


@pytest.mark.parametrize(
    ("returned", "phrase"),
    [
        (object(), "the returned payload is no Order and no JSON (pydantic_core"),
        (BAD, "the returned payload could not be read again, payload.items.0.price: should be greater than 0"),
        (Order.model_construct(items=[Item.model_construct(price=-1.0)]), "payload.items.0.price: should be greater"),
        (OLD, "payload.items: is missing"),
        (Order(items=[Item(price=1)] * 9), "is 151 bytes of JSON, the limit is 99"),
    ],
)
def test_a_returned_payload_that_could_not_be_read_again_is_no_outcome(returned: Any, phrase: str) -> None:
    """It is told at once and not at the next call; `before` is for what older models wrote."""
    with pytest.raises(InvalidOutcome) as caught:
        to_outcome(Again(after=timedelta(1), payload=returned), 99, model_of(Order, read_older))

    assert phrase in str(caught.value)


def test_a_model_without_a_schema_is_listed_as_one_that_takes_anything() -> None:
    """Others are described by the names that a sender writes."""
    assert [*model_of(InstanceOf[InvalidPayload]).describe()] == ["$comment"]
    assert model_of(Strict).describe()["required"] == ["dueAt"]


class Undefined(BaseModel):
    """A model that is not complete."""

    other: "Later"  # pyright: ignore[reportUndefinedVariable] # noqa: F821 — what is tested


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"payload": Undefined}, "payload=Undefined is unusable (pydantic.errors.PydanticUndefinedAnnotation: name"),
        ({"payload": object()}, "is unusable (pydantic.errors.PydanticSchemaGenerationError:"),
        ({"payload": fail}, "is a function; give a pydantic model, a dataclass or a TypedDict"),
        ({"before": fail}, "before= is given without payload="),
        ({"payload": Order, "before": 3}, "before=3 is no function; give one from old to new JSON"),
    ],
)
def test_an_unusable_model_is_refused_at_import(options: dict[str, Any], phrase: str) -> None:
    """By the sentence that an unusable lane gets."""
    with pytest.raises(InvalidHandler) as caught:

        @handler("a", **options)
        async def run(message: Message, ctx: Context) -> Done: ...

    assert str(caught.value).startswith("handler 'a': ")
    assert phrase in str(caught.value)


def test_an_envelope_is_checked_by_the_model_of_its_kind() -> None:
    """On the ordinary way and on the other; its payload stays as it was sent, also one of an older form."""
    rules = make_rules()

    for payload in (GOOD, OLD):
        for read in (parse_envelope, parse_envelope_fast):
            envelope = read({"kind": "order", "id": "1", "payload": payload}, rules)
            assert envelope is not None
            assert envelope.payload == payload
    assert parse_envelope_fast({"kind": "order", "id": "1", "payload": BAD}, rules) is None
    assert parse_envelope({"kind": "any", "id": "1", "payload": BAD}, rules).payload == BAD
    with pytest.raises(InvalidEnvelope) as caught:
        parse_envelope({"kind": "order", "id": "1", "payload": BAD}, rules)
    assert (caught.value.field, caught.value.problem) == (PRICE, f"{PROBLEM}; correct it")


def test_a_record_that_does_not_fit_is_dead() -> None:
    """By field and reason; a tombstone, which has no payload, is none."""
    values = [json.dumps({"kind": "order", "id": "1", "payload": payload}).encode() for payload in (GOOD, BAD)]
    records = [Record("orders", 0, offset, 0, b"order:1", value) for offset, value in enumerate([*values, None])]
    good, bad, tombstone = Formats(FormatOptions(), make_rules()).decode_many(records)

    assert isinstance(good, Delivery)
    assert isinstance(tombstone, Delivery)
    assert tombstone.envelope is None
    assert isinstance(bad, DeadRecord)
    assert (bad.error_class, bad.field, bad.reason) == ("InvalidField", PRICE, f"{PROBLEM}; correct it")


async def test_a_row_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    """As one with another flaw is, by line and field."""
    rows = [{"id": "1", "payload": GOOD}, {"id": "2", "payload": BAD}, {"id": "3", "payload": OLD}, {"id": "4"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with RowSource(str(tmp_path / "a.jsonl"), None, RowMapping(FormatOptions(kind="order"))) as source:
        load = Load(source, LoadOptions(rules=make_rules(), rejects=tmp_path / "rejects"))
        await load.run(None)
    rejects = [json.loads(line) for line in (tmp_path / "rejects").read_text().splitlines()]

    assert load.summary.valid == 2
    assert [(entry["line"], entry["field"]) for entry in rejects] == [(2, PRICE), (4, "payload")]


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Path]:
    """A folder that only one process knows, with the handlers' module; nothing of it stays behind."""
    (tmp_path / "shipped_orders.py").write_text(
        Path(__file__).parents[1].joinpath("support", "orders.py").read_text("utf-8")
    )
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("shipped_orders", None)


def send(folder: Path) -> bytes:
    """Pickle what a task does, as by a process that finds the handlers in a folder; forget folder and handlers."""
    sys.path.append(str(folder))
    orders: Any = importlib.import_module("shipped_orders")
    sent = pickle.dumps(Validator(LineReader({("a", 0): 0}, RowMapping()), orders.make_rules(), NOON, timedelta(0)))
    sys.path.remove(str(folder))
    del sys.modules["shipped_orders"]
    return sent


def test_a_task_of_spark_checks_by_the_model_that_it_imports(shipped: Path) -> None:
    """It finds the handler where the driver has found it; one that can't import it says so in a sentence."""
    arrow: Any = pytest.importorskip("pyarrow")
    values = [json.dumps({"kind": "order", "id": str(n), "payload": p}).encode() for n, p in enumerate((GOOD, BAD))]
    rows = arrow.RecordBatch.from_pydict({"file": ["a", "a"], "block": [0, 0], "value": values})
    sent = send(shipped)

    judged = pickle.loads(sent).validate([rows])  # noqa: S301 — made above
    assert [(row["id"], row["field"]) for batch in judged for row in batch.to_pylist()] == [("0", None), (None, PRICE)]

    del sys.modules["shipped_orders"]
    (shipped / "shipped_orders.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(InvalidHandler, match="kind 'order': shipped_orders can't be imported"):
        list(pickle.loads(sent).validate([rows]))  # noqa: S301 — made above
