"""Placement of many rows at once: the same packs as `shared.messages.placement` finds, in columns of numpy."""

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark.tasks.pickling import PicklableByName

_arrow: Any = importlib.import_module("pyarrow")  # it has no type stubs
_np: Any = importlib.import_module("numpy")

INDEX_BITS = 32
_MULTIPLIER, _SHIFT = 2862933555777941757, 33  # as in `pack_index`


@dataclass(frozen=True)
class Placement(PicklableByName):
    """Numbers the packs of some kinds, so that sorting rows by that number puts those of a pack side by side.

    A place is the kind's position in `packs` and the pack's index in INDEX_BITS bits. A kind with 0 packs is solo: its
    places only divide its rows evenly.
    """

    packs: Mapping[str, int]

    def find(self, kinds: Any, ids: Any) -> Any:
        """Give the place of each row, from and as arrays of Arrow; kinds that are not known are solo."""
        order = {kind: position for position, kind in enumerate(self.packs)}
        digests = b"".join([hashlib.blake2b(text.encode(), digest_size=8).digest() for text in ids.to_pylist()])
        keys = _np.frombuffer(digests, ">u8").astype(_np.uint64)
        positions = _np.array([order.get(kind, len(order)) for kind in kinds.to_pylist()], _np.int64)
        packs = _np.array([*self.packs.values(), 0], _np.int64)[positions]
        indexes = _np.where(packs > 0, _jump(keys, packs), (keys >> _np.uint64(INDEX_BITS)).astype(_np.int64))
        return _arrow.array((positions << INDEX_BITS) | indexes)


def to_index(place: int) -> int:
    """Give the index of the pack that a place stands for."""
    return place & ((1 << INDEX_BITS) - 1)


def _jump(keys: Any, packs: Any) -> Any:
    """Do what `pack_index` does for one key, with the keys of all rows that are not finished yet."""
    found, rows = _np.zeros(len(keys), _np.int64), _np.flatnonzero(packs > 0)
    keys, packs = keys[rows], packs[rows]
    step = _np.zeros(len(rows), _np.int64)
    while len(rows):
        found[rows] = step
        keys = keys * _np.uint64(_MULTIPLIER) + _np.uint64(1)  # modulo 2^64
        share = 2147483648 / ((keys >> _np.uint64(_SHIFT)) + _np.uint64(1)).astype(_np.float64)
        step = ((step + 1) * share).astype(_np.int64)
        is_left = step < packs
        rows, keys, packs, step = rows[is_left], keys[is_left], packs[is_left], step[is_left]
    return found
