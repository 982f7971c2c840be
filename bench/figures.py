"""The figures that `dormice plan` takes from the results of benchmarks: each new result is in the next plan."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from starter.extras.plan.figures import MEASURED, Figure

RESULTS = Path(__file__).parent / "results"
DATABASE = "./run bench database postgresql"
AS_SOLO = "taken to be what a solo cycle costs"
ABOVE_WAKE = f"{DATABASE}, less a wake's share"
FILLING = "./run bench packs fill"
FILLED = re.compile(r"filled in ([\d,]+) s")

PARTS = {
    "server_ms": ("server cpu ms", "ms", "server's processor time of {}"),
    "database_ms": ("database cpu ms", "ms", "PostgreSQL's processor time of {}"),
    "transactions": ("transactions", "", "PostgreSQL's transactions, reading ones too, of {}"),
    "syncs": ("log syncs", "", "syncs of PostgreSQL's log for {}"),
    "log_bytes": ("log bytes", "bytes", "PostgreSQL's log of {}"),
}
"""Part of a cost → column of the result, unit, and meaning."""


def derive_figures() -> dict[str, Figure]:
    """Give the figures that the results in this checkout hold, rounded to three digits: a plan needs no more."""
    figures = {**_read_processes(), **_read_packs(), **dict(_read_database())}
    solo_first = sorted(figures, key=lambda name: (name.startswith("pack."), name))
    return {name: replace(figures[name], value=float(f"{figures[name].value:.3g}")) for name in solo_first}


def write_figures() -> None:
    """Write the figures into the program."""
    figures = {name: asdict(figure) for name, figure in derive_figures().items()}
    MEASURED.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _read_processes() -> dict[str, Figure]:
    cold = _find_row("cycles", case="cold", what="dormice")
    starts = _find_row("starts", what="dormice load")["starts/s"]
    cycles = "./run bench cycles"
    return {
        "solo.cycle.worker_ms": Figure(cold["cpu ms/cycle"], "ms", "worker's processor time of a cold cycle", cycles),
        "solo.worker.bytes": Figure(cold["rss MB"] * 1e6, "bytes", "memory of a worker process", cycles),
        "solo.starts_per_second": Figure(starts, "1/s", "starts by one sender, all on two cores", "./run bench starts"),
    }


def _read_packs() -> dict[str, Figure]:
    few = 1_000_000
    many = 10_000_000
    at_rest = _read_result(f"packs-fill-{few}")["rows"][-1]["disk MB"] * 1e6 / few
    crowd = _read_result(f"packs-fill-{many}")
    command = f"{FILLING} {many} 3600 14400"
    filled = FILLED.search(crowd["note"])
    assert filled is not None, "the note says how long filling took"
    rate = many / float(filled[1].replace(",", ""))
    memory = max(row["rss MB"] for row in crowd["rows"]) * 1e6

    return {
        "pack.asleep.bytes": Figure(
            at_rest, "bytes", "a message, once packs have continued as new", f"{FILLING} {few}"
        ),
        "pack.starts_per_second": Figure(rate, "1/s", "starts by one sender", command),
        "pack.worker.bytes": Figure(memory, "bytes", "memory of a worker process", command),
    }


def _read_database() -> Iterator[tuple[str, Figure]]:
    rows = {row["what"]: row for row in _read_result("database-postgresql")["rows"]}  # of two pack starts, the dearer
    asleep = rows["solo, until asleep"]
    cycle = rows["solo cycle"]
    wake = rows["pack cycle, 1/12"]

    for part, (column, unit, meaning) in PARTS.items():
        own = wake[column] - cycle[column] / wake["in a batch"]
        yield f"solo.start.{part}", Figure(asleep[column], unit, meaning.format("a start, until asleep"), DATABASE)
        yield f"solo.cycle.{part}", Figure(cycle[column], unit, meaning.format("a cold cycle"), DATABASE)
        started = rows["pack start"][column]
        yield f"pack.start.{part}", Figure(started, unit, meaning.format("a start, until taken in"), DATABASE)
        yield f"pack.batch.{part}", Figure(cycle[column], unit, meaning.format("a cold wake"), AS_SOLO, "derived")
        each = meaning.format("each message in it")
        yield f"pack.message.{part}", Figure(own, unit, each, ABOVE_WAKE, "derived")

    left = "what a cycle leaves in the database until retention ends"
    yield "solo.cycle.disk_bytes", Figure(cycle["disk bytes"], "bytes", left, DATABASE)
    yield "solo.asleep.bytes", Figure(asleep["disk bytes"], "bytes", "a sleeping message in PostgreSQL", DATABASE)


def _read_result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _find_row(result: str, **fields: Any) -> dict[str, Any]:
    (found,) = [row for row in _read_result(result)["rows"] if fields.items() <= row.items()]
    return found
