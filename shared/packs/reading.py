"""Reading what only packs are sent; like `shared.messages.signal_reading`, every function raises only ValueError."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from shared.lanes import LANES
from shared.messages.encoding import PACKS_MAX
from shared.messages.json_value import find_flaw
from shared.messages.message import Turn
from shared.messages.signal_reading import (
    Check,
    check_token,
    is_moment,
    is_offset,
    number,
    read_object,
    require,
    whole_number,
)
from shared.messages.timespan import MOMENT_MAX
from shared.packs.entry import OTHERS, Entry, is_ended, sources_of

ID_BYTES_MAX = 200
BACKOFF_MAX = 1e9  # seconds, about thirty years: a moment this far ahead is still a valid date

_MOMENT_MAX_MS = round(MOMENT_MAX * 1000)
_COUNT_MAX = 2**53
_DECISION_LENGTH = 5
_TURN_LENGTH = len(Turn._fields)
_ADVICE = "start messages with dormice"


def read_chunk(arguments: Sequence[Any]) -> dict[str, Any]:
    """Read a chunk of new messages, as `PackState.admit` takes it."""
    chunk = read_object(arguments)
    check_token(chunk.get("token"))
    if "entries" not in chunk:
        raise ValueError(f"it has no entries; {_ADVICE}")

    for name, (is_right, wanted) in _CHUNK_FIELDS.items():
        if name in chunk:
            require(name, chunk[name], is_right, wanted)

    for name in ("entries", "ended"):
        entries = chunk.get(name, [])
        if not isinstance(entries, list) or not all(map(_is_entry, cast("list[Any]", entries))):
            raise ValueError(f"its {name} are no list of messages; {_ADVICE}")

    if not all(map(is_ended, chunk.get("ended", ()))):
        raise ValueError(f"its ended are no messages that have ended; {_ADVICE}")

    if not chunk.get("revises"):
        if any(map(is_ended, chunk["entries"])):
            raise ValueError(f"its entries have ended; {_ADVICE}")
    elif not all(len(sources_of(entry)) == 1 for entry in chunk["entries"]):
        raise ValueError(f"it revises by records that name no source, or several; {_ADVICE}")

    return chunk


def read_pack_count(arguments: Sequence[Any]) -> int:
    """Read the new number of packs of a kind."""
    packs = read_object(arguments).get("packs")
    return require("packs", packs, _is_pack_count, f"a whole number from 1 to {PACKS_MAX}")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and find_flaw(value) is None


def _is_json(value: Any) -> bool:
    return find_flaw(value) is None


def _one_of(names: Iterable[str]) -> Check:
    known = frozenset(names)
    return lambda value: isinstance(value, str) and value in known


def _map_of(is_right: Check) -> Check:
    return lambda value: (
        isinstance(value, dict) and all(_is_text(k) and is_right(v) for k, v in cast("dict[Any, Any]", value).items())
    )


_is_wait = number(0, BACKOFF_MAX)
_is_count = whole_number(0, _COUNT_MAX - 1)
_is_pack_count = whole_number(1, PACKS_MAX)
_is_size = whole_number(1, 2**31 - 1)
_is_lane = _one_of(LANES)

_CHUNK_FIELDS: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("packs", "size"), (_is_size, "a whole number")),
    "coalesce": (_is_wait, "seconds"),
    "sent_at": (is_moment, "seconds since the epoch"),
    **dict.fromkeys(("restarts", "revises", "is_moving"), (_is_flag, "true or false")),
}


def _is_turn(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    turn = cast("list[Any]", value)
    moment, is_slot, key = turn if len(turn) == _TURN_LENGTH else (0.0, False, None)
    return not turn or (is_moment(moment) and _is_flag(is_slot) and _is_text(key))


_OTHERS: dict[str, Check] = {
    **dict.fromkeys(("attempt", "revision", "skipped"), _is_count),
    **dict.fromkeys(("is_tried", "is_paused", "is_expired"), _is_flag),
    **dict.fromkeys(("tenant", "correlation_id", "parked_reason", "traced"), _is_text),
    "priority": whole_number(1, 5),
    **dict.fromkeys(("parked_at", "started_at", "expires_at"), is_moment),
    "ended": _one_of(("done", "stopped")),
    "result": _is_json,
    "sources": _map_of(is_offset),
    "trace": _map_of(_is_text),
    "lane": _is_lane,
    "turn": _is_turn,
}
"""Optional fields of an entry, present where they differ from their defaults; unknown ones are ignored when read."""


def _is_entry(entry: Any) -> bool:
    # by hand, because each new message is checked
    if type(entry) is not list or not OTHERS <= len(entry) <= OTHERS + 1:  # pyright: ignore[reportUnknownArgumentType] — JSON
        return False

    message_id, due, early, late, version, payload, decisions, *others = cast("Entry", entry)
    if not (type(message_id) is str and type(due) is type(early) is type(late) is type(version) is int):
        return False

    return (
        0 < len(message_id) <= ID_BYTES_MAX
        and (message_id.isascii() or find_flaw(message_id) is None)
        and 0 <= due - early <= _MOMENT_MAX_MS
        and 0 <= due <= due + late <= _MOMENT_MAX_MS
        and 0 <= version < _COUNT_MAX
        and type(decisions) is list
        and _are_decisions(cast("list[Any]", decisions), due)
        and find_flaw(payload) is None
        and (not others or _are_others(others[0]))
    )


def _are_decisions(decisions: list[Any], due: int) -> bool:
    for decision in decisions:  # noqa: SIM110 — `all` takes twice as long for the usual one
        if not _is_decision(decision, due):
            return False
    return True


def _is_decision(decision: Any, due: int) -> bool:
    if type(decision) is not list or len(decision) < _DECISION_LENGTH:  # pyright: ignore[reportUnknownArgumentType] — JSON
        return False

    at, back, what, then, reason, *_ = cast("list[Any]", decision)
    return (
        type(at) is type(back) is type(then) is int
        and 0 <= due - at <= _MOMENT_MAX_MS
        and 0 <= due - then <= _MOMENT_MAX_MS
        and -_COUNT_MAX < back < _COUNT_MAX
        and type(what) is str
        and type(reason) is str
        and (what.isascii() or find_flaw(what) is None)
        and (reason.isascii() or find_flaw(reason) is None)
    )


def _are_others(others: Any) -> bool:
    if not isinstance(others, dict):
        return False
    named = cast("Mapping[str, Any]", others)
    return all(_OTHERS[name](value) if name in _OTHERS else _is_json(value) for name, value in named.items())
