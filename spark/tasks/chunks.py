"""Chunks of a manifest: its rows, which are checked and sorted by pack, become chunks without an object for each."""

import importlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import orjson

from shared.messages.envelope import DOT_IDS, EnvelopeRules, find_misfit
from shared.messages.placement import Layout, PackSpread
from shared.messages.timespan import HORIZON
from starter.starting.chunks import Chunk
from starter.starting.start_request import EntryColumns, encode_first_entries_fast, find_others

# pyarrow has no type stubs
_arrow: Any = importlib.import_module("pyarrow")
_compute: Any = importlib.import_module("pyarrow.compute")

PLACE = "place"
"""A column that `start` adds: the number of the row's pack, by which rows are sorted."""


class SortedChunks:
    """Makes chunks of rows that come sorted by pack; only the chunk of the latest pack is held back."""

    def __init__(self) -> None:
        self._chunk: Chunk[str] | None = None

    def add(self, layout: Layout, index: int, columns: EntryColumns) -> Iterator[Chunk[str]]:
        """Add new messages of a pack; gives the chunks that are complete."""
        spread = PackSpread.of(layout.kind, index, layout.coalesce)
        ids = columns.ids
        entries = encode_first_entries_fast(columns, time.time(), spread)

        while ids:
            chunk = self._chunk
            if chunk is None or (chunk.layout, chunk.index) != (layout, index) or chunk.is_full:
                yield from self.take_last()
                chunk = self._chunk = Chunk(layout, index)
            count = chunk.extend(ids, ids, entries)
            ids = ids[count:]
            entries = entries[count:]

    def take_last(self) -> Iterator[Chunk[str]]:
        """Give the chunk that is held back, if there is one."""
        if self._chunk is not None:
            yield self._chunk
        self._chunk = None


def split_by(name: str, batch: Any) -> Iterator[tuple[Any, Any]]:
    """Split an Arrow batch of sorted rows by the value of a column: gives each value, and the rows that have it."""
    ends = _compute.run_end_encode(batch[name]).run_ends.to_pylist()
    for begin, end in pairwise([0, *ends]):
        rows = batch.slice(begin, end - begin)
        yield rows[name][0].as_py(), rows


def are_clearly_valid(batch: Any, rules: EnvelopeRules) -> bool:
    """Return whether rows of a manifest, which `prepare` has checked, are messages by the rules of this process too.

    False means only that each row must be looked at. A damaged row could break the chunk that it travels in, so what
    gives a chunk its form is checked here as well: payloads are JSON, ids hold no control character.
    """
    if any(batch[name].null_count for name in ("kind", "id", "lane")):
        return False

    ordinary = rules.kinds.keys() - rules.expires_after.keys()
    if not ordinary.issuperset(_compute.unique(batch["kind"]).to_pylist()):
        return False
    if batch["expires_at"].null_count < len(batch["expires_at"]):
        return False
    # a message remembers its key beside its body
    if any(batch["idempotency_key"].to_pylist()):
        return False

    longest = _compute.max(_compute.binary_length(batch["payload"])).as_py() or 0
    latest = _compute.max(batch["scheduled_at"]).as_py()

    is_in_limits = not rules.payload_max_bytes or longest <= rules.payload_max_bytes
    if not is_in_limits or (latest is not None and latest > datetime.now(UTC) + HORIZON):
        return False

    payloads = _read_payloads(batch)
    try:
        parsed = orjson.loads(f"[{','.join(payloads)}]")
    except orjson.JSONDecodeError:
        return False

    ids: list[str] = batch["id"].to_pylist()
    if len(parsed) != len(payloads) or not "".join(ids).isprintable() or not DOT_IDS.isdisjoint(ids):
        return False

    # a manifest may be older than the models of its kinds
    return not rules.payloads or not any(
        find_misfit(kind, payload, rules.payloads)
        for kind, payload in zip(batch["kind"].to_pylist(), parsed, strict=True)
    )


def read_columns(rows: Any, layout: Layout) -> EntryColumns:
    """Read checked rows of one pack."""
    ids = rows["id"].to_pylist()
    micros = rows["scheduled_at"].cast(_arrow.timestamp("us", "UTC")).cast(_arrow.int64())
    defaults = {"tolerance_seconds": 0.0, "priority": 3, "tenant": "", "correlation_id": ""}
    tolerances, *fields = (rows[name].fill_null(value).to_pylist() for name, value in defaults.items())
    lanes = ("" if lane == layout.lane else lane for lane in rows["lane"].to_pylist())
    others = [find_others(*named) for named in zip(*fields, lanes, strict=True)]
    return EntryColumns(ids, micros.to_pylist(), tolerances, _read_payloads(rows), others)


def _read_payloads(rows: Any) -> list[str]:
    return [payload or "null" for payload in rows["payload"].to_pylist()]  # as `Columns` reads an empty cell
