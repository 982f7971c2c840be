"""Outcome events as a history: at which visits the handler `http` found a change, and so when its pages changed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from shared.errors import GiveUp
from shared.messages.placement import unit_hash
from starter.extras.rehearsal.policies import to_microseconds

WORDS = {"first": None, "changed": True, "unchanged": False}
"""The first word of the reason of a visit by the handler `http`, and whether it found a change."""


class _Visit(NamedTuple):
    at: int
    version: int
    attempt: int
    is_changed: bool | None


class CollectedVisits:
    """The visits of all pages of one kind, as the events of their cycles say."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._visits = defaultdict[str, list[_Visit]](list)

    def __len__(self) -> int:
        return len(self._visits)

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event; those of other kinds and of cycles that compared nothing are ignored. Raises GiveUp."""
        word = str(event.get("reason")).partition(",")[0]
        if event.get("kind") != self.kind or event.get("outcome") != "again" or word not in WORDS:
            return

        try:
            at = to_microseconds(datetime.fromisoformat(event["started_at"]))
            visit = _Visit(at, int(event["version"]), int(event["attempt"]), WORDS[word])
            self._visits[str(event["id"])].append(visit)
        except (KeyError, TypeError, ValueError) as exc:
            raise GiveUp(
                f"event of {self.kind}:{event.get('id')}: {exc!r}; give events as dormice writes them"
            ) from exc

    def find_span(self) -> tuple[int, int]:
        """Give the moments of the first and the last visit; raises GiveUp when there is none."""
        if not self._visits:
            raise GiveUp(
                f"there is no visit of kind {self.kind!r} among the events; name the kind of your pages with --kind"
            )
        moments = [visit.at for visits in self._visits.values() for visit in visits]
        return min(moments), max(moments)

    def rows(self) -> Iterator[tuple[str, int | None]]:
        """Give rows of a history, of each page at least one.

        A page that differs from its copy has changed at some moment since the visit before; no one knows when. The
        moment is drawn evenly from that time, by a hash, so that it is the same each time.
        """
        for name, visits in self._visits.items():
            yield name, None
            before: _Visit | None = None
            for visit in _drop_repeated(sorted(visits, key=lambda visit: visit[:3])):
                if visit.is_changed and before is not None:
                    span = visit.at - before.at
                    yield name, visit.at - int(span * unit_hash(f"{name}:{visit.at}"))
                before = visit


def _drop_repeated(visits: Iterable[_Visit]) -> Iterator[_Visit]:
    """Leave out a visit that was made again because a worker was killed: the last one of an attempt counts."""
    held: _Visit | None = None
    for visit in visits:
        if held is not None and (held.version, held.attempt) != (visit.version, visit.attempt):
            yield held
        held = visit
    if held is not None:
        yield held
