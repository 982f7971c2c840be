"""Chunks: new messages of packed kinds, gathered by pack, so that one call to the server starts many."""

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.enums.v1 import WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RawValue

from shared.lanes import task_queue
from shared.messages.json_value import encode_json
from shared.messages.message import SERIAL
from shared.messages.placement import PACK_WORKFLOW, Layout, pack_workflow_id
from shared.packs.entry import CHUNK_BYTES_MAX, ID, Entry, to_heading
from shared.settings import Settings
from shared.temporal.connect import to_raw, to_raw_bytes
from shared.temporal.search_attributes import pack_attributes_at_start
from starter.starting.start_request import REQUEST_NAMESPACE, index_request

ADMIT = "admit"

Tag = TypeVar("Tag")


@dataclass(slots=True)
class Chunk(Generic[Tag]):
    """Messages that go to one pack in one call."""

    layout: Layout
    index: int
    begun_at: float = field(default_factory=time.monotonic)
    tags: list[Tag] = field(default_factory=list)
    names: bytearray = field(default_factory=bytearray)
    """The ids, one a line: in one buffer they take a quarter of the memory."""
    body: bytearray = field(default_factory=bytearray)
    """The entries as JSON, in one buffer too, because orjson leaves 4 KB unused behind each result."""

    @property
    def is_full(self) -> bool:
        """The signal has no room for more, or a pack that begins with this chunk would be full."""
        return len(self.body) >= CHUNK_BYTES_MAX or len(self.tags) >= self.layout.size

    @property
    def ids(self) -> list[str]:
        """The messages' ids, in order."""
        return self.names.decode().split("\n") if self.tags else []  # no id holds a control character

    def add(self, tag: Tag, entry: Entry) -> None:
        """Add a message."""
        if self.tags:
            self.body += b","
            self.names += b"\n"
        self.body += encode_json(entry)
        self.names += entry[ID].encode()
        self.tags.append(tag)

    def token(self, session: str) -> str:
        """Give the id of this chunk, the same for each retry within a session."""
        return uuid.uuid5(REQUEST_NAMESPACE, f"{session}|{self.layout.kind}~{self.index}|{self.names.decode()}").hex


class ChunkBuffer(Generic[Tag]):
    """Gathers messages until the chunk of a pack is full, or `room` messages are held: then the oldest chunk goes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._chunks: dict[tuple[str, int], Chunk[Tag]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Count the buffered messages."""
        return self._count

    def add(self, layout: Layout, index: int, tag: Tag, entry: Entry) -> Chunk[Tag] | None:
        """Add a message of a pack; returns the chunk that must be sent now, if there is one."""
        key = (layout.kind, index)
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = Chunk(layout, index)
        chunk.add(tag, entry)
        self._count += 1
        if chunk.is_full:
            return self._take(key)
        if self._count >= self._room:
            return self._take(next(iter(self._chunks)))
        return None

    def take_old(self, begun_by: float) -> Iterator[Chunk[Tag]]:
        """Yield the chunks that were begun by a monotonic time, oldest first."""
        while self._chunks and self._chunks[key := next(iter(self._chunks))].begun_at <= begun_by:
            yield self._take(key)

    def take_all(self) -> Iterator[Chunk[Tag]]:
        """Yield all chunks buffered now; those that fill up and are sent meanwhile are skipped.

        Packs that were sent a chunk last come first: a worker may still have them in its cache.
        """
        for key in reversed(list(self._chunks)):
            if key in self._chunks:
                yield self._take(key)

    def _take(self, key: tuple[str, int]) -> Chunk[Tag]:
        chunk = self._chunks.pop(key)
        self._count -= len(chunk.tags)
        return chunk


async def build_admit_request(
    client: Client, settings: Settings, chunk: Chunk[Any], *, token: str, flags: Iterable[str]
) -> SignalWithStartWorkflowExecutionRequest:
    """Build the one call that sends a chunk to its pack, and starts the pack if it does not exist yet.

    `flags` are `restarts` and `revises`, see `workflows.packs.state.PackState.admit`.
    """
    layout = chunk.layout
    wire: dict[str, Any] = {
        "token": token,
        "packs": layout.packs,
        "size": layout.size,
        "coalesce": layout.coalesce,
        "sent_at": time.time(),
    }
    wire |= dict.fromkeys(flags, True)
    # each entry was encoded once, when it was counted
    argument = encode_json(wire)[:-1] + b',"entries":[' + chunk.body + b"]}"
    request = await build_pack_request(
        client, settings, layout, chunk.index, signal=ADMIT, argument=to_raw_bytes(argument)
    )
    request.request_id = token
    return request


async def build_pack_request(
    client: Client, settings: Settings, layout: Layout, index: int, *, signal: str, argument: dict[str, Any] | RawValue
) -> SignalWithStartWorkflowExecutionRequest:
    """Build the call that signals a pack, and starts it empty if it does not exist yet."""
    request = SignalWithStartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=pack_workflow_id(layout.kind, index),
        workflow_type=WorkflowType(name=PACK_WORKFLOW),
        task_queue=TaskQueue(name=task_queue(settings.task_queue_prefix, layout.lane)),
        identity=client.identity,
        request_id=uuid.uuid4().hex,
        workflow_task_timeout=Duration(seconds=round(settings.workflow_task_timeout.total_seconds())),
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        signal_name=signal,
    )
    empty = to_heading(
        layout.kind,
        layout.lane,
        index=index,
        packs=layout.packs,
        size=layout.size,
        coalesce=layout.coalesce,
        payload_max_bytes=settings.payload_max_bytes,
    )
    first, second = await client.data_converter.encode([empty, argument])
    request.input.payloads.append(first)
    request.signal_input.payloads.append(second)
    index_request(request, pack_attributes_at_start(layout.kind, layout.lane))
    request.memo.fields[SERIAL].CopyFrom(to_raw(1).payload)  # the memo stays, whatever version runs the pack later
    return request
