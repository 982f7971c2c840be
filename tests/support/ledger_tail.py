"""Counting what a ledger shows as ended while it grows, each of its entries read once."""

from examples.ledger import Ledger


class Tail:
    """Counts the versions of messages that have come to some sort of end, each once however often it ran."""

    def __init__(self, ledger: Ledger, *what: str) -> None:
        """Begin at the ledger's first entry."""
        self._ledger = ledger
        self._what = what
        self._offset = 0
        self._ended: set[tuple[str, int]] = set()

    def count(self) -> int:
        """Count them up to now."""
        entries, self._offset = self._ledger.read(self._offset)
        self._ended |= {(entry.id, entry.version) for entry in entries if entry.what in self._what}
        return len(self._ended)
