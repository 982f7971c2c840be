"""Verbs: reads the fields of a signal that a caller has sent; raises Problem for what can't be used."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from shared.messages.signal_reading import read_signal
from shared.messages.signals import VERBS, Signal, list_fields
from starter.extras.web.problems import Problem


def read_verb(name: str, given: Mapping[str, Any]) -> Signal:
    """Read the signal of a verb."""
    kind = VERBS[name]
    known = list_fields(kind)
    if unknown := sorted(set(given) - set(known)):
        sentence = f"{unknown[0][:60]}: is no field of {name}; use {', '.join(known)}"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, sentence, unknown[0][:60])

    try:
        return read_signal(kind, [given])
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: {exc}", str(exc).partition(" ")[0]) from exc
