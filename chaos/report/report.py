"""The report of a run as JSON, with its verdict: which promises were broken, and whether the run tested anything."""

import json
import os
import platform
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chaos.checks.checkers import REPEATED, Impact
from chaos.faults import TASK_TIMEOUT_SECONDS
from chaos.load.workload import count_messages
from chaos.run import LAG, TASKS_MAX, ChaosOptions, Outcome
from starter.local.terminal import print_fields

HITS_SHARE_MIN = 0.25
"""Least share of the faults that must hit calls in flight; otherwise the run tested nothing."""

BATCHES_MIN = REPEATED_MIN = 1
ENDED_MAX = 20
"""Faults make parts end by themselves, such as the bridge without its broker; this often, or once a fault, is fine."""

WORDS = (
    "lost",
    "standing still",
    "duplicated",
    "early",
    "unexpected",
    "version gap",
    "revision lost",
    "revision undone",
    REPEATED,
)
"""The findings of the checkers, in the order of the report."""


def to_document(options: ChaosOptions, outcome: Outcome) -> dict[str, Any]:
    """Give the report of a run."""
    found = outcome.inspection.examination
    injector = outcome.injector
    document: dict[str, Any] = {
        "system": options.system,
        "seed": options.seed,
        "minutes": options.minutes,
        "command": options.command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "temporalio": version("temporalio"),
        "task_timeout_seconds": TASK_TIMEOUT_SECONDS,
        "messages": dict(count_messages(options.sizes)),
        "counts": outcome.counts,
        "cycles": found.cycles,
        "cycles_by_group": dict(sorted(found.cycles_by_group.items())),
        "calls": found.calls,
        "calls_failed_on_purpose": found.failed,
        "calls_repeated": found.repeated,
        "acknowledged": found.acknowledged,
        "lateness_seconds": summarize(found.lateness),
        "recovery_seconds": summarize(i.recovery_seconds for i in found.impacts if i.recovery_seconds is not None),
        "faults": [_write_impact(impact) for impact in found.impacts],
        "faults_left_out": [list(pair) for pair in injector.left_out],
        "ended_by_themselves": [list(pair) for pair in injector.ended],
        "found": {word: found.findings.counts.get(word, 0) for word in WORDS},
        "examples": found.findings.examples,
        "stood_still_after_two_more_minutes": [track.name for track in outcome.inspection.later],
        "server_says": outcome.inspection.known,
        "transfer_tasks": outcome.tasks,
        "seconds": round(outcome.inspection.ended_at - outcome.began_at, 1),
    }

    return document | {"broken": find_broken(document), "untested": find_untested(document)}


def find_broken(document: Mapping[str, Any]) -> list[str]:
    """Give a sentence for each broken promise."""
    broken = [f"{word}: {count:,}" for word, count in document["found"].items() if count]
    if document["transfer_tasks"] >= TASKS_MAX:
        broken.append(
            f"the server keeps {document['transfer_tasks']:,} transfer tasks; fewer than {TASKS_MAX:,} is fine"
        )
    if lag := document["counts"].get(LAG, 0):
        broken.append(f"the bridge stands still before {lag:,} records")
    return broken


def find_untested(document: Mapping[str, Any]) -> list[str]:
    """Give a sentence for each reason why the run tested nothing."""
    faults: list[Mapping[str, Any]] = document["faults"]
    hits = sum(bool(fault["in_flight"]) for fault in faults)
    reasons: list[str] = []
    if hits < max(1, HITS_SHARE_MIN * len(faults)):
        reasons.append(f"{hits} of {len(faults)} faults met calls in flight; {HITS_SHARE_MIN:.0%} at least must")
    if sum(fault["batches_lost"] for fault in faults) < BATCHES_MIN:
        reasons.append("no batch was lost with its worker")
    if document["calls_repeated"] < REPEATED_MIN:
        reasons.append("no handler was called again for a version")

    for part, times in Counter(part for part, *_ in document["ended_by_themselves"]).items():
        if times > max(ENDED_MAX, len(faults)):
            reasons.append(f"{part} ended by itself {times} times; it hardly ran")

    return reasons


def _write_impact(impact: Impact) -> dict[str, Any]:
    fault = impact.injected
    recovery = impact.recovery_seconds
    return {
        **asdict(fault),
        "began_at": datetime.fromtimestamp(fault.began_at, UTC).isoformat(timespec="milliseconds"),
        "ended_at": datetime.fromtimestamp(fault.ended_at, UTC).isoformat(timespec="milliseconds"),
        "seconds": round(fault.ended_at - fault.began_at, 2),
        "in_flight": impact.in_flight,
        "calls_lost": impact.calls_lost,
        "batches_lost": impact.batches_lost,
        "due_at_end": impact.due_at_end,
        "recovery_seconds": None if recovery is None else round(recovery, 2),
        "is_overlapped": impact.is_overlapped,
    }


def summarize(seconds: Iterable[float]) -> dict[str, float]:
    """Give median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99, 1.0)]
    return dict(zip(("p50", "p99", "max"), (round(value, 3) for value in at), strict=True))


def group_recoveries(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Give for each kind of fault how often it was injected, what it hit, and how long recovery took."""
    kinds: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for fault in document["faults"]:
        kinds[fault["fault"]].append(fault)

    grouped: dict[str, dict[str, float]] = {}
    for name, faults in sorted(kinds.items()):
        known = [fault["recovery_seconds"] for fault in faults if fault["recovery_seconds"] is not None]
        grouped[name] = {
            "count": len(faults),
            "in_flight": sum(sum(fault["in_flight"].values()) for fault in faults),
            "batches_lost": sum(fault["batches_lost"] for fault in faults),
            "due_at_end": sum(fault["due_at_end"] for fault in faults),
            "median": statistics.median(known) if known else 0.0,
            "max": max(known, default=0.0),
            "not_back": len(faults) - len(known),
        }

    return grouped


def print_summary(document: Mapping[str, Any]) -> None:
    """Print the summary of a run to standard output."""
    faults = document["faults"]
    print_fields(
        [
            ("system", f"{document['system']}, seed {document['seed']}, {document['minutes']:g} minutes of faults"),
            ("messages", f"{document['acknowledged']:,} acknowledged"),
            ("cycles", f"{document['cycles']:,}; {document['calls_repeated']:,} calls were repeated"),
            ("faults", f"{len(faults)}, {sum(bool(f['in_flight']) for f in faults)} of them met calls in flight"),
            ("lateness", write_spans(document["lateness_seconds"])),
            ("recovery", write_spans(document["recovery_seconds"])),
            ("lost with workers", f"{sum(fault['batches_lost'] for fault in faults):,} batches"),
            *((word, f"{count:,}") for word, count in document["found"].items()),
            ("transfer tasks", f"{document['transfer_tasks']:,}"),
        ]
    )
    sys.stdout.write("\n")

    for name, row in group_recoveries(document).items():
        sys.stdout.write(
            f"{row['count']:4}  {name}: {row['in_flight']:,} calls in flight, {row['due_at_end']:,} due at its end, "
            f"back after {row['median']:.1f} s (median), {row['max']:.1f} s (most)\n"
        )

    for word, sentences in document["examples"].items():
        for sentence in sentences[:5]:
            sys.stdout.write(f"{word}: {sentence}\n")

    for sentence in document["broken"]:
        sys.stdout.write(f"a promise was broken: {sentence}\n")

    for sentence in document["untested"]:
        sys.stdout.write(f"nothing was tested: {sentence}\n")


def write_spans(summary: Mapping[str, float]) -> str:
    """Write a summary of seconds for a person."""
    return ", ".join(f"{name} {seconds:g} s" for name, seconds in summary.items())


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write the report of a run as JSON."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
