"""The ledger: what was sent, acknowledged and called, stored outside of dormice as records of a fixed size.

Many processes append to one file; a record is one `write` of a few bytes, which the kernel does not split.
"""

import enum
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEDGER_VARIABLE = "CHAOS_LEDGER"
"""Environment variable that names the file, because handlers run in other processes."""

_FORMAT = struct.Struct("<BBHIIIddfI")
_READ_AT_ONCE = 100_000


class What(enum.IntEnum):
    """The event of an entry."""

    BEGAN = 1
    """A handler was called."""
    AGAIN = 2
    DONE = 3
    FAILED = 4
    """The call ended with an exception, or has used up its time."""
    CUT_OFF = 5
    """The call was cancelled before its time was over."""
    START_SENT = 10
    """A message is about to be sent; `due` is the earliest moment at which it may run."""
    START_ACKNOWLEDGED = 11
    REVISION_SENT = 12
    REVISION_ACKNOWLEDGED = 13
    STOP_SENT = 14
    STOP_ACKNOWLEDGED = 15
    VERB_SENT = 16
    """A verb that moves the due time is about to be sent; `due` is the latest due time that it can cause."""
    PAUSE_SENT = 17
    RESUME_ACKNOWLEDGED = 18


class Entry(NamedTuple):
    """One record. Times are seconds since the epoch; `group` and `number` name the message."""

    what: int
    group: int
    attempt: int
    number: int
    version: int
    pid: int
    at: float
    due: float
    asked: float
    """Delay that the handler asked for, in seconds after `at`, if the call ended with AGAIN."""
    mark: int
    """Number of the revision that the message's payload is from."""


class Ledger:
    """One file of entries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def append(
        self,
        what: What,
        group: int,
        number: int,
        *,
        version: int = 0,
        attempt: int = 0,
        due: float = 0.0,
        asked: float = 0.0,
        mark: int = 0,
    ) -> None:
        """Write one entry, with this process's id and the present time."""
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

        tried = min(attempt, 0xFFFF)
        record = _FORMAT.pack(what, group, tried, number, version, os.getpid(), time.time(), due, asked, mark)
        os.write(self._file, record)

    def read(self) -> Iterator[Entry]:
        """Give all entries in the order in which they were written; reads the file in parts."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            while part := file.read(_FORMAT.size * _READ_AT_ONCE):
                whole = len(part) - len(part) % _FORMAT.size
                yield from map(Entry._make, _FORMAT.iter_unpack(part[:whole]))
