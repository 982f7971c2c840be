"""The page docs/chaos.md, written from the results of the runs on each system."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.checks.checkers import SERVER_AFTERMATH_SECONDS
from chaos.faults import CLUSTER, EMBEDDED
from chaos.load.groups import TIMEOUT_SECONDS
from chaos.report.report import group_recoveries, write_json, write_spans
from chaos.run import DRAIN_SECONDS, TASKS_MAX
from chaos.system.system import CACHED_WORKFLOWS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "chaos" / "results"
PAGE = ROOT / "docs" / "chaos.md"
TITLES = {EMBEDDED: "On the embedded server", CLUSTER: "On Temporal's server with PostgreSQL"}

INTRODUCTION = """\
# Chaos

What became of the promises while the real system was killed, stopped and starved: published runs.

<!-- written by ./run chaos --publish from chaos/results; what it says beside the numbers is in chaos/report/page.py -->

`./run chaos [--minutes N] [--seed S] [--cluster]` runs the real thing (Temporal's server, workers, a Kafka broker with
a bridge, a Spark start), does faults to it that are drawn from a seed, and compares what was promised with a ledger
that handlers and senders keep outside of it. A broken promise is exit code 1; a run that tested nothing is exit code 3.

## What is claimed

Word for word what [README.md](../README.md#what-is-promised) promises:

"""

EXPLANATION = f"""
## How it is found out

Every call of a handler writes two entries to one file, when it begins and when it ends: which message, version and
attempt, when it was due, how long a delay it asked for, and the process. Whoever starts, revises, steers or stops a
message writes what was sent and what was acknowledged. After the run one pass over the file looks, in Jepsen's words,
for

| word | meaning |
|---|---|
| lost | acknowledged, and never called |
| standing still | due, and not called within its tolerance and 20 s, once the last fault was over |
| duplicated | one version that was called with two due times: its state was kept twice, or fell back |
| early | called before it was due, or before the moment that the call before had asked for, and no verb had asked |
| unexpected | called and never sent, or called after its stop was acknowledged |
| version gap | a version was left out |
| revision lost | a payload that was acknowledged and that no later call has seen |
| revision undone | a later version was called with an older payload |
| repeated without a fault | a version was called again although its call had neither failed nor used up its time, \
and no fault had hit either worker, or the server less than {SERVER_AFTERMATH_SECONDS:.0f} s before |

That a call comes again after a fault is fine: *at least once* is what is promised; such calls are counted apart.
A message of the sample that verbs steer is left out where a verb makes another answer right: of early and duplicated.
At the end, or up to {DRAIN_SECONDS:.0f} s later, the server must keep fewer than {TASKS_MAX:,} transfer tasks: more of
them say that its queue is pinned.

Recovery is the time from the end of a fault, when the killed program was started again or the stopped one went on,
until every message that was due at that moment has run; one whose record the bridge has yet to bring is not due. Faults
often overlap, so one's recovery may hold the next one's outage.

Handlers do real I/O: a call takes 0.1 to 0.3 s, one in a hundred 10 s, and one in two thousand is never answered and
lasts until its handler's timeout, {TIMEOUT_SECONDS:.0f} s. Solo messages and a tenth of the packed ones ask a web
server of the run; the others sleep as long. Workers keep {CACHED_WORKFLOWS} workflows a lane in memory, so hardly one
that wakes is there.
"""

FOUND = """
## What it has found so far

- 16 messages stood still for 22 minutes beside others that ran, because a pack deleted the run that it left within a
  second and so pinned the server's transfer queue. Left runs are now deleted when their closing is long acknowledged.
- 886 of 7,000 messages stood still for five to six and a half minutes after the fourth kill of everything: the same
  cause, seen after a restart, when the whole pinned range of the queue is read again.
- Records that followed a tombstone were lost while no worker was there: a message with a workflow of its own was still
  open when they came, took the tombstone first, and ended with the newer payload in hand. The bridge had committed
  them.
- The transfer queue was pinned once more, with 22,000 tasks, on a server that was as busy as it could be after a row of
  kills: a history shard lets one write through at a time and deletes last, so none of them was ever done. Shards now
  write 64 at once.
- Packs on `medium` ran one message at a time, every ten seconds, behind 400 other messages. The probable cause: a
  worker asked for three workflow tasks at once, too few for a busy server, and a batch that was lost with three workers
  in a row was tried again message by message. Workers now ask for ten, and such a batch is split by eight until the
  culprit is found; it was not seen again.
- 12 of 88 packs stood still for good within 40 minutes, once caches were small and calls slow: a query that met a
  signal left a run in a state that no replay came to. Workers now keep what has no task yet out of a workflow.
"""

NOT_COVERED = """
## What is not covered

- One machine: no network between the parts fails, is slow or splits; no clock is wrong.
- A power cut. A killed process loses nothing that it gave to the kernel; what a disk had not stored yet is another
  matter.
- The disk is full for the embedded server's data alone, not for the broker, PostgreSQL or the workers.
- A full disk is a file system in memory that is cut down to what it holds; it needs the right to mount one.
- Several Temporal servers of one cluster, Cassandra, and the loss of a replica of PostgreSQL or Kafka.
- Worker versioning, encryption, gates that close and idle pull-forward while faults are done.
- Versions of dormice side by side.
- Lane `long`, and handlers that block, leak or kill their process: tests of their own do that.
- Whether a verb had its effect: verbs only must not disturb, and a pause must not become a standstill.
"""


def publish(document: Mapping[str, Any]) -> None:
    """Add a run to those of its system, and write the page anew; runs of an older code are deleted by hand."""
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{document['system']}-{document['seed']}.json", document)
    PAGE.write_text(render_page(ROOT / "README.md", RESULTS))


def render_page(readme: Path, results: Path) -> str:
    """Write the page from what is promised and from the results that are there."""
    parts = [INTRODUCTION, *_render_claims(readme.read_text("utf-8")), EXPLANATION]
    for system, title in TITLES.items():
        runs = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob(f"{system}-*.json"))]
        parts += [f"\n## {title}\n\n", *(_render_runs(runs) if runs else ["Not run yet.\n"])]
    return "".join((*parts, FOUND, NOT_COVERED))


def _render_runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write a system's runs one after the other, behind what they come to together."""
    cycles = sum(run["cycles"] for run in runs)
    faults = [fault for run in runs for fault in run["faults"]]
    hits = sum(bool(fault["in_flight"]) for fault in faults)
    found = sum(sum(run["found"].values()) for run in runs)
    yield f"Runs: {len(runs)}, with {cycles:,} cycles and {len(faults)} faults in all, of which {hits} met calls in "
    yield f"flight. Broken promises: {found:,}.\n"

    for run in runs:
        yield f"\n### Seed {run['seed']}\n\n"
        yield from _render_run(run)


def _render_claims(readme: str) -> Iterator[str]:
    _, _, section = readme.partition("## What is promised")
    yield "| promise | how |\n|---|---|\n"
    for promise, how in re.findall(
        r"^\| ((?!promise\b|-)[^|]+) \| ([^|]+) \|", section.partition("\n## ")[0], re.MULTILINE
    ):
        yield f"| {promise} | {how} |\n"


def _render_run(document: Mapping[str, Any]) -> Iterator[str]:
    faults = document["faults"]
    late = document["lateness_seconds"]
    hits = sum(bool(fault["in_flight"]) for fault in faults)
    lost = sum(fault["batches_lost"] for fault in faults)
    yield f"`{document['command']}`, {document['date']}, {document['machine']},\nPython {document['python']}, "
    timeout = document["task_timeout_seconds"]
    yield f"temporalio {document['temporalio']}. Workflow tasks time out after {timeout:g} s.\n\n"
    yield "| messages that come back | number |\n|---|---|\n"

    for name, number in document["messages"].items():
        yield f"| {name} | {number:,} |\n"

    yield "\nBeside them messages that are done after one cycle, revisions and tombstones by Kafka, and verbs.\n"
    yield "\n| what happened | |\n|---|---|\n"
    rows = {
        "cycles": f"{document['cycles']:,}",
        "messages acknowledged": f"{document['acknowledged']:,}",
        "calls that came again for a version": f"{document['calls_repeated']:,}",
        "calls that failed on purpose": f"{document['calls_failed_on_purpose']:,}",
        "faults": f"{len(faults)}, of which {hits} met calls in flight",
        "batches lost with their worker": f"{lost:,}",
        "lateness of all calls, under faults": write_spans(late),
        "recovery of all faults": write_spans(document.get("recovery_seconds", {})),
        **{name: f"{value:,}" for name, value in document["counts"].items()},
    }
    yield from (f"| {name} | {value} |\n" for name, value in rows.items())
    yield "\n| looked for | found |\n|---|---|\n"
    yield from (f"| {word} | {count:,} |\n" for word, count in document["found"].items())
    yield f"| transfer tasks at the end | {document['transfer_tasks']:,} |\n"
    yield "\n| fault | times | calls in flight | batches lost | due at its end | back after, median | most |\n"
    yield "|---|---|---|---|---|---|---|\n"

    for name, row in group_recoveries(document).items():
        yield f"| {name} | {row['count']} | {row['in_flight']:,} | {row['batches_lost']:,} | {row['due_at_end']:,} "
        yield f"| {row['median']:.1f} s | {row['max']:.1f} s |\n"

    yield from _render_verdict(document)


def _render_verdict(document: Mapping[str, Any]) -> Iterator[str]:
    if document["faults_left_out"]:
        left_out = sorted({f"{name} ({reason})" for name, reason in document["faults_left_out"]})
        yield f"\nLeft out: {'; '.join(left_out)}.\n"
    for title, sentences in (("A promise was broken", document["broken"]), ("No test", document["untested"])):
        yield from (f"\n**{title}**: {sentence}.\n" for sentence in sentences)
    for word, sentences in document["examples"].items():
        yield from (f"\n- {word}: {sentence}\n" for sentence in sentences[:3])
