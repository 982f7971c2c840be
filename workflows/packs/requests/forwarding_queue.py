"""Forwarding queue: what a pack holds that belongs to other packs since its kind has more of them."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.messages.json_value import encode_json
from shared.messages.placement import pack_index
from shared.messages.signals import SIGNAL_NAMES, Signal, write_steering
from shared.packs.entry import FORWARDED_BYTES_MAX, Entry, measure

PART_MAX = 200  # signals sent together: of a chunk whose sender knows few packs, each of many packs gets a few messages
PART_BYTES_MAX = 1_000_000  # of them, because the server takes 2 MB at once

Stray = list[Any]  # index of the pack that must get it, name of the signal, its argument

Moved = Mapping[int, Sequence[int]]  # index of another pack → positions of what belongs there


def find_leaving(message_ids: Iterable[str], packs: int, staying: int) -> dict[str, int]:
    """Return the messages that leave pack `staying` when there are `packs` packs, each with its new pack."""
    return {i: index for i in message_ids if (index := pack_index(i, packs)) != staying}


def remove_leaving(
    alive: dict[str, Entry], ended: dict[str, Entry], packs: int, staying: int
) -> dict[int, tuple[list[Entry], list[Entry]]]:
    """Remove the entries that leave pack `staying`; return them as (alive, ended) by the index of the new pack.

    Those alive by id, because a replay must send them in the same chunks; those that have ended as they were, the
    oldest first.
    """
    leaving: dict[int, tuple[list[Entry], list[Entry]]] = {}
    for message_id, index in sorted(find_leaving(alive, packs, staying).items()):
        leaving.setdefault(index, ([], []))[0].append(alive.pop(message_id))
    for message_id, index in find_leaving(ended, packs, staying).items():
        leaving.setdefault(index, ([], []))[1].append(ended.pop(message_id))

    return leaving


class ForwardingQueue(list[Stray]):
    """Signals for other packs, in the order in which they must arrive."""

    def first_part(self) -> list[Stray]:
        """Give the first ones, as many as may be sent together."""
        part: list[Stray] = []
        room = PART_BYTES_MAX
        for stray in self[:PART_MAX]:
            room -= measure(stray)
            if part and room < 0:
                break
            part.append(stray)
        return part

    def forward_chunk(self, chunk: Mapping[str, Any], moved: Moved) -> None:
        """Queue the parts of a chunk that belong to other packs, under the token of the chunk."""
        for index, positions in moved.items():
            entries = [chunk["entries"][position] for position in positions]
            part = {name: value for name, value in chunk.items() if name != "packs"} | {"entries": entries}
            self.append([index, "admit", part])

    def forward_steering(self, ids: Sequence[str], signal: Signal, token: str, moved: Moved) -> None:
        """Queue a signal for those of its messages that belong to other packs, under the token of the signal."""
        for index, positions in moved.items():
            wire = write_steering([ids[position] for position in positions], signal, token)
            self.append([index, SIGNAL_NAMES[type(signal)], wire])

    def send_away(self, kind: str, index: int, entries: list[Entry], ended: list[Entry]) -> None:
        """Queue messages of this pack for another one, in chunks whose tokens are hashes of their content."""
        pieces = max(1, math.ceil(measure([entries, ended]) / FORWARDED_BYTES_MAX))
        for piece in range(pieces):
            chunk: dict[str, Any] = {"entries": entries[piece::pieces], "ended": ended[piece::pieces]}
            token = hashlib.blake2b(encode_json([kind, chunk]), digest_size=16).hexdigest()
            self.append([index, "admit", chunk | {"token": token, "is_moving": True}])
