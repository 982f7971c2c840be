"""The calls of a contestant while it makes them, read from the ledger that all of its processes write."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Calls:
    """All calls so far; `first` has the moment of each message's first one, in seconds since the epoch."""

    path: Path
    count: int = 0
    first: dict[str, float] = field(default_factory=dict[str, float])
    _read_bytes: int = 0

    def read_on(self) -> int:
        """Take in what was written since the last time; gives the number of calls so far."""
        if not self.path.exists():
            return 0

        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]

        self._read_bytes += len(whole) + 1 if whole else 0
        for line in whole.decode().splitlines():
            at, message_id, _ = line.split()
            self.first.setdefault(message_id, float(at))
            self.count += 1

        return self.count
