"""The entries of a pack, as JSON while nobody needs them: so a worker can keep more than twice as many packs."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from shared.messages.json_value import decode_json, encode_json, encode_to_keep
from shared.packs.counts import count_entries, move_counts
from shared.packs.entry import ID, Entry


class PackEntries:
    """Entries by id, as JSON from `condense` on until they are opened again."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._by_id: dict[str, Entry] | None = {entry[ID]: entry for entry in entries}
        self._condensed = b""
        self._count = 0
        self._counts: dict[str, Any] = {}
        self.is_reading: Callable[[], bool] = bool  # while it is true, nobody changes what `open` gives

    def __len__(self) -> int:
        return self._count if self._by_id is None else len(self._by_id)

    def open(self) -> dict[str, Entry]:
        """Give the entries, to read or to change; for somebody who only reads they stay condensed."""
        if self._by_id is not None:
            return self._by_id
        entries = cast("list[Any]", decode_json(self._condensed))
        by_id: dict[str, Entry] = {entry[ID]: entry for entry in entries}
        if not self.is_reading():
            self._by_id = by_id
            self._condensed = b""
        return by_id

    def condense(self, lane: str, now: float) -> None:
        """Keep the entries as JSON, and counted; `lane` and `now` are as in `count`.

        To open a thousand of them takes as long again.
        """
        if self._by_id:
            self._counts = self.count(lane, now)
            self._condensed = encode_to_keep(list(self._by_id.values()))
            self._count = len(self._by_id)
            self._by_id = None

    def encode(self) -> bytes:
        """Give the entries as JSON, without opening them."""
        return self._condensed if self._by_id is None else encode_json(list(self._by_id.values()))

    def count(self, lane: str, now: float, running: Collection[Entry] = ()) -> dict[str, Any]:
        """Count the entries at `now`, without opening them; `lane` is the pack's own, `running` counts beside them."""
        if self._by_id is None and not running:
            return move_counts(self._counts, now)
        return count_entries(self.open().values(), running, lane, now)
