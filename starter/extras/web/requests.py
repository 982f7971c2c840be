"""Requests: reads what a caller has sent, within limits of size and time; raises Problem for what can't be used."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request

from shared.errors import MessageNotFound
from shared.messages.envelope import ID_MAX_BYTES, check_dots
from shared.messages.json_value import parse_json
from shared.messages.timespan import parse_moment
from starter.extras.web.documents import find_api
from starter.extras.web.problems import Problem
from starter.extras.web.tokens import Access
from starter.steering.message_view import unknown_message
from starter.steering.selection import Selection

KEY_HEADER = "Idempotency-Key"
BODY_SECONDS = 10.0
BODY_EXTRA_BYTES = 16_384
"""What a body may have beside the largest payload."""
LIMIT_MAX = 1000
PART_BYTES = 65_536
"""Most that is unpacked of a body before it is looked at: little data may stand for very much."""
_GZIP_MAGIC = b"\x1f\x8b"  # no text begins so
_GZIP_BITS = 16 + zlib.MAX_WBITS  # zlib's way to ask for gzip's header
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # a string of RFC 8941
_FILTERS = ("kind", "lane", "state", "due_before")
_TRUTH = {"true": True, "false": False}


def find_path(request: Request) -> str:
    """Give the path as it was sent; starlette's own `url` is made with the Host header, which may hold another."""
    return request.scope["path"]


def find_address(request: Request) -> str:
    """Give the path with its query, for a link to the same view."""
    query = request.scope["query_string"].decode("latin-1")
    return f"{find_path(request)}?{query}" if query else find_path(request)


def find_access(request: Request) -> Access:
    """Give what this caller may do."""
    return request.scope["access"]


def read_part(request: Request, name: str) -> str:
    """Read a part of the path, which the router leaves as it was sent."""
    try:
        return unquote(request.path_params[name], errors="strict")
    except UnicodeDecodeError as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{name}: is not UTF-8; encode the path as UTF-8", name) from exc


def read_name(request: Request) -> tuple[str, str]:
    """Read the kind and id of the path, of a message that this caller may know of."""
    kind = read_part(request, "kind")
    message_id = read_part(request, "id")
    find_access(request).check_kind(kind)
    try:
        check_dots(message_id)
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"id: {exc}", "id") from exc
    return kind, message_id


async def read_object(request: Request, payload_max_bytes: int, *, is_optional: bool = False) -> dict[str, Any]:
    """Read a body that is one JSON object; where it is optional, none at all is an empty object."""
    body = await read_body(request, payload_max_bytes + BODY_EXTRA_BYTES)
    if not body.strip():
        if is_optional:
            return {}
        # as from an upload whose file was empty
        raise Problem(HTTPStatus.BAD_REQUEST, "body: is empty; send one JSON object, {} for one without fields", "body")

    check_media_type(request, "application/json")
    try:
        value = parse_json(body)
    except ValueError as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, f"body: {exc}; send one JSON object", "body") from exc

    if not isinstance(value, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "body: is no JSON object; send one", "body")
    return cast("dict[str, Any]", value)


def check_media_type(request: Request, *wanted: str) -> None:
    """Raise Problem for a body of another type: a form of a browser's page may not pass for JSON."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in wanted:
        sentence = f"Content-Type: is {given[:60]!r}; send {' or '.join(wanted)}"
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence, "Content-Type")


async def read_body(request: Request, maximum: int) -> bytes:
    """Read a body of at most so many bytes."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in read_parts(request):
                body += part
                if len(body) > maximum:
                    sentence = f"body: has more than {maximum} bytes; keep bulk data elsewhere"
                    raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence, "body")
    except TimeoutError as exc:
        sentence = f"body: did not come within {BODY_SECONDS:.0f} s; send it again"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, sentence, "body") from exc
    except ClientDisconnect as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, "body: the caller hung up", "body") from exc

    return bytes(body)


async def read_parts(request: Request) -> AsyncIterator[bytes]:
    """Give the parts of a body as they come, unpacked if they are gzip; raises Problem and ClientDisconnect."""
    unpacker = _Unpacker() if has_gzip(request) else None
    is_first = True
    async for part in request.stream():
        if unpacker is None:
            if is_first and part.startswith(_GZIP_MAGIC):
                sentence = "body: is packed; send it with Content-Encoding: gzip"
                raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence, "Content-Encoding")
            is_first = False
            yield part
            continue

        for unpacked in unpacker.unpack(part):
            yield unpacked
            # a small part may hold very much, and others are at work beside this
            await asyncio.sleep(0)

    if unpacker is not None and not unpacker.is_complete:
        raise Problem(HTTPStatus.BAD_REQUEST, "body: ends within its gzip data; send it again, whole", "body")


def has_gzip(request: Request) -> bool:
    """Return whether a body comes as gzip; raises Problem for any other coding."""
    codings = [
        each.strip().lower() for value in request.headers.getlist("Content-Encoding") for each in value.split(",")
    ]
    match [each for each in codings if each not in ("", "identity")]:
        case []:
            return False
        case ["gzip" | "x-gzip"]:
            return True
        case _:
            sentence = f"Content-Encoding: is {', '.join(codings)[:60]!r}; send gzip, or leave it out"
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence, "Content-Encoding")


class _Unpacker:
    """Unpacks gzip part by part, also several files one after the other."""

    def __init__(self) -> None:
        self._file = zlib.decompressobj(_GZIP_BITS)
        self._is_fresh = True

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return self._is_fresh or self._file.eof

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """Give what a part of the body holds, in parts of at most PART_BYTES."""
        while True:
            if self._file.eof:
                if not data:
                    return
                self._file = zlib.decompressobj(_GZIP_BITS)
            unpacked = self._advance(data)
            data = self._file.unused_data if self._file.eof else self._file.unconsumed_tail
            if unpacked:
                yield unpacked
            elif not data:
                return

    def _advance(self, data: bytes) -> bytes:
        self._is_fresh = self._is_fresh and not data
        try:
            return self._file.decompress(data, PART_BYTES)
        except zlib.error as exc:
            raise Problem(HTTPStatus.BAD_REQUEST, f"body: can't be read as gzip ({exc}); pack it anew", "body") from exc


def read_query(request: Request, known: Collection[str]) -> dict[str, str]:
    """Read the parameters of the address, each at most once."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            sentence = f"{name[:60]}: is no parameter here; use {', '.join(known) or 'none'}"
            raise Problem(HTTPStatus.BAD_REQUEST, sentence, name[:60])
        if name in found:
            raise Problem(HTTPStatus.BAD_REQUEST, f"{name}: is given twice; leave one out", name)
        found[name] = value
    return found


def read_key(request: Request) -> str:
    """Read the idempotency key, in quotes as its draft has it or without; empty for none."""
    given = request.headers.getlist(KEY_HEADER)
    if not given:
        return ""
    if len(given) > 1:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{KEY_HEADER}: is given twice; leave one out", KEY_HEADER)

    text = given[0]
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        text = "" if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    if not (0 < len(text) <= ID_MAX_BYTES and text.isascii() and text.isprintable()):
        flaw = f'is {given[0][:60]!r}; write 1 to {ID_MAX_BYTES} characters of ASCII, such as k1 or "k1"'
        raise Problem(HTTPStatus.BAD_REQUEST, f"{KEY_HEADER}: {flaw}", KEY_HEADER)
    return text


def read_flag(query: Mapping[str, str], name: str, default: bool) -> bool:  # noqa: FBT001 — read by position everywhere
    """Read a parameter that is true or false."""
    if (text := query.get(name)) is None:
        return default
    if text not in _TRUTH:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{name}: is {text[:60]!r}; write true or false", name)
    return _TRUTH[text]


def read_number(query: Mapping[str, str], name: str, default: int | None, minimum: int, maximum: int) -> int | None:
    """Read a parameter that is a whole number within bounds."""
    if (text := query.get(name)) is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 19) or not minimum <= int(text) <= maximum:
        raise Problem(
            HTTPStatus.BAD_REQUEST, f"{name}: is {text[:60]!r}; give a whole number from {minimum} to {maximum}", name
        )
    return int(text)


def read_moment(query: Mapping[str, str], name: str) -> datetime | None:
    """Read a parameter that is a moment, as the command line takes it."""
    if (text := query.get(name)) is None:
        return None
    try:
        return parse_moment(text[:60])
    except ValueError as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{name}: {exc}", name) from exc


async def check_owner(request: Request, kind: str, message_id: str, *, is_new_fine: bool = False) -> None:
    """Raise the same MessageNotFound for a message of another tenant as for one that there is not.

    With `is_new_fine` the caller may start it: then one that there is not is fine, and so is one that has ended.
    """
    tenants = find_access(request).tenants
    if tenants is None:
        return

    try:
        owner = await find_api(request).control.views.find_owner(kind, message_id)
    except MessageNotFound:
        if not is_new_fine:
            raise
        return

    is_free = is_new_fine and owner.has_ended
    if not is_free and owner.tenant not in tenants:
        raise unknown_message(kind, message_id)


def check_unlimited(request: Request) -> None:
    """Raise Problem where a token for some kinds or tenants would see what concerns all."""
    if find_access(request).is_limited:
        raise Problem(HTTPStatus.FORBIDDEN, "this is about all messages, and this token for some; use another one")


def read_selection(request: Request, *others: str) -> tuple[Selection, dict[str, str]]:
    """Read a filter that this caller may use, and the other parameters."""
    query = read_query(request, (*_FILTERS, *others))
    selection = Selection(
        kind=query.get("kind"),
        lane=query.get("lane"),
        state=query.get("state"),
        due_before=read_moment(query, "due_before"),
    )
    try:
        selection.to_query()
    except ValueError as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, str(exc).removeprefix("--"), str(exc)[2:].partition(" ")[0]) from exc

    find_access(request).check_whole(selection.kind)
    return selection, query
