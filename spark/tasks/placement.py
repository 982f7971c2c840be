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
        indexes = _np.where(packs > 0, _place(keys, packs), (keys >> _np.uint64(INDEX_BITS)).astype(_np.int64))
        return _arrow.array((positions << INDEX_BITS) | indexes)


def to_index(place: int) -> int:
    """Give the index of the pack that a place stands for."""
    return place & ((1 << INDEX_BITS) - 1)


def _place(keys: Any, packs: Any) -> Any:
    """Do what `pack_index` does for one key, for all rows; what it gives for 0 packs means nothing."""
    # a number below 2^53 is exact as a float: its exponent says how many bits it has
    bits = _np.frexp(packs.astype(_np.float64))[1].astype(_np.uint64)
    one = _np.uint64(1)
    indexes = (keys & ((one << bits) - one)).astype(_np.int64)
    halves = ((one << bits) >> one).astype(_np.int64)
    return _np.where(indexes < packs, indexes, indexes - halves)
