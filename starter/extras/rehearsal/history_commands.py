"""The commands `rehearse generate` and `rehearse collect`, which make histories of changes for `rehearse`."""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from click import Choice, argument, option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.messages.json_value import parse_json
from shared.messages.timespan import HORIZON, format_exact
from shared.settings import Settings
from starter.cli.arguments import COUNT, DURATION, FILE, MOMENT, OFFSET, Arguments, read_number
from starter.cli.connection import check_kafka
from starter.cli.program import program
from starter.local.terminal import echo_err, plural

if TYPE_CHECKING:
    from starter.extras.rehearsal.generator import GeneratorOptions

LAWS = ("gamma", "lognormal", "constant")
TOPIC_PREFIX = "kafka:"
PAGES_MAX = 100_000_000
PER_DAY_MAX = 100_000.0

GENERATE_HELP = """\
Each page changes at a rate of its own, drawn from --rates with the mean --per-day: gamma with shape --shape, lognormal
with --shape as the standard deviation of the logarithm, or constant. With --burst B a change brings B - 1 more on
average, --within apart. With --rhythm A the rate goes up and down in a day between 1 - A and 1 + A times its mean, with
the most at --peak. The same options make the same history."""

COLLECT_HELP = """\
EVENTS are outcome events as dormice writes them: a file of JSON lines, or kafka:TOPIC with the settings kafka_…. A
change is placed at random between the visit that found it and the one before, because nobody saw when it was; of
several changes between two visits one is found."""


REAL: dict[str, Any] = {"metavar": "X", "type": read_number}


@program.command("rehearse generate", epilog=GENERATE_HELP)
@argument("file", **FILE, help="what to write; CSV or Parquet, by its name")
@option("--pages", **COUNT, default=1000, help="how many (1000)")
@option(
    "begin", "--from", **MOMENT, default="2026-01-01T00:00:00Z", help="where the history begins (2026-01-01T00:00:00Z)"
)
@option("--length", **DURATION, default="30d", help="how long it is (30d)")
@option("--rates", type=Choice(LAWS), default="gamma", help="how the pages' rates are distributed (gamma)")
@option("--per-day", **REAL, default=1.0, help="changes of a page in a day on average (1)")
@option("--shape", **REAL, default=1.0, help="shape of that distribution (1)")
@option("--burst", **REAL, default=1.0, help="changes that come together on average (1)")
@option("--within", **DURATION, default="10m", help="mean time between those (10m)")
@option("--rhythm", **REAL, default=0.0, help="how much the rate goes up and down in a day, 0 to 1 (0)")
@option("--peak", **REAL, default=14.0, help="hour of the day, in UTC, with the most changes (14)")
@option("--seed", **OFFSET, default=0, help="another seed makes another history (0)")
def generate(args: Arguments, settings: Settings) -> int:  # noqa: ARG001 — the shape of every command
    """Write a history of changes by stated random laws."""
    from starter.extras.rehearsal.generator import generate as generate_rows
    from starter.extras.rehearsal.history_file import write_history

    options = _read_options(args)
    rows = write_history(args.file, generate_rows(options))
    end = format_exact((options.begin / 1e6) + options.length.total_seconds())
    echo_err(f"{plural(rows, 'row')} of {plural(options.pages, 'page')}: {args.file}")
    echo_err(f"rehearse with --from {format_exact(options.begin / 1e6)} --until {end}")
    return FINE


def _read_options(args: Arguments) -> "GeneratorOptions":
    from starter.extras.rehearsal.generator import GeneratorOptions
    from starter.extras.rehearsal.policies import to_microseconds

    limits = {
        "pages": (1, PAGES_MAX),
        "per_day": (1e-6, PER_DAY_MAX),
        "shape": (0.01, 100.0),
        "burst": (1.0, 1000.0),
        "rhythm": (0.0, 1.0),
        "peak": (0.0, 24.0),
    }
    for name, (minimum, maximum) in limits.items():
        if not minimum <= (value := getattr(args, name)) <= maximum:
            option = name.replace("_", "-")
            raise InvalidSetting(f"--{option}: is {value:,}; give a number from {minimum:,g} to {maximum:,g}")
    if not timedelta(0) < args.length <= HORIZON:
        raise InvalidSetting(f"--length: is {args.length}; give more than nothing, and at most {HORIZON.days} d")
    names = (*limits, "length", "within", "seed")
    fields = {name: getattr(args, name) for name in names}
    return GeneratorOptions(begin=to_microseconds(args.begin), law=args.rates, **fields)


@program.command("rehearse collect", epilog=COLLECT_HELP)
@argument("events", help="file, or kafka:TOPIC")
@argument("file", **FILE, help="what to write; CSV or Parquet, by its name")
@option("--kind", default="http", help="kind of the messages that visit pages (http)")
async def collect(args: Arguments, settings: Settings) -> int:
    """Make a history of what visits have found."""
    from starter.extras.rehearsal.history_file import write_history
    from starter.extras.rehearsal.outcome_events import CollectedVisits

    visits = CollectedVisits(args.kind)
    async for event in _read_events(args.events, settings):
        visits.add(event)
    first, last = visits.find_span()
    rows = write_history(args.file, visits.rows())
    changes = rows - len(visits)
    echo_err(f"{plural(changes, 'change')} of {plural(len(visits), 'page')}: {args.file}")
    end = format_exact(math.ceil(last / 1e6 + 1))
    echo_err(f"rehearse with --from {format_exact(first // 1_000_000)} --until {end}")
    return FINE


async def _read_events(place: str, settings: Settings) -> AsyncIterator[Mapping[str, Any]]:
    from starter.extras.rehearsal.history_file import read_objects

    if not place.startswith(TOPIC_PREFIX):
        for _, event in read_objects(place):
            yield event
        return
    options = await check_kafka(settings)
    from starter.records.topic_reader import read_topic

    async for record in read_topic(options, place.removeprefix(TOPIC_PREFIX)):
        with suppress(ValueError):  # other records than events are none of ours
            event = parse_json(record.value or b"null")
            if isinstance(event, dict):
                yield cast("dict[str, Any]", event)
