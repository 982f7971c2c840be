"""Receipts of a pack: what became of chunks and signals, kept small for as long as somebody may ask."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.packs.entry import measure

KEPT_SECONDS = 300.0  # how long a sender may query its receipt: it retries at growing intervals, and batches delay it

# what may become of a message, beside admission and refusal; full means that the pack has no room for it yet
KNOWN = "known"
REVISED = "revised"
STOPPED = "stopped"
REUSED = "reused"
FULL = "full"
_OUTCOMES = (REVISED, STOPPED, REUSED, FULL)

CROWDING = "crowding"
MOVED_BY = "moved_by"
RECEIPTS_BYTES_MAX = 50_000  # beyond it the oldest are forgotten early; the receipts of several hundred signals fit


class PackReceipts(dict[str, dict[str, Any]]):
    """The latest receipts by token, small because a full pack writes many: refusals by reason, positions as runs."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        super().__init__(wire)
        self._bytes = sum(map(measure, self.items()))

    def note_chunk(
        self,
        token: str,
        outcomes: Mapping[str, Sequence[int]],
        now: float,
        *,
        moved_by: int = 0,
        crowding: float = 0.0,
    ) -> None:
        """Keep which positions had which outcome or reason of refusal.

        With `moved_by`, those that have none here and are placed in other packs by that number of packs were sent on
        there. Whoever asks knows the ids, so that the positions, which fill kilobytes, need not be kept.
        Whoever asks for it is told, too, of a `crowding` of 1 or more: then the kind should have more packs.
        """
        runs = {outcome: _to_runs(positions) for outcome, positions in outcomes.items() if positions}
        receipt: dict[str, Any] = {KNOWN: runs.pop(KNOWN, [])}
        receipt |= {outcome: runs.pop(outcome) for outcome in _OUTCOMES if outcome in runs}
        if crowding >= 1:
            receipt[CROWDING] = crowding
        if moved_by:
            receipt[MOVED_BY] = moved_by

        self._note(token, receipt | {"refused": runs}, {}, now)

    def note_signal(self, token: str, missing: Sequence[int], moved: Mapping[int, Sequence[int]], now: float) -> None:
        """Keep which positions were not alive, and which belong to another pack (by its index)."""
        self._note(token, {"missing": _to_runs(missing)}, moved, now)

    def find(self, token: str) -> dict[str, Any] | None:
        """Return a receipt as the query answers it: positions one by one, with the reason of each refusal."""
        if (kept := self.get(token)) is None:
            return None
        found: dict[str, Any] = {
            name: _to_positions(kept[name]) for name in (KNOWN, *_OUTCOMES, "missing") if name in kept
        }
        found |= {name: kept[name] for name in (CROWDING, MOVED_BY) if name in kept}
        if "refused" in kept:
            found["refused"] = {str(n): reason for reason, runs in kept["refused"].items() for n in _to_positions(runs)}

        return found | {"moved": {index: _to_positions(runs) for index, runs in kept["moved"].items()}}

    def forget_old(self, now: float) -> None:
        """Forget receipts that nobody queries any more."""
        for token in list(self):
            if self[token].get("at", 0.0) >= now - KEPT_SECONDS:
                return
            self._forget(token)

    def _note(self, token: str, receipt: dict[str, Any], moved: Mapping[int, Sequence[int]], now: float) -> None:
        receipt |= {"moved": {str(index): _to_runs(positions) for index, positions in moved.items()}, "at": round(now)}
        self[token] = receipt
        self._bytes += measure((token, receipt))
        while self._bytes > RECEIPTS_BYTES_MAX and len(self) > 1:
            self._forget(next(iter(self)))

    def _forget(self, token: str) -> None:
        self._bytes -= measure((token, self.pop(token)))


def _to_runs(positions: Iterable[int]) -> list[list[int]]:
    """Write rising numbers as [first, count]: mostly all messages of a chunk have the same outcome."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and sum(runs[-1]) == position:
            runs[-1][1] += 1
        else:
            runs.append([position, 1])
    return runs


def _to_positions(runs: Iterable[Sequence[int]]) -> list[int]:
    return [position for first, count in runs for position in range(first, first + count)]
