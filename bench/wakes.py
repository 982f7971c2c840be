"""What a wake costs a pack that sleeps, by how many sleep in it: open what is due, decide, close it again.

And what it costs to take in a few new messages, which are due much later.

Only the pack's own work, in one process: no server, no handlers.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.harness import BadArgument, alternate, report
from shared.lanes import LANES
from shared.messages.message import MessageState, Outcome
from shared.packs.cycle import to_result
from shared.packs.entry import DUE, Entry, to_entry, to_heading
from workflows.packs.calls.batch import Batch
from workflows.packs.state import PackState

SIZES = (1_000, 10_000)
IN_WAKE = 300
NEW = 8
"""As many are taken in at once: so many does a sender of all messages have for each pack."""
WAKES = 60
RHYTHM_SECONDS = 3600.0
BEGIN = 1_800_000_000.0
COALESCE_SECONDS = 300.0
TOLERANCE_SECONDS = 10.0  # less than between two wakes, so that each is due


async def main(arguments: Sequence[str]) -> None:
    """Measure WAKES wakes of IN_WAKE messages each, by turns for each size of SIZES; all are back after an hour.

    Then as many times NEW messages are taken in.
    """
    if arguments:
        raise BadArgument(f"it takes no arguments, and got {' '.join(arguments)}")

    packs = {size: _Sleeper(size) for size in SIZES}
    for size, pack in packs.items():
        for _ in range(size // IN_WAKE):
            pack.wake()  # unmeasured: until all have come back, and segments are as they stay

    seen: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(WAKES):
        for size, pack in alternate(packs, number).items():
            seen[size].append(pack.wake())

    admitted: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(WAKES):
        for size, pack in alternate(packs, number).items():
            admitted[size].append(pack.take_in())

    few = median(seen[SIZES[0]])
    rows: list[dict[str, Any]] = [
        {
            "asleep": size,
            "ms a wake": 1000 * median(spans),
            "ratio": median(spans) / few,
            f"ms for {NEW} new": 1000 * median(admitted[size]),
        }
        for size, spans in seen.items()
    ]
    report("wakes", rows, note=f"{IN_WAKE} due in each; {WAKES} wakes each, by turns; ratio = to the first row")


class _Sleeper:
    """A pack whose messages are due one after the other, all within the rhythm."""

    def __init__(self, size: int) -> None:
        heading = to_heading("bench", "short", index=0, packs=1, size=size, coalesce=COALESCE_SECONDS, stored_share=0.3)
        self._step = RHYTHM_SECONDS / size
        self._now = BEGIN + self._step / 2  # between two of them, whatever is rounded
        entries = [_make_entry(n, BEGIN + (n + 1) * self._step) for n in range(size)]
        self._pack = PackState(heading | {"entries": entries})
        self._size = size
        self._new = 0
        self._close()

    def wake(self) -> float:
        """Let the next IN_WAKE messages run; return the processor seconds that the pack has needed."""
        self._now += IN_WAKE * self._step
        begin = time.process_time()
        batches = self._take()
        taken = time.process_time() - begin

        results = [self._run(batch) for batch in batches]

        begin = time.process_time()
        for batch, found in zip(batches, results, strict=True):
            self._pack.apply_results(batch, found, self._now)
        self._pack.messages.summary()
        self._close()
        return taken + time.process_time() - begin

    def take_in(self) -> float:
        """Let NEW messages come; return the processor seconds that the pack has needed."""
        first = self._size + self._new
        self._new += NEW
        due = [self._now + (n % self._size + 1) * self._step for n in range(first * NEW, (first + NEW) * NEW, NEW)]
        entries = [_make_entry(first + n, due_at) for n, due_at in enumerate(due)]
        sizes = {"size": self._size, "packs": 1, "coalesce": COALESCE_SECONDS}
        chunk = {"token": f"new/{first}", "sent_at": self._now, **sizes, "entries": entries}

        begin = time.process_time()
        self._pack.admit(chunk, self._now)
        self._pack.messages.summary()
        self._close()
        return time.process_time() - begin

    def _take(self) -> list[Batch]:
        batches: list[Batch] = []
        while (batch := self._pack.take(LANES, self._now, f"{self._now}/{len(batches)}")) is not None:
            batches.append(batch)
        if sum(len(batch.ids) for batch in batches) != IN_WAKE:
            raise AssertionError("another number is due")
        return batches

    def _run(self, batch: Batch) -> list[Any]:
        pack = self._pack
        return [
            to_result(
                entry,
                _come_back(entry),
                self._now,
                kind=pack.config.kind,
                lane=pack.config.lane,
                spread=pack.config.within,
            )
            for entry in batch.entries
        ]

    def _close(self) -> None:
        self._pack.entries.close(self._now, self._pack.config.within)


def _come_back(entry: Entry) -> Outcome:
    due_at = entry[DUE] / 1000 + RHYTHM_SECONDS
    return Outcome("again", "checked", at=due_at, tolerance=TOLERANCE_SECONDS)


def _make_entry(number: int, due_at: float) -> Entry:
    payload = {"url": f"https://site-{number:06}.example/feed"}
    return to_entry(MessageState("bench", f"m{number:06}", "short", due_at, due_at, payload=payload), "short")
