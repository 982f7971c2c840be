"""The pack starter: sends chunks of messages to their packs and reads the outcome of each message."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError

from shared.errors import RetryLater
from shared.messages.json_value import decode_json, encode_json
from shared.messages.placement import Layout, pack_workflow_id
from shared.packs.counts import FIRST, count_due, count_entries
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, describe_queue, to_raw_bytes
from starter.starting.calls import RetryingCaller
from starter.starting.chunks import Chunk
from starter.starting.queries import NO_ANSWER, is_polled, query
from starter.starting.receipts import ChunkReceipts, StartOutcome, Tag, to_refusal
from starter.starting.start_request import build_pack_request
from workflows.packs.receipts import KNOWN, REVISED, STOPPED

ADMIT = "admit"

ROOM_BYTES, ROOM_EVENTS = 8 * 1024 * 1024, 4_000
"""Whoever repeats a start adds to the history of a pack that no worker serves. By default, the server ends a workflow
with more than 50 MB, and all its messages with it, and refuses signals after 10,000."""

_Fates = dict[int, tuple[StartOutcome, str]]
"""Outcome and reason of each message of a chunk that was not simply started, by its position."""


class PackStarter:
    """Sends a chunk in one durable call, then queries the pack for the outcomes unless the call created the pack."""

    def __init__(
        self, client: Client, settings: Settings, caller: RetryingCaller, *, restarts_finished: bool, revises: bool
    ) -> None:
        self._client = client
        self._settings = settings
        self._caller = caller
        # see `workflows.packs.state.PackState.admit`
        self._flags = {name: True for name, is_set in (("restarts", restarts_finished), ("revises", revises)) if is_set}
        known = StartOutcome.IGNORED if revises else StartOutcome.ALREADY_RUNNING
        self._outcomes = {KNOWN: known, STOPPED: StartOutcome.STOPPED, REVISED: StartOutcome.REVISED}
        self._room = HistoryRoom(client)
        self._begun = set[str]()  # packs that this process knows to exist

    async def admit(self, chunk: Chunk[Tag], session: str) -> ChunkReceipts[Tag]:
        """Start the messages of a chunk and give their receipts; a retry within a session changes nothing."""
        everyone = range(len(chunk.tags))
        if obstacle := await self._room.find_obstacle(pack_workflow_id(chunk.layout.kind, chunk.index)):
            return _to_receipts(chunk, dict.fromkeys(everyone, (StartOutcome.FAILED, obstacle)))
        token = chunk.token(session)
        request = await self._build_request(chunk, token)
        send = self._client.workflow_service.signal_with_start_workflow_execution
        answer, attempts = await self._caller.call_service(send, request)
        if isinstance(answer, RPCError):
            refusal = to_refusal(answer, None, "", attempts)
            return _to_receipts(chunk, dict.fromkeys(everyone, (refusal.outcome, refusal.reason)), attempts)
        self._begun.add(pack_workflow_id(chunk.layout.kind, chunk.index))
        if answer.started:
            repeated = dict.fromkeys(_find_repeated(chunk.ids), (self._outcomes[KNOWN], ""))
            return _to_receipts(chunk, repeated, attempts, answer.run_id)
        return _to_receipts(chunk, await self._query_fates(chunk, token), attempts, answer.run_id)

    async def _build_request(self, chunk: Chunk[Any], token: str) -> SignalWithStartWorkflowExecutionRequest:
        layout = chunk.layout
        now = time.time()
        wire = {"token": token, **layout.sizes, "sent_at": now, **self._flags}
        # each entry was encoded once, when it was counted
        encoded = encode_json(wire)[:-1] + b',"entries":[' + chunk.body + b"]}"
        argument = to_raw_bytes(encoded, is_compressed=self._settings.compress_packs)
        counts: dict[str, Any] | None = None
        if pack_workflow_id(layout.kind, chunk.index) not in self._begun:  # only the call that starts a pack needs them
            if chunk.due is None:
                counts = count_entries(decode_json(b"[" + chunk.body + b"]"), (), layout.lane, now)
            else:
                counts = count_due(chunk.due, now)
            counts[FIRST] = True
        given = (self._client, self._settings, layout, chunk.index)
        request = await build_pack_request(*given, signal=ADMIT, argument=argument, counts=counts)
        request.request_id = token
        return request

    async def _query_fates(self, chunk: Chunk[Any], token: str) -> _Fates:
        everyone = range(len(chunk.tags))
        try:
            return await self._find_fates(chunk.layout, chunk.index, token, everyone)
        except RetryLater as exc:
            return dict.fromkeys(everyone, (StartOutcome.FAILED, str(exc)))

    async def _find_fates(self, layout: Layout, index: int, token: str, positions: Sequence[int]) -> _Fates:
        """Query the pack, and the packs to which it has forwarded messages that moved there; raises RetryLater."""
        receipt = await self._query_receipt(pack_workflow_id(layout.kind, index), token)
        fates: _Fates = {positions[int(n)]: (StartOutcome.REJECTED, why) for n, why in receipt["refused"].items()}
        for name, outcome in self._outcomes.items():
            fates |= {positions[n]: (outcome, "") for n in receipt.get(name, ())}
        moved: dict[str, list[int]] = receipt.get("moved", {})
        for other, part in moved.items():
            fates |= await self._find_fates(layout, int(other), token, [positions[n] for n in part])
        return fates

    async def _query_receipt(self, name: str, token: str) -> dict[str, Any]:
        pack = self._client.get_workflow_handle(name)
        give_up_at, attempts = time.monotonic() + self._settings.patience.total_seconds(), 0
        while True:
            try:
                if (receipt := await query(pack, "receipt", token)) is not None:
                    return receipt
            except NO_ANSWER:
                if queue := await self._room.look(name):
                    unserved = f"no worker serves its pack {name} (task queue {queue})"
                    raise RetryLater(f"{unserved}, which has it and will take it in") from None
            if time.monotonic() >= give_up_at:
                patience = self._settings.patience
                raise RetryLater(f"its pack {name} has it, but did not tell within {patience} what became of it")
            attempts += 1
            await asyncio.sleep(backoff_seconds(attempts))


class HistoryRoom:
    """Remembers the packs that did not answer while their histories were full."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._full: dict[str, str] = {}
        """By workflow id, why nothing more is sent."""

    async def find_obstacle(self, pack_id: str) -> str:
        """Say why nothing more may be sent to a pack; empty if it may. One that was full is asked whether it is now."""
        if pack_id in self._full and not await self.look(pack_id) and pack_id in self._full:
            with contextlib.suppress(*NO_ANSWER):
                await query(self._client.get_workflow_handle(pack_id), "receipt", "")
                self._full.pop(pack_id, None)
        return self._full.get(pack_id, "")

    async def look(self, pack_id: str) -> str:
        """Look at a pack that did not answer; give its task queue if no worker serves it, else an empty text."""
        try:
            described = await self._client.get_workflow_handle(pack_id).describe(rpc_timeout=CALL_TIMEOUT)
            self._note_size(pack_id, described)
            return "" if is_polled(await describe_queue(self._client, described.task_queue)) else described.task_queue
        except RPCError:  # the server does not answer either: nothing is known
            return ""

    def _note_size(self, pack_id: str, described: WorkflowExecutionDescription) -> None:
        size = described.raw_description.workflow_execution_info.history_size_bytes
        if described.close_time is None and (size > ROOM_BYTES or described.history_length > ROOM_EVENTS):
            waiting = f"{described.history_length} events of {size / 1e6:.1f} MB wait for it"
            self._full[pack_id] = f"its pack {pack_id} does not answer; {waiting}, so nothing is added until it does"
        else:
            self._full.pop(pack_id, None)


def _to_receipts(
    chunk: Chunk[Tag], fates: Mapping[int, tuple[StartOutcome, str]], attempts: int = 0, run_id: str = ""
) -> ChunkReceipts[Tag]:
    return ChunkReceipts(
        kind=chunk.layout.kind, ids=chunk.ids, tags=chunk.tags, run_id=run_id, attempts=attempts, others=fates
    )


def _find_repeated(ids: list[str]) -> list[int]:
    if len(set(ids)) == len(ids):  # nearly always
        return []
    first: dict[str, int] = {}
    return [position for position, message_id in enumerate(ids) if first.setdefault(message_id, position) != position]
