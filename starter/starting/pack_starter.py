"""The pack starter: sends chunks of messages to their packs and reads the outcome of each message."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import RetryLater
from shared.messages.json_value import decode_json, encode_json
from shared.messages.placement import pack_index, pack_workflow_id
from shared.packs.counts import FIRST, count_due, count_entries
from shared.packs.entry import STATE_BYTES_MAX
from shared.settings import Settings
from shared.temporal.backoff import Patience
from shared.temporal.connect import to_raw_bytes
from starter.starting.calls import RetryingCaller
from starter.starting.chunks import Chunk
from starter.starting.layouts import Layouts
from starter.starting.queries import NO_ANSWER, HistoryRoom, query
from starter.starting.receipts import KEY_REUSED, ChunkReceipts, StartOutcome, Tag, to_refusal
from starter.starting.start_request import build_pack_request
from workflows.packs.requests.receipts import CROWDING, FULL, KNOWN, MOVED_BY, REUSED, REVISED, STOPPED

ADMIT = "admit"

FULL_FACTOR = 2
"""A full pack can't say how much more would come to it: its kind gets twice as many packs."""

_Outcomes = dict[int, tuple[StartOutcome, str]]
"""Outcome and reason of each message of a chunk that was not simply started, by its position."""

_FULL = (StartOutcome.FAILED, "its pack is full")


@dataclass(frozen=True, slots=True)
class _Answer:
    outcomes: _Outcomes
    attempts: int = 1
    run_id: str = ""


class PackStarter:
    """Sends a chunk in one durable call, then queries the pack for the outcomes unless the call created the pack.

    With `layouts` it asks for more packs where one is crowded, and sends again what a full pack has not taken, for as
    long as the setting `patience` allows. Without, a full pack refuses.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        caller: RetryingCaller,
        *,
        restarts_finished: bool,
        revises: bool,
        layouts: Layouts | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._caller = caller
        self._layouts = layouts
        # see `workflows.packs.state.PackState.admit`
        self._flags = {name: True for name, is_set in (("restarts", restarts_finished), ("revises", revises)) if is_set}
        known = StartOutcome.IGNORED if revises else StartOutcome.ALREADY_RUNNING
        self._outcomes = {
            KNOWN: (known, ""),
            STOPPED: (StartOutcome.STOPPED, ""),
            REVISED: (StartOutcome.REVISED, ""),
            REUSED: (StartOutcome.REJECTED, KEY_REUSED),
        }
        self._room = HistoryRoom(client, settings)
        self._begun = set[str]()  # packs that this process knows to exist

    async def admit(self, chunk: Chunk[Tag], session: str) -> ChunkReceipts[Tag]:
        """Start the messages of a chunk and give their receipts; a retry within a session changes nothing."""
        patience = Patience(self._settings.patience)
        answer = await self._admit_once(chunk, session)

        while full := [position for position, outcome in answer.outcomes.items() if outcome is _FULL]:
            if self._layouts is None or patience.is_over:
                break

            await patience.wait()
            # under a token of its own: the pack would only repeat what it said of the last one
            again = await self._admit_once(chunk.pick(full), f"{session}/{patience.attempts}")

            for position in full:
                del answer.outcomes[position]
            answer.outcomes.update((full[position], outcome) for position, outcome in again.outcomes.items())

        return self._make_receipts(chunk, answer)

    async def _admit_once(self, chunk: Chunk[Any], session: str) -> "_Answer":
        everyone = range(len(chunk.tags))
        if obstacle := await self._room.find_obstacle(chunk.layout, chunk.index):
            return _Answer(dict.fromkeys(everyone, (StartOutcome.FAILED, obstacle)))

        token = chunk.token(session)
        request = await self._build_request(chunk, token)
        send = self._client.workflow_service.signal_with_start_workflow_execution
        answer, attempts = await self._caller.call_service(send, request)
        if isinstance(answer, RPCError):
            refusal = to_refusal(answer, None, "", attempts)
            return _Answer(dict.fromkeys(everyone, (refusal.outcome, refusal.reason)), attempts)

        self._begun.add(pack_workflow_id(chunk.layout.kind, chunk.index))
        # an empty pack takes so much, even if nothing compresses; of more it has to be asked what it took
        if answer.started and len(chunk.body) <= STATE_BYTES_MAX:
            repeated = dict.fromkeys(_find_repeated(chunk.ids), self._outcomes[KNOWN])
            return _Answer(repeated, attempts, answer.run_id)
        return _Answer(await self._query_outcomes(chunk, token), attempts, answer.run_id)

    def _make_receipts(self, chunk: Chunk[Tag], answer: "_Answer") -> ChunkReceipts[Tag]:
        name = pack_workflow_id(chunk.layout.kind, chunk.index)
        if self._layouts is None:
            advice = f"spread the kind over more packs: dormice repack {chunk.layout.kind} --packs N"
            refusal = (StartOutcome.REJECTED, f"its pack {name} is full; {advice}")
        else:
            waited = f"and its kind has not got more packs within {self._settings.patience}"
            refusal = (StartOutcome.FAILED, f"its pack {name} is full, {waited}; see 'dormice doctor', and try again")

        outcomes = {position: refusal if outcome is _FULL else outcome for position, outcome in answer.outcomes.items()}
        return ChunkReceipts(
            kind=chunk.layout.kind,
            ids=chunk.ids,
            tags=chunk.tags,
            run_id=answer.run_id,
            attempts=answer.attempts,
            others=outcomes,
        )

    async def _build_request(self, chunk: Chunk[Any], token: str) -> SignalWithStartWorkflowExecutionRequest:
        layout = chunk.layout
        now = time.time()
        wire = {"token": token, **layout.sizes, "sent_at": now, **self._flags}
        # each entry was encoded once, when it was counted
        encoded = encode_json(wire)[:-1] + b',"entries":[' + chunk.body + b"]}"
        argument = to_raw_bytes(encoded)
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

    async def _query_outcomes(self, chunk: Chunk[Any], token: str) -> _Outcomes:
        everyone = range(len(chunk.tags))
        try:
            return await self._find_outcomes(chunk, chunk.index, token, everyone)
        except RetryLater as exc:
            return dict.fromkeys(everyone, (StartOutcome.FAILED, str(exc)))

    async def _find_outcomes(self, chunk: Chunk[Any], index: int, token: str, positions: Sequence[int]) -> _Outcomes:
        """Query the pack, and the packs to which it has forwarded messages that moved there; raises RetryLater."""
        receipt = await self._query_receipt(pack_workflow_id(chunk.layout.kind, index), token)
        if CROWDING in receipt and self._layouts is not None:
            crowding = receipt[CROWDING] * (FULL_FACTOR if FULL in receipt else 1)
            with contextlib.suppress(RetryLater):  # whoever starts the next message asks again
                await self._layouts.ask_for_room(chunk.layout, crowding)

        outcomes: _Outcomes = {positions[int(n)]: (StartOutcome.REJECTED, why) for n, why in receipt["refused"].items()}
        outcomes |= {positions[int(n)]: _FULL for n in receipt.get(FULL, ())}
        for name, outcome in self._outcomes.items():
            outcomes |= {positions[n]: outcome for n in receipt.get(name, ())}

        if MOVED_BY in receipt:
            left = [position for position in positions if position not in outcomes]
            for other, part in _group_by_pack(chunk.ids, left, receipt[MOVED_BY]).items():
                if other != index:
                    outcomes |= await self._find_outcomes(chunk, other, token, part)
        return outcomes

    async def _query_receipt(self, name: str, token: str) -> dict[str, Any]:
        pack = self._client.get_workflow_handle(name)
        patience = Patience(self._settings.patience)

        while True:
            try:
                if (receipt := await query(pack, "receipt", token)) is not None:
                    return receipt
            except NO_ANSWER:
                if queue := await self._room.look(name):
                    unserved = f"no worker serves its pack {name} (task queue {queue})"
                    raise RetryLater(f"{unserved}, which has it and will take it in") from None

            if patience.is_over:
                span = self._settings.patience
                raise RetryLater(f"its pack {name} has it, but did not tell within {span} what became of it")

            await patience.wait()


def _group_by_pack(ids: Sequence[str], positions: Sequence[int], packs: int) -> dict[int, list[int]]:
    """Group positions by the pack that has their message when there are so many."""
    groups: dict[int, list[int]] = {}
    for position in positions:
        groups.setdefault(pack_index(ids[position], packs), []).append(position)
    return groups


def _find_repeated(ids: list[str]) -> list[int]:
    if len(set(ids)) == len(ids):  # nearly always
        return []
    first: dict[str, int] = {}
    return [position for position, message_id in enumerate(ids) if first.setdefault(message_id, position) != position]
