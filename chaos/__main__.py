"""`./run chaos`: runs the real system under faults, and checks the promises with a ledger outside of it."""

import asyncio
import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from click import FloatRange, command, option
from temporalio.runtime import Runtime, TelemetryConfig

from chaos.faults import CLUSTER, EMBEDDED
from chaos.load.workload import Sizes
from chaos.report.page import publish
from chaos.report.report import print_summary, to_document, write_json
from chaos.run import ChaosOptions, run_chaos
from shared.errors import DormiceError, InvalidSetting
from shared.exit import FINE, INTERRUPTED, PARTLY, UNREACHABLE, code_of
from starter.cli.arguments import COUNT, FILE, Arguments
from starter.local.terminal import echo_err
from worker.options import parse


def main(arguments: Sequence[str]) -> int:
    """Carry out one run and give the exit code."""
    try:
        return parse(run, "./run chaos", arguments)
    except (asyncio.CancelledError, KeyboardInterrupt):
        echo_err("chaos: interrupted; all that was started has ended")
        return INTERRUPTED
    except DormiceError as exc:
        echo_err(f"chaos: {exc}")
        return code_of(exc)


@command()
@option(
    "--minutes",
    metavar="N",
    type=FloatRange(0.5, 1440),
    default=4.0,
    help="how long faults are done (4); two more follow",
)
@option("--seed", metavar="S", type=int, help="what the faults are drawn from; a new one when left out")
@option("--cluster", is_flag=True, help="Temporal's server on PostgreSQL in place of the embedded one")
@option("--packed", **COUNT, help=f"messages in packs on short ({Sizes().packed})")
@option(
    "--load", metavar="SHARE", type=FloatRange(0.01, 100), default=1.0, help="share of the usual numbers and rates (1)"
)
@option("--report", **FILE, help="write what was found as JSON")
@option("--publish", is_flag=True, help="add it to the runs of chaos/results and docs/chaos.md")
def run(**options: Any) -> int:
    """Run solo and packed messages on two workers, a bridge and a Spark start, under faults drawn from a seed.

    Exit codes: 0 every promise was kept, 1 one was broken, 2 wrong input, 3 it was no test, or a part did not start.
    """
    args = Arguments(**options)
    if args.report is not None and not args.report.parent.is_dir():
        raise InvalidSetting(f"--report: there is no folder {args.report.parent}; make it first")
    return asyncio.run(_run(args))


def _write_command(args: Arguments, seed: int) -> str:
    options = [f"--minutes {args.minutes:g}", f"--seed {seed}"]
    options += ["--cluster"] if args.cluster else []
    options += [] if args.packed is None else [f"--packed {args.packed}"]
    options += [] if args.load == 1 else [f"--load {args.load:g}"]
    return " ".join(["./run chaos", *options])


async def _run(args: Arguments) -> int:
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: task and task.cancel())
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the broker is killed on purpose
    seed = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    # the SDK's core would log each call that meets a fault
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    sizes = Sizes().scale(args.load)
    system = CLUSTER if args.cluster else EMBEDDED
    used_sizes = sizes if args.packed is None else replace(sizes, packed=args.packed)
    options = ChaosOptions(
        minutes=args.minutes,
        seed=seed,
        command=_write_command(args, seed),
        system=system,
        sizes=used_sizes,
    )
    began = time.monotonic()

    def note(sentence: str) -> None:
        echo_err(f"{time.monotonic() - began:6.0f} s  {sentence}")

    echo_err(f"seed {seed}; the same faults come again with --seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="dormice-chaos-"))
    is_kept = True
    try:
        outcome = await run_chaos(options, folder, note)
        document = to_document(options, outcome)
        is_kept = bool(document["broken"] or document["untested"])
    except asyncio.CancelledError:
        is_kept = False
        raise
    finally:
        if is_kept:
            echo_err(f"chaos: all files are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print_summary(document)
    if args.report is not None:
        write_json(args.report, document)
    if args.publish:
        publish(document)
    if document["broken"]:
        return PARTLY
    return UNREACHABLE if document["untested"] else FINE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
