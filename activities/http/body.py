"""The body of an answer, read within limits."""

import zlib
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING

from shared.errors import GiveUp, RetryLater

if TYPE_CHECKING:
    import aiohttp

PIECE_BYTES = 64 * 1024
GZIP_FIRST_BYTE = b"\x1f"


class BodyTooLarge(GiveUp):
    """An answer's body is longer than the installation allows."""


def describe_unreadable(exc: "aiohttp.ClientResponseError") -> str:
    """Say that an answer is no HTTP, without the URL; it may have been cut in an unlucky place, but seldom is."""
    said = " ".join(exc.message.split())[:100]
    return f"answers what is no HTTP ({said}); asking again hardly helps until the site is mended"


async def iterate_body(response: "aiohttp.ClientResponse", max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Give the body of a streamed answer piece by piece, gzip decoded; other codings stay as they are.

    Raises BodyTooLarge before more than `max_bytes` are in memory, and RetryLater for a broken body.
    """
    is_gzip = response.headers.get("Content-Encoding", "").strip().lower() in ("gzip", "x-gzip")
    gunzip = _Gunzip()
    size = 0

    async for raw in response.content.iter_any():
        for piece in gunzip.decode(raw) if is_gzip else (raw,):
            size += len(piece)
            if size > max_bytes:
                raise BodyTooLarge(
                    f"the body is longer than {max_bytes} bytes; raise DORMICE_HTTP_MAX_BYTES to read it"
                )
            yield piece

    if is_gzip and not gunzip.is_complete:
        raise RetryLater("the gzip body broke off; it will be asked for again")


class _Gunzip:
    """Decodes gzip in small pieces, and knows a part of a body from the whole, which aiohttp's own decoder does not."""

    def __init__(self) -> None:
        self._member = _begin_member()
        self.is_complete = True

    def decode(self, raw: bytes) -> Iterator[bytes]:
        try:
            while raw:
                if self._member.eof:
                    if not raw.startswith(GZIP_FIRST_BYTE):
                        return  # some servers pad the end; gzip programs ignore that too
                    self._member = _begin_member()
                yield self._member.decompress(raw, PIECE_BYTES)
                self.is_complete = self._member.eof
                raw = self._member.unused_data if self.is_complete else self._member.unconsumed_tail
        except zlib.error as exc:
            raise RetryLater(f"the body is no gzip though it says so ({exc}); it will be asked for again") from exc


def _begin_member() -> "zlib._Decompress":  # pyright: ignore[reportPrivateUsage] — the type has no other name
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
