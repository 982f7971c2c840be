"""Grouping: names of messages, grouped by pack, so that a signal for many messages takes few calls."""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field

from shared.messages.placement import Layout, pack_index
from starter.starting.layouts import Layouts

IDS_MAX = 500
"""Most messages in one signal; with the longest ids they take 100 KB."""

HELD_BACK_MAX = 50_000


@dataclass(slots=True)
class Group:
    """Messages that one call signals: some of one pack, or one that has a workflow of its own."""

    kind: str
    layout: Layout | None = None
    index: int = 0
    ids: list[str] = field(default_factory=list[str])


async def group_names(names: AsyncIterable[tuple[str, str]], layouts: Layouts) -> AsyncIterator[Group]:
    """Group a stream of (kind, id); a message that has a workflow of its own is yielded at once."""
    groups: dict[tuple[str, int], Group] = {}
    held_back = 0
    async for kind, message_id in names:
        layout = await layouts.find_patiently(kind)
        if layout is None:
            yield Group(kind, ids=[message_id])
            continue
        index = pack_index(message_id, layout.packs)
        group = groups.setdefault((kind, index), Group(kind, layout, index))
        group.ids.append(message_id)
        held_back += 1
        if len(group.ids) >= IDS_MAX or held_back >= HELD_BACK_MAX:
            fullest = max(groups, key=lambda key: len(groups[key].ids))
            held_back -= len(groups[fullest].ids)
            yield groups.pop(fullest)
    for group in groups.values():
        yield group
