"""`./run simulate`: simulations from random seeds for a while, or one from a given seed."""

import argparse
import secrets
import sys
import time
from collections import Counter

from chaos.simulation.simulation import Outcome, simulate

SEED_BITS = 32


def main() -> int:
    """Simulate, print the result, and give the exit code."""
    parser = argparse.ArgumentParser(prog="./run simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="the one seed to run; the same seed gives the same simulation")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run random seeds (default: 60)")

    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _report([simulate(arguments.seed)], 0.0)

    outcomes: list[Outcome] = []
    begun = time.monotonic()
    while (took := time.monotonic() - begun) < arguments.seconds:
        outcomes.append(simulate(secrets.randbits(SEED_BITS)))
        if outcomes[-1].failure:
            break

    return _report(outcomes, took)


def _report(outcomes: list[Outcome], took: float) -> int:
    hits: Counter[str] = sum((outcome.hits for outcome in outcomes), Counter[str]())
    steps = sum(o.steps for o in outcomes)
    calls = sum(o.calls for o in outcomes)
    hours = sum(o.virtual_seconds for o in outcomes) / 3600
    pace = f", {len(outcomes) / took:.1f} a second" if took else ""
    print(f"{len(outcomes)} seeds{pace}: {steps:,} steps, {calls:,} handler calls, {hours:,.1f} virtual hours")

    for kind, count in sorted(hits.items()):
        print(f"  {count:7,}  {kind}")

    if not (last := outcomes[-1]).failure:
        print("every promise was kept")
        return 0

    print(*last.last_steps, sep="\n")
    print(f"seed {last.seed}: {last.failure}\nto see it again: ./run simulate --seed {last.seed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
