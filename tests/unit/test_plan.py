"""Plans: what the calculator says agrees with what was measured, and grows where it should."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import derive_figures
from shared.messages.timespan import parse_duration
from starter.cli.main import run
from starter.extras.plan.command import ROWS
from starter.extras.plan.figures import FIGURES, MEASURED, Figure
from starter.extras.plan.plan import ENCODINGS, EncodingName, Workload, find_batch, find_load, make_plan
from workflows.packs.calls.batch import BATCH_MAX

RESULTS = Path(__file__).parents[2] / "bench" / "results"
HOUR = 3600.0
DAY = 86400.0

demands = st.builds(
    Workload,
    messages=st.integers(1, 10**9),
    mean_interval=st.floats(1, 365 * DAY),
    handler_time=st.floats(0.001, DAY),
    tolerance=st.none() | st.floats(0, DAY),
    retention=st.floats(HOUR, 30 * DAY),
    starts_per_day=st.floats(0, 10**9),
)
encodings = st.sampled_from(ENCODINGS)


def rows(name: str) -> list[dict[str, Any]]:
    """Give the rows of a benchmark's result."""
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def row(name: str, **fields: Any) -> dict[str, Any]:
    """Give the row of a result that has these values."""
    (found,) = [each for each in rows(name) if fields.items() <= each.items()]
    return found


def test_plans_are_made_of_the_newest_results() -> None:
    """Each benchmark writes its figures into the program, so that the next plan has them."""
    measured = derive_figures()

    assert measured.items() <= FIGURES.items()
    assert json.loads(MEASURED.read_text("utf-8")).keys() == measured.keys()


@given(demands, encodings)
def test_every_demand_has_a_plan_of_finite_numbers(demand: Workload, encoding: EncodingName) -> None:
    """Nothing below what a server is made of, whatever is asked for."""
    plan = make_plan(demand, encoding)

    numbers = [plan.worker_cores, plan.server_cores, plan.database_cores, plan.database_bytes, plan.start_seconds]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert plan.worker_processes >= max(1, plan.worker_cores)
    assert plan.shards & (plan.shards - 1) == 0
    assert 1 <= plan.in_batch <= BATCH_MAX


@given(demands, encodings, st.floats(1.01, 100))
def test_more_is_never_cheaper(demand: Workload, encoding: EncodingName, times: float) -> None:
    """More messages, or longer handlers, need as much or more of everything."""
    before = make_plan(demand, encoding)
    crowd = Workload(
        messages=math.ceil(demand.messages * times),
        mean_interval=demand.mean_interval,
        handler_time=demand.handler_time,
        tolerance=demand.tolerance,
        retention=demand.retention,
        starts_per_day=demand.starts_per_day,
    )
    after = make_plan(crowd, encoding)

    for name in ("worker_cores", "server_cores", "database_cores", "database_bytes", "shards", "partitions"):
        assert getattr(after, name) >= getattr(before, name)


def test_a_pack_wakes_for_as_many_as_was_measured() -> None:
    """Ten million every four hours with a twelfth of that as tolerance: about sixty in a wake (docs/performance.md)."""
    assert find_batch(Workload(messages=10_000_000, mean_interval=4 * HOUR, tolerance=HOUR / 3)) == pytest.approx(
        60, rel=0.1
    )


def test_a_plan_says_which_tolerance_would_help() -> None:
    """Packs of 1,000 that come back every hour and may wait ten seconds: 4 min let fifty of them meet."""
    plan = make_plan(Workload(messages=10**6, mean_interval=HOUR, tolerance=10), "pack")
    enough = make_plan(Workload(messages=10**6, mean_interval=HOUR, tolerance=240), "pack")

    assert "a tolerance of 4 min, if that is fine: a wake costs what it costs, and would run 50 messages at once" in (
        plan.advice
    )
    assert not any("tolerance" in sentence for sentence in enough.advice)


@pytest.mark.parametrize(("count", "interval"), [(1_000_000, HOUR), (10_000_000, 4 * HOUR)])
def test_a_pack_costs_the_worker_what_it_did(count: int, interval: float) -> None:
    """The hour of a million messages, and that of ten million: milliseconds of processor time a cycle."""
    minutes = [each for each in rows(f"packs-fill-{count}") if each["cycles/s"]]
    spent = sum(each["cycles/s"] * each["cpu ms/cycle"] for each in minutes) / sum(each["cycles/s"] for each in minutes)
    demand = Workload(messages=count, mean_interval=interval, tolerance=interval / 12)
    planned = find_load(demand, "pack", find_batch(demand)).worker / demand.cycles_per_second * 1000

    assert planned == pytest.approx(spent, rel=0.25)
    assert planned > spent * 0.95  # rather too much than too little


COLUMNS = {
    "server": ("server cpu ms", 1000),
    "database": ("database cpu ms", 1000),
    "transactions": ("transactions", 1),
    "syncs": ("log syncs", 1),
    "log_bytes": ("log bytes", 1),
}


@pytest.mark.parametrize("share", ["1/12", "1/48"])
@pytest.mark.parametrize("part", COLUMNS)
def test_a_pack_costs_the_server_and_the_database_at_least_what_it_did(share: str, part: str) -> None:
    """With as many messages in a batch as were counted: never less than measured, never twice as much."""
    column, unit = COLUMNS[part]
    measured = row("database-postgresql", what=f"pack cycle, {share}")
    demand = Workload(messages=10**6, mean_interval=DAY)
    planned = getattr(find_load(demand, "pack", measured["in a batch"]), part) / demand.cycles_per_second * unit

    assert measured[column] * 0.97 < planned < measured[column] * 2


def test_longer_handlers_move_to_a_lane_for_them() -> None:
    """And cost the database what an ordinary activity costs."""
    short, medium, long = (
        make_plan(Workload(messages=10**6, mean_interval=DAY, handler_time=t), "solo") for t in (1, 60, HOUR)
    )

    assert [plan.lane for plan in (short, medium, long)] == ["short", "medium", "long"]
    assert medium.transactions_per_second == pytest.approx(short.transactions_per_second * 7 / 3)
    assert long.worker_processes > medium.worker_processes


def test_retention_costs_solo_alone() -> None:
    """A pack deletes the runs that it continued from."""
    day, month = (
        {
            encoding: make_plan(Workload(messages=10**7, mean_interval=DAY, retention=days * DAY), encoding)
            for encoding in ENCODINGS
        }
        for days in (1, 30)
    )

    assert month["solo"].closed_bytes == pytest.approx(30 * day["solo"].closed_bytes)
    assert month["pack"].closed_bytes == day["pack"].closed_bytes == 0


PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")


@pytest.mark.parametrize(("interval", "tolerance"), [("4h", 1200.0), ("1d", None)])
def test_the_tables_of_the_page_are_what_the_calculator_says(interval: str, tolerance: float | None) -> None:
    """Ten, thirty and a hundred million, in both encodings, row by row."""
    seconds = parse_duration(interval).total_seconds()
    demands = [Workload(messages=count * 10**6, mean_interval=seconds, tolerance=tolerance) for count in (10, 30, 100)]
    plans = [make_plan(demand, encoding) for demand in demands for encoding in ENCODINGS]
    header = ["", *(f"{count} M, {encoding}" for count in (10, 30, 100) for encoding in ENCODINGS)]
    rows = [
        header,
        ["---"] * len(header),
        *([name, *map(show, plans)] for name, show in ROWS[2:] if "due at once" not in name),
    ]
    table = "\n".join(
        f"| {' | '.join(cells)} |".replace("|  |", "| |").replace(" --- |", "---|").replace("| ---", "|---")
        for cells in rows
    )

    assert f"--mean-interval {interval}" in PAGE
    assert table in PAGE, table


def test_the_page_has_every_figure_with_its_source() -> None:
    """As the calculator has it, so that whoever measures anew writes it there, too."""
    rows = [
        f"| `{name}` | {show_figure(figure)} | {figure.meaning} | {figure.source} | {figure.basis} |"
        for name, figure in FIGURES.items()
    ]

    assert "\n".join(rows) in PAGE, "\n".join(rows)


def show_figure(figure: Figure) -> str:
    """Write a figure with its unit, as the page does."""
    return (
        f"{figure.value:,.4g} {figure.unit}".strip()
        if figure.value < 1e4
        else f"{figure.value:,.0f} {figure.unit}".strip()
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--messages 0 --mean-interval 1d", "--messages: is 0; give a number from 1 to 1,000,000,000,000"),
        (
            "--messages ten --mean-interval 1d",
            "'--messages': is 'ten'; give a whole number, like 10000000, 10_000_000 or 10M",
        ),
        (
            "--messages 1k --mean-interval 10",
            "'--mean-interval': is '10', no duration; write for example 90s, 15m, 6h or 2d",
        ),
        ("--messages 1k --mean-interval 500ms", "--mean-interval: is 0.5 s; give a time from 1.0 s to 3653 d"),
        (
            "--messages 1k --mean-interval 1d --handler-time 2d",
            "--handler-time: is 2 d; give a time from 0.001 s to 1 d",
        ),
        ("--messages 1k --mean-interval 1d --handler-cpu 1s", "--handler-cpu: is 1.0 s; give a time from 0 s to 0.1 s"),
        ("--messages 1k --mean-interval 1d --retention 1m", "--retention: is 1 min; give a time from 1 h to 3653 d"),
        ("--messages 1k --mean-interval 1d --herd 2k", "--herd: is 2,000; give a number from 0 to 1,000"),
        (
            "--messages 1k --mean-interval 1d --pack-messages 1M",
            "--pack-messages: is 1,000,000; give a number from 1 to 5,000",
        ),
        ("--mean-interval 1d", "Missing option '--messages'"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the option, and the exit code says that the input is wrong."""
    assert run(["plan", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""


def test_programs_get_the_plans_with_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """One document: what was asked for, each encoding's plan, every figure with its source."""
    assert run(["plan", "--messages", "10M", "--mean-interval", "4h", "--herd", "1M", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert told["demand"]["messages"] == 10_000_000
    assert [plan["encoding"] for plan in told["plans"]] == ["solo", "pack"]
    assert all(plan["herd_seconds"] > 0 for plan in told["plans"])
    assert told["figures"].keys() == FIGURES.keys()


def test_every_figure_says_where_it_comes_from() -> None:
    """And is used: a plan reads each by its name."""
    source = "".join(
        path.read_text() for path in (Path(__file__).parents[2] / "starter" / "extras" / "plan").glob("plan.py")
    )

    for name, figure in FIGURES.items():
        assert figure.source
        assert figure.meaning
        encoding, _, rest = name.partition(".")
        what = rest.partition(".")[0]
        candidates = (f'"{name}"', f'{{encoding}}.{rest}"', f'"{encoding}.{what}"', f'{{encoding}}.{what}"')
        assert any(candidate in source for candidate in candidates), name
