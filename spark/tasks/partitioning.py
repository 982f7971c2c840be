"""Placing: distributes a frame's rows over tasks, so that only one task starts messages of a pack."""

import asyncio
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from activities.registry import declared_packs, load_registry
from shared.messages.placement import Layout, pack_index, pack_workflow_id, workflow_id
from shared.settings import Settings
from shared.temporal.connect import check_server
from spark.tasks.starting import connect_quietly
from starter.starting.layouts import Layouts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = "_place"


def settle_layouts(connection: Mapping[str, str], settings: Settings, kinds: Iterable[str]) -> dict[str, Layout]:
    """Check the server, and give the layout of each packed kind among `kinds`.

    The first start of a packed kind fixes its layout. Raises what `check_server` and `Layouts.settle` raise, and
    HandlerProblem.
    """
    registry = load_registry(settings)

    async def settle() -> dict[str, Layout]:
        client = await connect_quietly(connection, settings)
        await check_server(client)
        layouts = Layouts(client, settings, declared_packs(registry))
        found = [await layouts.settle(kind, registry[kind].lane) for kind in kinds if kind in registry]
        return {layout.kind: layout for layout in found if layout is not None}

    return asyncio.run(settle())


def share_out(frame: "DataFrame", layouts: Mapping[str, Layout], partitions: int) -> "DataFrame":
    """Distribute rows over `partitions` tasks by their messages' workflows; rows of one pack are next to each other.

    Needs the columns `kind` and `id`. The order is the same each time a task is run.
    """
    functions: Any = importlib.import_module("pyspark.sql.functions")
    if not layouts:
        return frame.repartition(partitions, "kind", "id").sortWithinPartitions("kind", "id")
    find = functions.udf(_make_finder(dict(layouts)), "string", useArrow=True)
    placed = frame.withColumn(_PLACE, find("kind", "id"))
    return placed.repartition(partitions, _PLACE).sortWithinPartitions(_PLACE, "id").drop(_PLACE)


def _make_finder(layouts: Mapping[str, Layout]) -> Callable[[str, str], str]:
    def find(kind: str, message_id: str) -> str:
        if (layout := layouts.get(kind)) is None:
            return workflow_id(kind, message_id)
        return pack_workflow_id(kind, pack_index(message_id, layout.packs))

    return find
