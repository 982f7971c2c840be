"""Limits per key: calls are spread as declared in both encodings, over all workers, and nothing stands still."""

import asyncio
import time
from collections import Counter
from datetime import timedelta

from temporalio.client import Client

from activities import Context, Done, Message, handler
from activities.api.handler import Handler
from activities.api.limit import Limit
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.subjects import declare


class Site:
    """What is called under a limit; `calls` holds each call's moment, key and message."""

    def __init__(self, kind: str, limit: Limit, takes: float = 0.0) -> None:
        self.kind, self.limit, self.takes = kind, limit, takes
        self.calls: list[tuple[float, str, str]] = []
        self.at_work: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def handler(self, lane: str = "short") -> Handler:
        """Make a handler under the limit."""

        @handler(self.kind, lane=lane, limit=self.limit)
        async def visit(message: Message, ctx: Context) -> Done:
            key = message.payload
            self.calls.append((time.time(), key, message.id))
            self.at_work[key] += 1
            self.most[key] = max(self.most[key], self.at_work[key])
            await asyncio.sleep(self.takes)
            self.at_work[key] -= 1
            return Done()

        return visit


async def _start(
    client: Client, settings: Settings, kind: str, encoding: str, keys: dict[str, str], lane: str = "short"
) -> None:
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind))
    stream = ((name, Envelope(kind=kind, id=name, lane=lane, payload=key)) for name, key in keys.items())
    async for _ in starter.start_all(stream):
        pass


async def test_calls_of_a_key_begin_at_its_rate_and_those_of_other_keys_at_once(
    client: Client, settings: Settings, serve: Serve, kind: str, encoding: str, message_id
) -> None:
    """No window holds more than the limit and what it lets through in the grace; each message runs once."""
    period = 2.0
    site = Site(kind, Limit(key=lambda message: message.payload, per=(8, timedelta(seconds=period))))
    busy = {message_id(): "busy" for _ in range(30)}
    others = {message_id(): f"other-{n}" for n in range(10)} | {message_id(): "" for _ in range(10)}
    await _start(client, settings, kind, encoding, busy | others)
    begun = time.time()
    async with serve(site.handler(), lanes=("short",)):
        await wait_until(lambda: len(site.calls) >= 50, "all have run")
    print([round(at - begun, 2) for at, key, _ in site.calls if key == "busy"])
    assert Counter(name for _, _, name in site.calls) == Counter([*busy, *others])
