"""Tokens: who may call the HTTP API, and for which kinds and tenants."""

import hashlib
import hmac
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, cast

from shared.errors import InvalidSetting
from starter.extras.web.problems import Problem

TOKEN_MIN = 16
SESSION_SECONDS = 12 * 3600
_FIELDS = ("token", "write", "kinds", "tenants")


@dataclass(frozen=True, slots=True)
class Access:
    """What the owner of a token may do; None stands for all kinds or tenants."""

    name: str = ""
    may_write: bool = True
    kinds: frozenset[str] | None = None
    tenants: frozenset[str] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it is not for everything that there is."""
        return self.kinds is not None or self.tenants is not None

    def check_kind(self, kind: str) -> None:
        """Raise Problem for a kind that is not among those of the token."""
        if self.kinds is not None and kind not in self.kinds:
            raise Problem(HTTPStatus.FORBIDDEN, f"kind: this token is not for {kind[:60]!r}; use another one", "kind")

    def check_tenant(self, tenant: str) -> None:
        """Raise Problem for a tenant that is not among those of the token."""
        if self.tenants is not None and tenant not in self.tenants:
            sentence = f"tenant: this token is not for {tenant[:60]!r}; use another one, or name a tenant of it"
            raise Problem(HTTPStatus.FORBIDDEN, sentence, "tenant")

    def check_whole(self, kind: str | None = None) -> None:
        """Raise Problem where the token is not for all that a list or a count is about."""
        if self.tenants is not None:
            raise Problem(HTTPStatus.FORBIDDEN, "a token for some tenants sees single messages only; use another one")
        if self.kinds is not None and kind is None:
            raise Problem(HTTPStatus.FORBIDDEN, "kind: is missing, and this token is for some kinds; add one", "kind")
        if kind is not None:
            self.check_kind(kind)


EVERYTHING = Access()
"""What a caller on this machine may do where there are no tokens."""
READING = Access(may_write=False)
"""What a person at this machine's browser may do there, before signing in."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a file, as digests."""

    known: Sequence[tuple[bytes, Access]]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a TOML file with a table for each token; raises InvalidSetting."""
        try:
            tables = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            raise InvalidSetting(f"api_tokens_file: {path} can't be read as TOML ({exc}); correct it") from exc
        if not tables:
            raise InvalidSetting(f"api_tokens_file: {path} holds no token; add one, as docs/http-api.md shows")
        return cls([_read(path, name, table) for name, table in tables.items()])

    def find(self, given: str) -> Access | None:
        """Give what a token allows, None for an unknown one; takes as long for each."""
        digest = _digest(given)
        found = None
        for known, access in self.known:
            if hmac.compare_digest(known, digest):
                found = access
        return found

    def open_session(self, given: str, now: float) -> str | None:
        """Give what a browser may keep in place of a token, None for an unknown one.

        It is the token's place, when the session ends, and a code that only who knows the token can make: so any
        process with the same tokens knows it, and a changed token ends it.
        """
        digest = _digest(given)
        ends_at = int(now) + SESSION_SECONDS
        place = next((n for n, (known, _) in enumerate(self.known) if hmac.compare_digest(known, digest)), None)
        return None if place is None else f"{place}.{ends_at}.{_sign(digest, place, ends_at)}"

    def find_session(self, session: str, now: float) -> Access | None:
        """Give what a session allows, None for one that is unknown or over."""
        place, _, rest = session.partition(".")
        ends_at, _, code = rest.partition(".")
        if not (place + ends_at).isascii() or not (place.isdecimal() and ends_at.isdecimal()) or len(session) > 120:
            return None
        if int(place) >= len(self.known) or int(ends_at) <= now:
            return None

        digest, access = self.known[int(place)]
        signed = _sign(digest, int(place), int(ends_at))
        return access if hmac.compare_digest(signed.encode(), code.encode("utf-8", "surrogateescape")) else None

    @classmethod
    def of_one(cls, token: str) -> Self:
        """Make a table of a single token, for everything."""
        return cls([(_digest(token), EVERYTHING)])


def _sign(digest: bytes, place: int, ends_at: int) -> str:
    return hmac.new(digest, f"session {place} {ends_at}".encode(), "sha256").hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _read(path: Path, name: str, table: Any) -> tuple[bytes, Access]:
    where = f"api_tokens_file: {path}: {name}"
    if not isinstance(table, dict):
        raise InvalidSetting(f'{where}: is no table; write [{name}] and below it token = "…"')

    given = cast("dict[str, Any]", table)
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise InvalidSetting(f"{where}: has {unknown[0]}, which is no field; use {', '.join(_FIELDS)}")

    token = given.get("token")
    may_write = given.get("write", False)

    if not isinstance(token, str) or len(token) < TOKEN_MIN:
        flaw = f"token has fewer than {TOKEN_MIN} characters"
        raise InvalidSetting(f"{where}: {flaw}; take what 'openssl rand -hex 24' gives")

    if not isinstance(may_write, bool):
        raise InvalidSetting(f"{where}: write is {may_write!r}; write true or false")

    names = {each: _read_names(f"{where}: {each}", given.get(each)) for each in ("kinds", "tenants")}
    return _digest(token), Access(name, may_write, **names)


def _read_names(where: str, value: Any) -> frozenset[str] | None:
    if value is None:
        return None
    names = cast("list[Any]", value) if isinstance(value, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidSetting(f"{where} is {value!r}; write a list of names, or leave it out for all")
    return frozenset(names)
