"""The generator: histories of pages that change by stated random laws, the same for the same seed on any machine."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from starter.extras.rehearsal.policies import MICROSECOND

RateLaw = Literal["gamma", "lognormal", "constant"]
RATE_LAWS: tuple[RateLaw, ...] = get_args(RateLaw)
DAY = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """How pages change, in a time that begins at `begin`, in microseconds since 1970.

    Each page has a rate of its own, drawn from `law` with mean `per_day` and shape `shape`: of a gamma distribution the
    shape (small: most pages hardly ever change), of a lognormal one the standard deviation of the logarithm. Bursts
    come as a Poisson process: each has a geometric number of changes with mean `burst`, and after the first one each
    comes an exponential time with mean `within` after the one before. `rhythm`, from 0 to 1, is how much the rate
    goes up and down in a day, as a sine with its peak at hour `peak` in UTC.
    """

    pages: int
    begin: int
    length: timedelta
    law: RateLaw = "gamma"
    per_day: float = 1.0
    shape: float = 1.0
    burst: float = 1.0
    within: timedelta = timedelta(minutes=10)
    rhythm: float = 0.0
    peak: float = 14.0
    seed: int = 0


def generate(options: GeneratorOptions) -> Iterator[tuple[str, int | None]]:
    """Give rows of an id and a moment, in microseconds since 1970; a page that never changes has one without moment."""
    for number in range(options.pages):
        # by its seed, a page is what it is however many others there are
        source = random.Random(f"{options.seed}:{number}")  # noqa: S311 — no secret
        name = f"page-{number}"
        if not (changes := sorted(set(_change(options, source)))):
            yield name, None
        for moment in changes:
            yield name, moment


def _change(options: GeneratorOptions, source: random.Random) -> Iterator[int]:
    """Give the moments at which one page changes, in no order."""
    rate = LAWS[options.law](source, options.per_day, options.shape) / options.burst  # bursts a day
    highest = rate * (1 + options.rhythm)
    end = options.length // MICROSECOND
    at = 0.0

    while highest > 0:
        at += source.expovariate(highest) * DAY
        if at >= end:
            return
        if options.rhythm and source.random() * highest > rate * _find_share(options, at):
            continue  # thinning: what is left has the rate of its moment

        moment = at
        while moment < end:
            yield options.begin + int(moment)
            if source.random() * options.burst < 1:
                break
            moment += source.expovariate(1.0) * (options.within // MICROSECOND)


def _find_share(options: GeneratorOptions, at: float) -> float:
    """Give the rate at a moment as a share of the mean rate."""
    days = (options.begin + at) / DAY - options.peak / 24
    return 1 + options.rhythm * math.cos(2 * math.pi * days)


def _draw_gamma(source: random.Random, mean: float, shape: float) -> float:
    return source.gammavariate(shape, mean / shape)


def _draw_lognormal(source: random.Random, mean: float, shape: float) -> float:
    return source.lognormvariate(math.log(mean) - shape**2 / 2, shape)


def _draw_constant(source: random.Random, mean: float, shape: float) -> float:  # noqa: ARG001 — the shape of every law
    return mean


LAWS: Mapping[RateLaw, Callable[[random.Random, float, float], float]] = {
    "gamma": _draw_gamma,
    "lognormal": _draw_lognormal,
    "constant": _draw_constant,
}
