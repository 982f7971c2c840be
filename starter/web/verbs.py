"""Verbs: reads the fields of a signal that a caller has sent; raises Problem for what can't be used."""

from collections.abc import Mapping
from dataclasses import fields
from http import HTTPStatus
from typing import Any, cast

from shared.messages.signal_reading import read_signal
from shared.messages.signals import SIGNAL_NAMES, Signal
from starter.web.problems import Problem

RECORDS_ONLY = ("source", "offset", "trace")
"""Fields of a signal that only records of a source may set."""
VERBS = {name: kind for kind, name in SIGNAL_NAMES.items()}


def read_verb(name: str, given: Mapping[str, Any]) -> Signal:
    """Read the signal of a verb."""
    kind = VERBS[name]
    known = list_fields(kind)
    if unknown := sorted(set(given) - set(known)):
        sentence = f"{unknown[0][:60]}: is no field of {name}; use {', '.join(known)}"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, sentence, unknown[0][:60])

    try:
        return cast("Signal", read_signal(kind, [given]))
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: {exc}", str(exc).partition(" ")[0]) from exc


def list_fields(kind: type[Any]) -> list[str]:
    """Name the fields of a signal that a caller may set."""
    return [field.name for field in fields(kind) if field.name not in RECORDS_ONLY]
