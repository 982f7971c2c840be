"""Steers one message with nothing but Temporal's own SDK: reschedules it, then prints what it says of itself."""

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode


@dataclass(frozen=True)
class Place:
    """Where a message lives; `ids` is empty for a message with a workflow of its own."""

    handle: WorkflowHandle[Any, Any]
    ids: list[str]


async def find(client: Client, kind: str, message_id: str) -> Place:
    """Find the workflow; packed kinds keep the number of their packs in the memo of the workflow "kind~"."""
    try:
        described = await client.get_workflow_handle(f"{kind}~").describe()
    except RPCError as exc:
        if exc.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Place(client.get_workflow_handle(f"{kind}:{message_id}"), [])
    layout: dict[str, Any] = (await described.memo())["layout"]
    return Place(client.get_workflow_handle(f"{kind}~{pack_index(message_id, layout['packs'])}"), [message_id])


def pack_index(message_id: str, packs: int) -> int:
    """Return the pack of an id by linear hashing of the first 8 bytes of BLAKE2b, as dormice does it."""
    key = int.from_bytes(hashlib.blake2b(message_id.encode(), digest_size=8).digest(), "big")
    bits = packs.bit_length()
    index = key % 2**bits
    return index if index < packs else index - 2 ** (bits - 1)


async def reschedule(place: Place, due_at: str, reason: str) -> None:
    """Send the signal; a pack is told which of its messages are meant."""
    ids = {"ids": place.ids} if place.ids else {}
    await place.handle.signal("reschedule", {**ids, "due_at": due_at, "reason": reason})


async def status(place: Place) -> dict[str, Any] | None:
    """Ask the message itself, which takes a worker; None when its pack does not know it."""
    return await place.handle.query("status", args=place.ids)


async def main(kind: str, message_id: str, due_at: str) -> None:
    """Connect as Temporal's environment variables say."""
    connection: Any = ClientConfig.load_client_connect_config()
    client = await Client.connect(**connection)
    place = await find(client, kind, message_id)
    await reschedule(place, due_at, "asked from Python")
    print(json.dumps(await status(place)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # not by the interpreter's own exit: https://github.com/temporalio/sdk-python/issues/300
