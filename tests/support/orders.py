"""Handlers with typed payloads, for the tests of where messages enter and for Spark's tasks, which import them."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, Field

from activities import Again, Context, Message, handler
from activities.registry import Registry, envelope_rules
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings


class Item(BaseModel):
    """One thing that is bought."""

    price: float = Field(gt=0)


class Order(BaseModel):
    """What the payloads of these handlers are."""

    items: list[Item]
    reminders: int = 0


def read_older(old: dict[str, Any]) -> dict[str, Any]:
    """Orders had one price before they had items."""
    return {"items": [{"price": old.pop("price")}]}


@handler("order", payload=Order, before=read_older)
async def remind(message: Message, ctx: Context) -> Again:
    """Count the reminders."""
    order: Order = message.payload
    order.reminders += 1
    return Again(after=timedelta(days=1), payload=order)


@handler("any")
async def take_any(message: Message, ctx: Context) -> Again:
    """Take any payload."""
    return Again(after=timedelta(days=1))


GOOD: Any = {"items": [{"price": 2}]}
OLD: Any = {"price": 2}
BAD: Any = {"items": [{"price": -2}]}
PRICE = "payload.items.0.price"
PROBLEM = "should be greater than 0, and before= raised KeyError: 'price'"


def make_rules(payload_max_bytes: int = 4096) -> EnvelopeRules:
    """Give the rules of an installation with these two handlers."""
    registry = Registry([(__name__, remind), (__name__, take_any)])
    return envelope_rules(Settings(payload_max_bytes=payload_max_bytes), registry)
