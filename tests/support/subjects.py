"""Subjects: messages under test, started, steered and asked in the same words whatever their encoding."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from shared.messages.encoding import Pack
from shared.messages.message import ENDS
from shared.messages.placement import pack_index, pack_workflow_id, workflow_id
from shared.messages.signals import SIGNAL_NAMES, Signal
from shared.temporal.connect import is_transient
from starter.control import Control

ENCODINGS = ("solo", "pack")
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))
"""Two packs, which run what they hold when it is due."""

END_SECONDS = 45.0


def declare(encoding: str, kind: str, pack: Pack = PACK) -> dict[str, Pack]:
    """Give what the handler of a kind would declare for an encoding."""
    return {kind: pack} if encoding == "pack" else {}


@dataclass(frozen=True, slots=True)
class Subject:
    """One message: `send` goes through control, all else straight to the workflow that the message lives in."""

    client: Client
    control: Control
    encoding: str
    kind: str
    id: str

    @property
    def is_packed(self) -> bool:
        """It shares its workflow with others."""
        return self.encoding == "pack"

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """The workflow that it lives in."""
        index = pack_index(self.id, PACK.packs)
        name = pack_workflow_id(self.kind, index) if self.is_packed else workflow_id(self.kind, self.id)
        return self.client.get_workflow_handle(name)

    def neighbours(self, count: int) -> list[str]:
        """Name some more messages for the same pack; where each has its own workflow there are none."""
        index = pack_index(self.id, PACK.packs)
        found = (name for n in itertools.count() if pack_index(name := f"{self.id}-{n}", PACK.packs) == index)
        return list(itertools.islice(found, count)) if self.is_packed else []

    async def send(self, signal: Signal) -> None:
        """Send a signal as everybody should."""
        await self.control.send(self.kind, self.id, signal)

    async def send_from_sdk(self, signal: Signal) -> None:
        """Send a signal with nothing but Temporal's own client."""
        wire = {"ids": [self.id], **asdict(signal)} if self.is_packed else signal
        await self.handle.signal(SIGNAL_NAMES[type(signal)], wire)

    async def status(self) -> dict[str, Any]:
        """Ask where it stands."""
        return await self._ask("status")

    async def explain(self) -> list[dict[str, Any]]:
        """Ask for its last decisions, oldest first."""
        return (await self._ask("explain"))["decisions"]

    async def has(self, **expected: Any) -> bool:
        """Tell whether its status shows all the expected values."""
        found = await self.status()
        return all(found[key] == value for key, value in expected.items())

    async def wait_ended(self) -> dict[str, Any]:
        """Wait until it has ended; gives state, version and result, or raises TimeoutError."""
        async with asyncio.timeout(END_SECONDS):
            if not self.is_packed:
                return await self.handle.result()
            while True:
                found = await self.status()
                if found["state"] in ENDS:
                    return {name: found[name] for name in ("state", "version", "result")}
                await asyncio.sleep(0.05)

    async def _ask(self, query: str) -> dict[str, Any]:
        arguments = [self.id] if self.is_packed else []
        answer: dict[str, Any] | None = None

        async with asyncio.timeout(END_SECONDS):
            while True:
                try:
                    answer = await self.handle.query(query, args=arguments)
                    break
                except RPCError as exc:
                    # a server under load lets a query run out of time, and has no answer before a failed task is tried
                    # again; both can be asked again
                    if not is_transient(exc) and exc.status is not RPCStatusCode.FAILED_PRECONDITION:
                        raise
                    await asyncio.sleep(0.05)

        assert answer is not None, f"pack {self.handle.id} does not know {self.id}"
        return answer


async def names(*pairs: tuple[str, str]) -> AsyncIterator[tuple[str, str]]:
    """Give (kind, id) pairs as a stream."""
    for pair in pairs:
        yield pair
