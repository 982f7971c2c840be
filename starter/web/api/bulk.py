"""Bulk over HTTP: a message a line in, a receipt a line out, read only as fast as the server takes the messages."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from activities.registry import declared_packs, envelope_rules
from shared.errors import DormiceError, InvalidEnvelope, MessageNotFound, RetryLater
from shared.messages.envelope import Envelope, parse_envelope
from shared.messages.json_value import encode_json
from starter.starting.bulk import BulkStarter
from starter.starting.delivery import Delivery
from starter.starting.receipts import Receipt, StartOutcome
from starter.web.api.openapi import JSON_VALUE, TEXT, Operation, Parameter
from starter.web.documents import find_api
from starter.web.problems import Problem, to_problem
from starter.web.requests import (
    BODY_EXTRA_BYTES,
    check_media_type,
    check_owner,
    find_access,
    has_gzip,
    read_flag,
    read_parts,
    read_query,
)
from starter.web.tokens import Access

MEDIA_TYPES = ("application/x-ndjson", "application/jsonl")
SILENCE_SECONDS = 60.0
"""How long a caller may send nothing before the stream is ended."""
SPOOL_BYTES = 4_000_000
READ_BYTES = 65_536
LOOKED_UP_AT_ONCE = 20
"""Messages of which it is looked up at once whose they are."""


class _Tag(NamedTuple):
    """A line's number, the kind and id that it names, and whether its message is due at once."""

    line: int
    kind: str
    id: str
    is_due: bool

    @property
    def name(self) -> tuple[str, str]:
        return self.kind, self.id


def list_operations() -> list[Operation]:
    """Give the operation."""
    meaning = "change messages that are alive, and start anew those that have finished"
    upsert = Parameter("upsert", meaning, {"type": "boolean"})
    key = Parameter("Idempotency-Key", "the same key and lines never do this twice", TEXT, "header")
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


class BulkStream:
    """One stream of messages: its lines, the starter that they go to, and the receipts that come back."""

    def __init__(self, request: Request, *, is_upsert: bool) -> None:
        api, self._access = find_api(request), find_access(request)
        self._request = request
        self._rules = envelope_rules(api.settings, api.registry)
        self._line_max_bytes = api.settings.payload_max_bytes + BODY_EXTRA_BYTES
        self._is_upsert = is_upsert
        self._key = request.headers.get("Idempotency-Key", "")
        self._starter = BulkStarter(
            api.client,
            api.settings,
            encodings=declared_packs(api.registry),
            revises=is_upsert,
            restarts_finished=not is_upsert and not self._key,
            session=self._key or None,
        )
        self._spool = ReceiptSpool()
        self._under_way = set[tuple[str, str]]()
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
            async for receipts in self._starter.start_groups(self._read_wishes()):
                alive = [each.tag for each in receipts if each.outcome is StartOutcome.ALREADY_RUNNING]
                refused = await self._refuse_foreign(alive)
                for receipt in receipts:
                    self._under_way.discard(receipt.tag.name)
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
        document: dict[str, Any] = {"line": tag.line, "kind": tag.kind, "id": tag.id, "outcome": receipt.outcome.value}
        if receipt.has_taken:
            document["is_due_now"] = tag.is_due
        if receipt.reason:
            document["reason"] = receipt.reason
        self._spool.write(document)

    async def _read_wishes(self) -> AsyncIterator[tuple[_Tag, Envelope | Delivery]]:
        number = 0
        async for lines in self._read_lines():
            envelopes = dict[_Tag, Envelope]()
            for line in lines:
                number += 1
                if line.strip() and (envelope := self._read_line(number, line)) is not None:
                    tag = _Tag(number, envelope.kind, envelope.id, envelope.is_due(datetime.now(UTC)))
                    envelopes[tag] = envelope
            # an upsert changes what it finds, so it has to be known before whose that is
            refused = await self._refuse_foreign(envelopes) if self._is_upsert else {}
            for tag, envelope in envelopes.items():
                if tag in refused:
                    self._under_way.discard(tag.name)
                    self._take(refused[tag])
                    continue
                key = self._key and f"{self._key}:{tag.line}"
                yield tag, Delivery.of_upsert(envelope, key) if self._is_upsert else envelope

    def _read_line(self, number: int, line: bytes) -> Envelope | None:
        """Read a line; None for one that has its receipt already."""
        try:
            envelope = self._check(line)
        except InvalidEnvelope as exc:
            self._spool.write({"line": number, "outcome": "rejected", "field": exc.field, "reason": exc.problem})
            return None
        tag = _Tag(number, envelope.kind, envelope.id, envelope.is_due(datetime.now(UTC)))
        if not self._is_upsert and tag.name in self._under_way:  # the earlier line is the one that counts
            self._take(Receipt(tag, "", StartOutcome.ALREADY_RUNNING))
            return None
        self._under_way.add(tag.name)
        return envelope

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
        if self._is_upsert and (envelope.kind, envelope.id) in self._under_way:
            raise InvalidEnvelope("id", "is that of an earlier line, still under way; send it again afterwards")
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
                sentence = "the caller sent nothing any more; send the lines without a receipt again"
                self._problem = Problem(HTTPStatus.REQUEST_TIMEOUT, sentence)
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


def _check_access(access: Access, envelope: Envelope) -> None:
    try:
        access.check_kind(envelope.kind)
        access.check_tenant(envelope.tenant)
    except Problem as problem:
        raise InvalidEnvelope(problem.field, problem.detail.partition(": ")[2]) from problem
