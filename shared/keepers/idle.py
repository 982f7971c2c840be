"""Idle capacity: the part of it that a lane may spend on messages that are not due yet, and the results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from shared.messages.signal_reading import is_int, is_number

IDLE_WORKFLOW = "idle"  # workflow type that spends the idle capacity of a lane
IDLE_MEMO = "idle"  # the memo field that holds its data; a memo can be read while no worker runs
PULL_AHEAD = "pull_ahead"  # activity of that workflow
SHIFT_SECONDS = 60.0  # length of one call of that activity; its counts are then kept in the workflow


def idle_workflow_id(task_queue: str) -> str:
    """Name the workflow that spends a queue's idle capacity; no kind holds a tilde, so it is no message."""
    return f"{task_queue}~idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleLimits:
    """Limits on spending idle capacity; a value out of bounds raises ValueError with a sentence."""

    reserve: float = 0.25  # share of a lane's slots that always stays free for what falls due
    quiet_seconds: float = 3.0  # a lane is idle once nothing has waited and the reserve has been free for this time
    pack_messages: int = 50  # messages that one pack runs ahead of time for one signal
    reach_seconds: float = 900.0
    """A pack runs a message ahead only if it is due at most this time after the lane's first one. So a message runs
    ahead only when none is left that is due more than twice this time before it: one reach is under way while the next
    is pulled."""

    def __post_init__(self) -> None:
        bounds = {
            "reserve": (0, 0.95),
            "quiet_seconds": (0.5, 3600),
            "pack_messages": (1, 500),
            "reach_seconds": (120, 31_536_000),  # the index itself is a minute behind
        }
        for name, (minimum, maximum) in bounds.items():
            value = getattr(self, name)
            is_right = is_int if name == "pack_messages" else is_number
            if not is_right(value) or not minimum <= value <= maximum:
                raise ValueError(f"{name}: is {value!r}; give a number from {minimum} to {maximum}")

    dump = asdict

    @classmethod
    def load(cls, wire: Mapping[str, Any]) -> Self:
        """Read a wire form; missing fields get their defaults. Raises ValueError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(wire) - known):
            raise ValueError(f"{unknown[0]}: there is no such limit; use {', '.join(sorted(known))}")
        return cls(**wire)


@dataclass(frozen=True, slots=True)
class PullCounts:
    """Totals of what has been pulled forward: single messages, packs, and by how many seconds together."""

    messages: int = 0
    packs: int = 0
    early_seconds: float = 0.0  # sum over messages and over packs' first messages

    dump = asdict

    def __add__(self, other: "PullCounts") -> "PullCounts":
        early = round(self.early_seconds + other.early_seconds, 3)
        return PullCounts(self.messages + other.messages, self.packs + other.packs, early)

    @property
    def mean_early_seconds(self) -> float:
        """How early they were on average, in seconds."""
        count = self.messages + self.packs
        return self.early_seconds / count if count else 0.0

    @classmethod
    def load(cls, wire: Mapping[str, Any]) -> Self:
        """Read a wire form of any version."""
        return cls(**{field.name: wire[field.name] for field in fields(cls) if field.name in wire})
