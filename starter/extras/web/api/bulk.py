"""Bulk over HTTP: a message a line in, a receipt a line out, read only as fast as the server takes the messages."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from activities.registry import declared_packs, envelope_rules
from shared.errors import DormiceError, IdempotencyKeyReused, InvalidEnvelope, MessageNotFound, RetryLater
from shared.messages.envelope import Envelope, parse_envelope
from shared.messages.json_value import encode_json
from starter.extras.web.api.openapi import JSON_VALUE, TEXT, Operation, Parameter
from starter.extras.web.documents import find_api
from starter.extras.web.problems import Problem, to_problem
from starter.extras.web.requests import (
    BODY_EXTRA_BYTES,
    KEY_HEADER,
    check_media_type,
    check_owner,
    find_access,
    has_gzip,
    read_flag,
    read_key,
    read_parts,
    read_query,
)
from starter.extras.web.tokens import Access
from starter.starting.bulk import BulkStarter
from starter.starting.delivery import Delivery
from starter.starting.receipts import Receipt, StartOutcome

MEDIA_TYPES = ("application/x-ndjson", "application/jsonl")
SILENCE_SECONDS = 60.0
"""How long a caller may send nothing before the stream is ended."""
SPOOL_BYTES = 4_000_000
READ_BYTES = 65_536
_LINE_BREAK = "\n"  # no header holds one
SEND_AGAIN = f"send the whole body again, with the same {KEY_HEADER} if it had one"
LOOKED_UP_AT_ONCE = 20
"""Messages of which it is looked up at once whose they are."""


class _Tag(NamedTuple):
    """A line's number, the kind and id that it names, its idempotency key, and whether its message is due at once."""

    line: int
    kind: str
    id: str
    key: str
    is_due: bool

    @property
    def name(self) -> tuple[str, str]:
        return self.kind, self.id


def list_operations() -> list[Operation]:
    """Give the operation."""
    meaning = "change messages that are alive, and start anew those that have finished"
    upsert = Parameter("upsert", meaning, {"type": "boolean"})
    key = Parameter(KEY_HEADER, "the same key and body never do this twice", TEXT, "header")

    return [
        Operation(
            method="POST",
            path="/v1/messages:bulk",
            endpoint=start_messages,
            summary="start or upsert a message a line, and answer with a receipt a line, in any order",
            parameters=(upsert, key),
            body={"type": "array", "items": JSON_VALUE, "description": "messages as JSON, one a line"},
            body_type=MEDIA_TYPES[0],
            is_body_optional=True,
            answers={200: "receipts, one a line; a last line with `problem` says that the rest was not read"},
            answer_type=MEDIA_TYPES[0],
        )
    ]


async def start_messages(request: Request) -> Response:
    """Start or upsert messages."""
    is_upsert = read_flag(read_query(request, ("upsert",)), "upsert", False)
    check_media_type(request, *MEDIA_TYPES)
    has_gzip(request)
    receipts = BulkStream(request, is_upsert=is_upsert).run()
    return ReceiptResponse(receipts, HTTPStatus.OK.value, {"Cache-Control": "no-store"}, MEDIA_TYPES[0])


class ReceiptResponse(StreamingResponse):
    """Receipts as they come, while the body is still being read.

    Starlette's own response listens for the caller's leaving, and so takes parts of the body away from whoever reads
    it: https://github.com/encode/starlette/discussions/2215. Here that reader learns that the caller has left.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 — ASGI's signature
        """Send all parts."""
        await self.stream_response(send)


class ReceiptSpool:
    """Receipts on their way out, beyond some in a file: callers that send all before they read must not block."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 — closed by `read`
        self._written = 0
        self._is_over = False
        self._changed = asyncio.Event()

    def write(self, document: dict[str, Any]) -> None:
        """Add a line."""
        self._file.seek(self._written)
        self._written += self._file.write(encode_json(document) + b"\n")
        self._changed.set()

    def end(self) -> None:
        """Nothing follows."""
        self._is_over = True
        self._changed.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Give what is written, as it comes."""
        begin = 0
        with self._file:
            while True:
                self._changed.clear()
                while begin < self._written:
                    self._file.seek(begin)
                    part = self._file.read(min(READ_BYTES, self._written - begin))
                    begin += len(part)
                    yield part
                if self._is_over:
                    return
                await self._changed.wait()


class _LineNames:
    """Gives each line a key of its own, by the key of its request and how often its message came before.

    So the same body has the same keys again, whatever was taken of it, and another body under its key is found out.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._seen = set[int]()  # hashes, which take a third of what names would take
        self._repeated = Counter[int]()

    def name(self, envelope: Envelope) -> Envelope:
        """Give an envelope with its key; one that has a key keeps it."""
        if not self.key or envelope.idempotency_key:
            return envelope

        message = hash((envelope.kind, envelope.id))
        if message in self._seen:
            self._repeated[message] += 1
        self._seen.add(message)
        key = self.key
        if message in self._repeated:
            key += f"{_LINE_BREAK}{self._repeated[message]}"
        return envelope.model_copy(update={"idempotency_key": key})


class _LineOrder:
    """Lets lines of one message take effect one after the other, and none once an earlier one was not taken."""

    def __init__(self) -> None:
        self._under_way = set[tuple[str, str]]()
        self._lost = dict[tuple[str, str], int]()
        self._changed = asyncio.Event()

    def is_under_way(self, tag: _Tag) -> bool:
        """Whether an earlier line of the same message has no receipt yet."""
        return tag.name in self._under_way

    async def wait_for(self, tag: _Tag) -> None:
        """Wait until all earlier lines of the same message have their receipts."""
        while tag.name in self._under_way:
            self._changed.clear()
            await self._changed.wait()

    def begin(self, tag: _Tag) -> str:
        """Note that a line is under way; says why it can't be, if an earlier one of its message was not taken."""
        if (line := self._lost.get(tag.name)) is not None:
            return f"line {line} of the same message was not taken; correct that one, then {SEND_AGAIN}"
        self._under_way.add(tag.name)
        return ""

    def end(self, tag: _Tag, outcome: StartOutcome) -> None:
        """Note the outcome of a line."""
        self._under_way.discard(tag.name)
        if outcome in (StartOutcome.REJECTED, StartOutcome.FAILED):
            self._lost.setdefault(tag.name, tag.line)
        self._changed.set()


class BulkStream:
    """One stream of messages: its lines, the starter that they go to, and the receipts that come back."""

    def __init__(self, request: Request, *, is_upsert: bool) -> None:
        api = find_api(request)
        self._access = find_access(request)
        self._request = request
        self._rules = envelope_rules(api.settings, api.registry)
        self._line_max_bytes = api.settings.payload_max_bytes + BODY_EXTRA_BYTES
        self._is_upsert = is_upsert
        self._names = _LineNames(read_key(request))
        self._starter = BulkStarter(
            api.client,
            api.settings,
            encodings=declared_packs(api.registry),
            revises=is_upsert,
            restarts_finished=not is_upsert and not self._names.key,
        )
        self._spool = ReceiptSpool()
        self._order = _LineOrder()
        self._problem: Problem | None = None

    async def run(self) -> AsyncIterator[bytes]:
        """Give the receipts; when the caller hangs up, what is under way is dropped."""
        starting = asyncio.create_task(self._start())
        try:
            async for part in self._spool.read():
                yield part
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def _start(self) -> None:
        try:
            async for receipts in self._starter.start_groups(self._read_requests()):
                known = [each.tag for each in receipts if each.outcome is StartOutcome.ALREADY_RUNNING or each.field]
                refused = await self._refuse_foreign(known)
                for receipt in receipts:
                    self._take(refused.get(receipt.tag, receipt))
        except DormiceError as exc:
            self._problem = to_problem(exc)
        finally:
            if self._problem is not None:
                problem = {"status": self._problem.status.value, "detail": self._problem.detail}
                self._spool.write({"problem": problem | {"field": self._problem.field}})
            self._spool.end()

    def _take(self, receipt: Receipt[_Tag]) -> None:
        tag = receipt.tag
        self._order.end(tag, receipt.outcome)
        document: dict[str, Any] = {"line": tag.line, "kind": tag.kind, "id": tag.id, "outcome": receipt.outcome.value}
        if receipt.has_taken:
            document["is_due_now"] = tag.is_due

        if receipt.field:
            reused = IdempotencyKeyReused(tag.key.partition(_LINE_BREAK)[0])
            document |= {"field": reused.field, "reason": reused.problem}
        elif receipt.reason:
            document["reason"] = receipt.reason

        self._spool.write(document)

    async def _read_requests(self) -> AsyncIterator[tuple[_Tag, Envelope | Delivery]]:
        number = 0
        async for lines in self._read_lines():
            envelopes = dict[_Tag, Envelope]()
            for line in lines:
                number += 1
                if not line.strip() or (envelope := self._read_line(number, line)) is None:
                    continue

                tag = _Tag(number, envelope.kind, envelope.id, envelope.idempotency_key, _is_due(envelope))
                if self._order.is_under_way(tag):
                    async for given in self._give(envelopes):
                        yield given
                    envelopes.clear()
                    await self._order.wait_for(tag)

                if sentence := self._order.begin(tag):
                    self._take(Receipt(tag, "", StartOutcome.FAILED, reason=sentence))
                else:
                    envelopes[tag] = envelope

            async for given in self._give(envelopes):
                yield given

    async def _give(self, envelopes: Mapping[_Tag, Envelope]) -> AsyncIterator[tuple[_Tag, Envelope | Delivery]]:
        # an upsert changes what it finds, so it has to be known before whose that is
        refused = await self._refuse_foreign(envelopes) if self._is_upsert else {}
        for tag, envelope in envelopes.items():
            if tag in refused:
                self._take(refused[tag])
            elif self._is_upsert:
                yield tag, Delivery.of_upsert(envelope)
            else:
                yield tag, envelope

    def _read_line(self, number: int, line: bytes) -> Envelope | None:
        """Read a line; None for one that has its receipt already."""
        try:
            return self._names.name(self._check(line))
        except InvalidEnvelope as exc:
            self._spool.write({"line": number, "outcome": "rejected", "field": exc.field, "reason": exc.problem})
            return None

    async def _refuse_foreign(self, tags: Collection[_Tag]) -> dict[_Tag, Receipt[_Tag]]:
        """Give receipts for messages of other tenants, as if there were none, and for those nobody tells of now."""
        if self._access.tenants is None:
            return {}
        room = asyncio.Semaphore(LOOKED_UP_AT_ONCE)

        async def look(tag: _Tag) -> Receipt[_Tag] | None:
            try:
                async with room:
                    await check_owner(self._request, tag.kind, tag.id, is_new_fine=self._is_upsert)
            except MessageNotFound as exc:
                return Receipt(tag, "", StartOutcome.REJECTED, reason=str(exc))
            except RetryLater as exc:
                return Receipt(tag, "", StartOutcome.FAILED, reason=str(exc))
            return None

        found = await asyncio.gather(*map(look, tags))
        return {receipt.tag: receipt for receipt in found if receipt is not None}

    def _check(self, line: bytes) -> Envelope:
        envelope = parse_envelope(line, self._rules)
        _check_access(self._access, envelope)
        return envelope

    async def _read_lines(self) -> AsyncIterator[list[bytes]]:
        """Give the lines as they come, those of one part of the body together."""
        rest = b""
        parts = aiter(read_parts(self._request))

        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    part = await anext(parts)
            except StopAsyncIteration:
                break
            except (TimeoutError, ClientDisconnect):
                self._problem = Problem(HTTPStatus.REQUEST_TIMEOUT, f"the caller sent nothing any more; {SEND_AGAIN}")
                return
            except Problem as problem:
                self._problem = problem
                return

            *lines, rest = (rest + part).split(b"\n")
            yield lines

            if len(rest) > self._line_max_bytes:
                sentence = f"a line has more than {self._line_max_bytes} bytes; the lines from it on were not read"
                self._problem = Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
                return

        yield [rest]


def _is_due(envelope: Envelope) -> bool:
    return envelope.is_due(datetime.now(UTC))


def _check_access(access: Access, envelope: Envelope) -> None:
    try:
        access.check_kind(envelope.kind)
        access.check_tenant(envelope.tenant)
    except Problem as problem:
        raise InvalidEnvelope(problem.field, problem.detail.partition(": ")[2]) from problem
