"""The codec server: makes payloads readable over HTTP for Temporal's Web UI and CLI, which have no keys."""

import asyncio
import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads

from shared.errors import InvalidSetting, PayloadKeyMissing
from shared.messages.json_value import encode_json
from shared.temporal.compression import decompress
from shared.temporal.encryption import EncryptionCodec

BODY_MAX_BYTES = 16 * 1024 * 1024
"""Four times the limit of one answer of Temporal's server."""

STALL_SECONDS = 10.0
TOKEN_MIN = 16
FOREIGN = (HTTPStatus.FORBIDDEN, "this origin is not among codec_origins")
UNKNOWN = (HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")

# with the origin, they let a browser's page read the answer
CORS_HEADERS = {
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Namespace",
    "Access-Control-Allow-Private-Network": "true",
    "Vary": "Origin",
}


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who may call: pages of these origins, and whoever has the token; raises InvalidSetting for one to be guessed."""

    token: str
    origins: Collection[str]

    def __post_init__(self) -> None:
        if len(self.token) < TOKEN_MIN:
            problem = "has fewer than 16 characters" if self.token else "is missing"
            flaw = f"codec_token: {problem}"
            remedy = "set DORMICE_CODEC_TOKEN or codec_token_file to what 'openssl rand -hex 24' gives"
            raise InvalidSetting(f"{flaw}; {remedy}")

    def find_flaw(self, origin: str | None, authorization: str, prefix: str) -> tuple[HTTPStatus, str] | None:
        """Give the status and reason to refuse a call with, None to accept it.

        Programs send no origin, and pages can't hide theirs. The token comes as a bearer token, or as the path's
        `prefix`, because the Web UI can't send a token that we choose.
        """
        if origin is not None and origin not in self.origins:
            return FOREIGN

        scheme, _, bearer = authorization.partition(" ")
        given = (bearer.strip() if scheme.lower() == "bearer" else "", prefix)
        # as bytes: compare_digest refuses text that is not ASCII
        known = [hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode()) for text in given]
        return None if any(known) else UNKNOWN


def make_codec_server(address: tuple[str, int], codec: EncryptionCodec, policy: AccessPolicy) -> ThreadingHTTPServer:
    """Open a server of Temporal's remote codec protocol: POST /encode and /decode take and give Payloads as JSON.

    It encrypts and decrypts as the codec does, and expands what is compressed.

    The caller runs `serve_forever`. Raises InvalidSetting when the address can't be had.
    """
    handler = type("Handler", (_Handler,), {"codec": codec, "policy": policy})
    try:
        server = ThreadingHTTPServer(address, handler)
    except OSError as exc:
        flaw = f"--port: {address[0]}:{address[1]} can't be opened ({exc.strerror})"
        raise InvalidSetting(f"{flaw}; choose another --port or --host") from exc

    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    codec: EncryptionCodec
    policy: AccessPolicy
    timeout = STALL_SECONDS  # of the socket: a client that stalls is cut off
    server_version = "dormice"
    sys_version = ""

    def do_OPTIONS(self) -> None:
        """Answer a browser's preflight request: whether a page of this origin may call."""
        if self.headers.get("Origin") in self.policy.origins:
            self._answer(HTTPStatus.NO_CONTENT)
        else:
            self._refuse(*FOREIGN)

    def do_POST(self) -> None:
        """Encode or decode."""
        prefix, _, verb = self.path.partition("?")[0].strip("/").rpartition("/")
        flaw = self.policy.find_flaw(self.headers.get("Origin"), self.headers.get("Authorization", ""), prefix)
        if flaw is not None:
            self._refuse(*flaw)
        elif verb not in ("encode", "decode"):
            self._refuse(HTTPStatus.NOT_FOUND, "there are /encode and /decode")
        elif (length := self._find_length()) is None:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send a Content-Length of at most {BODY_MAX_BYTES:,}")
        else:
            self._convert(verb, self.rfile.read(length))

    def _find_length(self) -> int | None:
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isdecimal() and len(text) < 10 and int(text) <= BODY_MAX_BYTES else None

    def _convert(self, verb: str, body: bytes) -> None:
        try:
            given = Parse(body, Payloads())
            convert = self.codec.encode if verb == "encode" else self._decode
            done = Payloads(payloads=asyncio.run(convert(given.payloads)))
        except (ParseError, UnicodeDecodeError):
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is no JSON of Payloads")
        except (PayloadKeyMissing, ValueError) as exc:
            self._refuse(HTTPStatus.BAD_REQUEST, str(exc))
        else:
            self._answer(HTTPStatus.OK, MessageToJson(done, indent=None).encode())

    async def _decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [decompress(payload) for payload in await self.codec.decode(payloads)]

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # the rest of the body must not be read as the next request
        self._answer(status, encode_json({"error": reason}))

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        origin = self.headers.get("Origin", "")
        permissions = {**CORS_HEADERS, "Access-Control-Allow-Origin": origin} if origin in self.policy.origins else {}
        for name, value in {**permissions, "Content-Type": "application/json", "Cache-Control": "no-store"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the base class's name
        """Keep silent: a path may hold the token."""
