"""Typed payloads beside a server, in both encodings: handlers get models; what does not fit is refused or parked."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from activities.api.handler import Handler
from shared.errors import InvalidEnvelope
from shared.messages.signals import Revise, RunNow
from shared.settings import Settings
from starter.control import Control
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.steering.sender import SignalCounts
from tests.conftest import Begin, Serve, wait_until
from tests.integration.test_control import registry_of
from tests.support.orders import BAD, GOOD, OLD, PRICE, PROBLEM, Item, Order, read_older
from tests.support.subjects import names

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time


@dataclass
class Shop:
    """A handler of orders, and the payloads that it got."""

    handler: Handler
    got: list[Any] = field(default_factory=list[Any])


@pytest.fixture
def shop(kind: str) -> Shop:
    """Orders that come back tomorrow with one reminder more."""

    @handler(kind, payload=Order, before=read_older)
    async def remind(message: Message, ctx: Context) -> Again:
        shop.got.append(message.payload.model_copy())
        message.payload.reminders += 1
        return Again(after=timedelta(days=1), payload=message.payload)

    shop = Shop(remind)
    return shop


@pytest.fixture
async def served(serve: Serve, shop: Shop) -> AsyncIterator[Shop]:
    """The shop beside a worker."""
    async with serve(shop.handler, lanes=("short",)):
        yield shop


async def test_a_handler_gets_its_model_and_gives_it_back(served: Shop, begin: Begin) -> None:
    """What an older model wrote is read before it; what is stored is plain JSON of the present one."""
    message = await begin(served.handler.kind, payload=OLD)
    await wait_until(lambda: message.has(version=1), "the older form was read")
    await message.send(RunNow())
    await wait_until(lambda: message.has(version=2), "its own form was read")

    assert served.got == [Order(items=[Item(price=2)]), Order(items=[Item(price=2)], reminders=1)]
    assert (await message.status())["payload"] == {"items": [{"price": 2.0}], "reminders": 2}


async def test_a_payload_that_can_not_be_read_parks_its_message(served: Shop, begin: Begin) -> None:
    """As from a sender that has not loaded its handler; the reason names field and next step, and that step helps."""
    message = await begin(served.handler.kind, payload=GOOD)
    await wait_until(lambda: message.has(version=1), "it has run")
    await message.send_from_sdk(Revise(BAD))
    await message.send_from_sdk(RunNow())
    await wait_until(lambda: message.has(state="parked"), "the payload is refused")
    reason = (await message.status())["parked_reason"]
    await message.send(Revise(GOOD))
    await message.send(RunNow())
    await wait_until(lambda: message.has(state="active", version=3), "it runs again")

    step = "replace it with 'dormice revise', or let before= of its handler read it; then 'dormice now'"
    assert reason == f"{PRICE}: {PROBLEM}; {step}"
    assert len(served.got) == 2


async def test_senders_are_told_what_does_not_fit(
    client: Client, settings: Settings, shop: Shop, encoding: str, kind: str
) -> None:
    """By `Control` and over HTTP, at a start, an upsert and a revision, before anything is sent."""
    registry = registry_of(shop.handler, encoding)
    control = Control(client, settings, registry)
    installation = Installation(client=client, settings=settings, registry=registry)

    for refused in (
        control.start({"kind": kind, "id": "a", "payload": BAD}),
        control.upsert({"kind": kind, "id": "a", "payload": BAD}),
        control.revise(kind, "a", BAD),
        control.send_to_each(names((kind, "a")), Revise(BAD), SignalCounts()),
    ):
        with pytest.raises(InvalidEnvelope) as caught:
            await refused
        assert str(caught.value) == f"{PRICE}: {PROBLEM}; correct it"
    application = make_application(installation, "1", None, {"127.0.0.1"})
    async with serving(application, "127.0.0.1", 0) as address, httpx.AsyncClient(base_url=address, timeout=60) as api:
        path = f"/v1/messages/{kind}/a"
        answers = [await api.post(path, json={"payload": BAD}), await api.put(path, json={"payload": BAD})]
        answers += [await api.post(f"{path}/revise", json={"payload": BAD})]
        lines = f'{{"kind": "{kind}", "id": "a", "payload": {{"items": [{{"price": -2}}]}}}}'
        bulk = await api.post("/v1/messages:bulk", content=lines, headers={"Content-Type": "application/jsonl"})
    assert [(answer.status_code, answer.json()["field"]) for answer in answers] == [(422, PRICE)] * 3
    assert (bulk.json()["outcome"], bulk.json()["field"]) == ("rejected", PRICE)
