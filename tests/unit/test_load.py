"""Loads, without a server: what becomes of rows before they are started."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.envelope import EnvelopeRules
from starter.load import Load, LoadOptions
from starter.rows import RowSource

RULES = EnvelopeRules({"feed": "short"})


async def check(path: Path, form: str | None = None) -> tuple[Load, list[dict[str, Any]]]:
    """Check all rows of a file, and give what was refused."""
    rejects = path.with_name("rejects.jsonl")
    with RowSource(str(path), form) as source:
        load = Load(source, LoadOptions(rules=RULES, rejects=rejects, kind="feed"))
        await load.run(None)
    return load, [json.loads(line) for line in rejects.read_bytes().splitlines()] if rejects.exists() else []


async def test_a_refused_row_of_parquet_has_its_number_and_is_whole(tmp_path: Path) -> None:
    """As one of a text file has its line."""
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": ["1", "2"], "priority": [3, 9]}), tmp_path / "a.parquet")

    _, rejects = await check(tmp_path / "a.parquet")

    assert rejects == [
        {
            "row_number": 2,
            "field": "priority",
            "reason": "is 9; give a whole number from 1 (first) to 5 (last)",
            "row": {"id": "2", "priority": 9},
        }
    ]
