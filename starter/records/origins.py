"""Origins: where in a record a field of its message comes from, as an option names it."""

import re
from dataclasses import dataclass, field
from typing import Any, cast

from shared.errors import InvalidSetting
from starter.records.record import DeadRecord, Headers, read_text

MISSING: Any = object()
"""What an origin gives when the record has nothing there; null is a value."""

_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)  # RFC 6901 §4; longer ones exceed every list


@dataclass(frozen=True, slots=True)
class RecordView:
    """What an origin can read: the key, the headers, and the parsed value or a CloudEvent's data.

    `attributes` are those of a structured CloudEvent, under their header names ("ce_id").
    """

    key: bytes | None
    headers: Headers
    document: Any = MISSING
    attributes: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class KeyOrigin:
    """The record's key, as UTF-8 text."""

    def find(self, sight: RecordView) -> str:
        """Give the key; raises DeadRecord when it is null or no text."""
        if sight.key is None:
            raise DeadRecord("MissingKey", "is null, but the id comes from it; produce records with a key", "key")
        return read_text(sight.key, "key")

    def __str__(self) -> str:
        """Name it in a sentence."""
        return "the key"


@dataclass(frozen=True, slots=True)
class HeaderOrigin:
    """A header, as UTF-8 text; `ce_…` is also found as an attribute of a structured CloudEvent."""

    name: str

    def find(self, sight: RecordView) -> Any:
        """Give the header's text or MISSING; raises DeadRecord when it is no text."""
        attribute = sight.attributes.get(self.name)
        if attribute is not None:
            return attribute
        raw = sight.headers.get(self.name)
        return MISSING if raw is None else read_text(raw, f"header {self.name}")

    def __str__(self) -> str:
        """Name it in a sentence."""
        return f"header {self.name!r}"


@dataclass(frozen=True, slots=True)
class PointerOrigin:
    """A place in the JSON value, given as a JSON pointer (RFC 6901)."""

    pointer: str
    _steps: tuple[str, ...]

    def find(self, sight: RecordView) -> Any:
        """Give the value there or MISSING."""
        place = sight.document
        for step in self._steps:
            if isinstance(place, dict):
                place = cast("dict[str, Any]", place).get(step, MISSING)
            elif isinstance(place, list) and _INDEX.fullmatch(step):
                items = cast("list[Any]", place)
                place = items[int(step)] if int(step) < len(items) else MISSING
            else:
                return MISSING
        return place

    def __str__(self) -> str:
        """Name it in a sentence."""
        return f"{self.pointer!r} in the value"


FieldRef = HeaderOrigin | PointerOrigin
Origin = KeyOrigin | FieldRef


def read_origin(option: str, text: str) -> Origin:
    """Read where ids come from: the key, a header or a JSON pointer; raises InvalidSetting that names the option."""
    return KeyOrigin() if text == "key" else read_field_ref(option, text, "key, header:NAME")


def read_field_ref(option: str, text: str, choices: str = "header:NAME") -> FieldRef:
    """Read a header or a JSON pointer; raises InvalidSetting that names the option."""
    if text.startswith("header:"):
        return _read_header(option, text.removeprefix("header:"))
    if text.startswith("/"):
        return _read_pointer(option, text)
    raise InvalidSetting(f"{option}: is {text[:60]!r}; write {choices} or a JSON pointer, for example /order/id")


def _read_header(option: str, name: str) -> HeaderOrigin:
    if not name or name != name.strip() or not name.isprintable():
        raise InvalidSetting(
            f"{option}: names the header {name[:60]!r}; write header:NAME, for example header:order-id"
        )
    return HeaderOrigin(name)


def _read_pointer(option: str, pointer: str) -> PointerOrigin:
    if found := _BAD_ESCAPE.search(pointer):
        raise InvalidSetting(
            f"{option}: has a '~' at position {found.start() + 1} that escapes nothing; write ~0 for '~' and ~1 for '/'"
        )
    # RFC 6901 §4: ~1 first, or "~01" would become "/"
    return PointerOrigin(pointer, tuple(s.replace("~1", "/").replace("~0", "~") for s in pointer[1:].split("/")))
