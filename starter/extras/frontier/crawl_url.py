"""A URL of a crawl: what the frontier keeps of it, and the message that it is stored as."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from shared.errors import InvalidEnvelope
from shared.messages.envelope import DOT_IDS, ID_MAX_BYTES

DEFAULT_CRAWL = "DEFAULT"
KEY_MAX = 255

_SCHEME = "://"
_ENDS_HOST = re.compile(r"[:/?&]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DIGEST_BYTES = 16
_MARK = "~"
_DIGESTED = re.compile(f"{_MARK}[0-9a-f]{{{2 * _DIGEST_BYTES}}}$")
_HEAD_BYTES = ID_MAX_BYTES - 2 * _DIGEST_BYTES - len(_MARK)
_JAVA_SPACES = "".join(map(chr, range(0x21)))  # what the reference takes off the ends of a crawl's name, to compare it

Metadata = Mapping[str, Sequence[str]]
NO_METADATA: Metadata = {}


class QueueName(NamedTuple):
    """A queue: URLs of one crawl that share a key, mostly their host."""

    crawl: str
    key: str

    @classmethod
    def of(cls, crawl: str, key: str) -> "QueueName":
        """Name a queue as a client does, who may leave out the crawl."""
        return cls(normalize_crawl(crawl), key)


@dataclass(frozen=True, slots=True)
class CrawlUrl:
    """A URL as it was put last; two of the same queue and `url` are the same URL, whatever else differs."""

    queue: QueueName
    url: str
    metadata: Metadata = field(default_factory=lambda: NO_METADATA)
    refetch_at: int = 0
    """From when on it may be fetched, in seconds since the epoch; 0 when it is completed."""
    created_at: int = 0
    """When it was first put, in seconds since the epoch."""

    @property
    def is_completed(self) -> bool:
        """Whether it is not to be fetched any more."""
        return self.refetch_at == 0

    @property
    def message_id(self) -> str:
        """Name its message: the URL itself where that is enough, else its beginning and a digest.

        Two URLs never share a message: who finds the digest of another has found a collision of BLAKE2b.
        """
        crawl, key = self.queue
        url = self.url
        if crawl == DEFAULT_CRAWL and _can_be_id(url) and key == derive_key(url):
            return url

        named = b"".join(len(part).to_bytes(8, "big") + part for part in (crawl.encode(), key.encode(), url.encode()))
        digest = hashlib.blake2b(named, digest_size=_DIGEST_BYTES).hexdigest()
        head = _CONTROL.sub("", url[:_HEAD_BYTES]).encode()[:_HEAD_BYTES].decode(errors="ignore")
        return f"{head}{_MARK}{digest}"

    def to_payload(self) -> dict[str, Any]:
        """Give the payload of its message; what the id or a default says already is left out."""
        crawl, key = self.queue
        payload: dict[str, Any] = {"created": self.created_at}
        if self.message_id != self.url:
            payload |= {"url": self.url, "key": key}
        if crawl != DEFAULT_CRAWL:
            payload["crawl"] = crawl
        if self.refetch_at:
            payload["refetch"] = self.refetch_at
        if self.metadata:
            payload["metadata"] = {name: list(values) for name, values in self.metadata.items()}

        return payload

    @classmethod
    def of_message(cls, message_id: str, payload: Any) -> "CrawlUrl":
        """Read it back from its message; raises InvalidEnvelope for one that no frontier has made."""
        if not isinstance(payload, dict):
            raise InvalidEnvelope("payload", "must be an object; put URLs by the interface of the frontier")

        given = cast("dict[str, Any]", payload)
        url = given.get("url", message_id)
        key = given.get("key")
        key = derive_key(url) if key is None and isinstance(url, str) else key
        crawl = given.get("crawl", DEFAULT_CRAWL)
        metadata = given.get("metadata", NO_METADATA)
        moments = (given.get("refetch", 0), given.get("created", 0))

        is_readable = all(isinstance(each, str) for each in (url, key, crawl)) and isinstance(metadata, dict | Mapping)
        if not is_readable or not all(isinstance(each, int) for each in moments):
            raise InvalidEnvelope("payload", "is none of the frontier's; put URLs by the interface of the frontier")
        return cls(QueueName(crawl, cast("str", key)), url, cast("Metadata", metadata), *moments)


def normalize_crawl(crawl: str) -> str:
    """Give the name of a crawl; the default one for a blank."""
    return crawl if crawl.strip(_JAVA_SPACES) else DEFAULT_CRAWL


def derive_key(url: str) -> str | None:
    """Give the key of a URL that was put without one: its host as the reference reads it; None when there is none."""
    start = url.find(_SCHEME)
    rest = url[start + len(_SCHEME) :] if start >= 0 else url
    return _ENDS_HOST.split(rest, maxsplit=1)[0] or None


def _can_be_id(url: str) -> bool:
    if url in DOT_IDS:
        return False
    if not (url.isascii() and url.isprintable()):
        if _CONTROL.search(url):
            return False
        return 0 < len(url.encode()) <= ID_MAX_BYTES and not _DIGESTED.search(url)
    return 0 < len(url) <= ID_MAX_BYTES and not _DIGESTED.search(url)
