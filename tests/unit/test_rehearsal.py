"""The rehearsal without files: exact sums, the closed forms for Poisson changes, references and budgets."""

import itertools
import json
import math
import pickle
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from activities.api.policies import NutchRules, nutch_adaptive
from activities.handlers.http.handler import http
from activities.handlers.http.plan import START_INTERVAL as HTTP_START_INTERVAL
from activities.testing import live, make_message, open_site
from shared.errors import GiveUp, InvalidSetting
from shared.messages.message import HandlerCall, Outcome
from shared.messages.outcome_event import to_event
from shared.messages.placement import unit_hash
from starter.extras.rehearsal.generator import DAY, GeneratorOptions, generate
from starter.extras.rehearsal.history_file import ChangeHistories
from starter.extras.rehearsal.outcome_events import CollectedVisits
from starter.extras.rehearsal.policies import (
    FixedPolicy,
    FunctionPolicy,
    NutchPolicy,
    Visit,
    read_policy,
)
from starter.extras.rehearsal.references import (
    REFERENCES,
    age,
    expected_freshness,
    freshness,
    share_optimally,
    trace_optimum,
)
from starter.extras.rehearsal.rehearsal import LocalHistories, RehearsalOptions, rehearse
from starter.extras.rehearsal.simulation import HOUR, ChangeHistory, PacedPolicy, Period, Totals, rehearse_all

SECOND = 1_000_000
BEGIN = 20_000 * DAY
MONTH = Period(BEGIN, BEGIN + 30 * DAY, BEGIN)
options_of = partial(GeneratorOptions, begin=BEGIN, length=timedelta(days=30))


def double(visit: Visit) -> timedelta:
    """Visit in 10 s after a change, else twice as late as before; a policy of a user."""
    return timedelta(seconds=10) if visit.is_changed in (True, None) else 2 * visit.interval


def fail(visit: Visit) -> timedelta:
    """Fail at the third visit."""
    return timedelta(hours=1) / (3 - visit.visits)


def mistake(visit: Visit) -> int:
    """Give something else than a timedelta."""
    return visit.visits


def histories_of(options: GeneratorOptions) -> ChangeHistories:
    """Give generated histories."""
    found: dict[str, list[int]] = {}
    for name, moment in generate(options):
        found.setdefault(name, []).extend([] if moment is None else [moment])
    return ChangeHistories(found)


class Listing:
    """A policy that notes when it was asked."""

    def __init__(self, policy: NutchPolicy | FunctionPolicy) -> None:
        self._policy = policy
        self.moments: list[int] = []

    def decide(self, visit: Visit) -> timedelta:
        """Note the moment, unless it is before the first visit."""
        if visit.visits:
            self.moments.append(visit.now)
        return self._policy.decide(visit)


def count_slowly(changes: Sequence[int], visits: Sequence[int], period: Period) -> Totals:
    """Count from the definitions, for each change by itself."""
    begin = period.measured_from
    end = period.end
    totals = Totals([0] * period.hours, histories=1)
    inside = [change for change in changes if period.begin < change < end]
    found = {change: next((visit for visit in visits if visit >= change), None) for change in inside}

    for visit in visits:
        if visit >= begin:
            totals.visits += 1
            totals.hours[(visit - begin) // HOUR] += 1

    measured = {change: visit for change, visit in found.items() if change >= begin}
    totals.changes = len(measured)
    totals.seen = sum(visit is not None for visit in measured.values())
    totals.finds = len({visit for visit in measured.values() if visit is not None})
    totals.delay = sum(visit - change for change, visit in measured.items() if visit is not None)
    oldest: dict[int | None, int] = {}

    for change, visit in found.items():
        oldest[visit] = min(oldest.get(visit, change), change)

    for visit, change in oldest.items():
        since = max(change, begin)
        until = end if visit is None else visit
        if since < until:
            totals.stale += until - since
            totals.squares += (until - change) ** 2 - (since - change) ** 2

    return totals


@hypothesis_settings(max_examples=150)
@given(
    changes=st.lists(st.integers(-5, 400), max_size=20, unique=True).map(sorted),
    name=st.text(max_size=3),
    warm_up=st.integers(0, 200),
    factor=st.sampled_from([1.0, 1.5, 7.0]),
    step=st.integers(1, 100),
)
def test_the_sums_are_those_of_the_definitions(
    changes: list[int], name: str, warm_up: int, factor: float, step: int
) -> None:
    """For an adaptive policy, a user's function and a fixed interval, from any moment on."""
    moments = [BEGIN + second * SECOND for second in changes]
    period = Period(BEGIN, BEGIN + 300 * SECOND, BEGIN + warm_up * SECOND)
    rules = NutchPolicy(timedelta(seconds=10), NutchRules())
    for policy in (rules, FunctionPolicy(f"{__name__}:double")):
        listing = Listing(policy)
        (totals,) = rehearse_all([(name, moments)], period, [PacedPolicy(listing, factor)])
        assert totals == count_slowly(moments, listing.moments, period)

    interval = int(step * SECOND * factor)
    visits = range(BEGIN + int(unit_hash(name) * interval), period.end, interval)
    (totals,) = rehearse_all([(name, moments)], period, [PacedPolicy(FixedPolicy(step * SECOND), factor)])
    assert totals == count_slowly(moments, visits, period)


@pytest.mark.parametrize("visits", [3, 30, 120, 1000])
def test_a_fixed_interval_keeps_poisson_pages_as_fresh_as_the_closed_form_says(visits: int) -> None:
    """Freshness and age, Cho and Garcia-Molina; so do the shares of missed changes and of visits that find one."""
    pages = 400
    changes = 30.0
    histories = histories_of(options_of(pages=pages, law="constant", per_day=changes / 30, seed=3))
    (totals,) = rehearse_all(histories, MONTH, [PacedPolicy(FixedPolicy(round(30 * DAY / visits)))])
    r = changes / visits
    measured = pages * MONTH.measured

    # the copy is current at the beginning, not at a random moment, and the last changes find no visit any more
    slack = 0.01 + 1 / visits
    assert 1 - totals.stale / measured == pytest.approx(freshness(changes, visits), abs=0.3 * slack)
    assert totals.squares / 2 / measured == pytest.approx(age(changes, visits) * 30 * DAY / visits, rel=2 * slack)
    assert totals.finds / totals.visits == pytest.approx(-math.expm1(-r), rel=2 * slack)
    assert totals.missed / totals.seen == pytest.approx(1 + math.expm1(-r) / r, abs=slack)


@hypothesis_settings(max_examples=40)
@given(
    pages=st.dictionaries(st.integers(0, 60), st.integers(1, 5), min_size=2, max_size=3),
    budget=st.floats(0.5, 500),
)
def test_no_other_shares_of_a_budget_are_fresher_than_the_optimum(pages: dict[int, int], budget: float) -> None:
    """Compared with all others of a grid; and the whole budget is used, if any page changes."""
    found = share_optimally(pages, budget)
    best = expected_freshness(pages, found)
    shares = [part for part in itertools.product(range(21), repeat=len(pages)) if sum(part) == 20]
    others = [
        {count: budget * part / 20 / pages[count] for count, part in zip(pages, each, strict=True)} for each in shares
    ]

    assert sum(found[count] * number for count, number in pages.items()) == pytest.approx(budget)
    assert all(expected_freshness(pages, other) <= best + 1e-9 for other in others)
    assert all(expected_freshness(pages, share(pages, budget)) <= best + 1e-9 for share in REFERENCES.values())


def test_pages_that_change_too_often_are_not_worth_a_visit() -> None:
    """The optimum leaves them out, as in Cho and Garcia-Molina's example, and a page that never changes too."""
    found = share_optimally({0: 1, 1: 1, 1000: 1}, 2.0)

    assert (found[0], found[1000]) == (0.0, 0.0)
    assert found[1] == pytest.approx(2.0)
    assert share_optimally({0: 3}, 5.0) == {0: 0.0}
    assert trace_optimum({0: 3}, 1.0, 10.0) == []


def test_the_curve_of_the_optimum_is_the_optimum_of_each_budget() -> None:
    """It rises, and lies between the two ends."""
    pages = {0: 2, 3: 10, 40: 5}
    curve = trace_optimum(pages, 10.0, 1000.0)

    assert len(curve) > 5
    assert curve == sorted(curve)
    for visits, share in curve:
        assert 10 <= visits <= 1000
        assert expected_freshness(pages, share_optimally(pages, visits)) == pytest.approx(share)


def test_parts_add_up_to_the_whole_in_any_order() -> None:
    """Every sum is a whole number, so nothing depends on who has worked on what."""
    histories: list[ChangeHistory] = list(histories_of(options_of(pages=60, burst=2.0)))
    policies = [PacedPolicy(read_policy(text), 1.3) for text in ("adaptive", "fixed:7h")]
    whole = rehearse_all(histories, MONTH, policies)
    totals = rehearse_all((), MONTH, policies)
    for part in (histories[40:], histories[7:40], histories[:7]):
        for total, more in zip(totals, rehearse_all(reversed(part), MONTH, policies), strict=True):
            total.add(Totals(**json.loads(json.dumps(more.to_document()))))

    assert totals == whole


def test_the_policy_of_the_handler_http_is_the_code_that_it_runs() -> None:
    """With its defaults: first an interval that nothing has changed, then shorter and longer ones."""
    policy = read_policy("adaptive")
    assert isinstance(policy, NutchPolicy)
    assert policy == NutchPolicy(HTTP_START_INTERVAL, NutchRules())
    interval = policy.decide(Visit(timedelta(0)))
    assert interval == HTTP_START_INTERVAL
    for is_changed in (True, False, False):
        decided = policy.decide(Visit(interval, is_changed))
        assert decided == nutch_adaptive(interval, is_changed=is_changed)
        interval = decided


def test_a_policy_learns_the_latest_change_only() -> None:
    """And when it was, how long ago a change was found last, and how often."""
    seen: list[tuple[bool | None, int, int, timedelta, int | None]] = []

    class Curious:
        def decide(self, visit: Visit) -> timedelta:
            changed = visit.changed_at and (visit.changed_at - visit.at) // timedelta(seconds=1)
            seen.append((visit.is_changed, visit.visits, visit.changes, visit.unchanged_for, changed))
            return timedelta(seconds=100)

    first = int(unit_hash("a") * 100 * SECOND)
    moments = [BEGIN + first + second * SECOND for second in (20, 90, 150)]
    rehearse_all([("a", moments)], Period(BEGIN, BEGIN + 400 * SECOND, BEGIN), [PacedPolicy(Curious())])

    until_first = timedelta(microseconds=first)
    assert seen[:5] == [
        (None, 0, 0, timedelta(0), None),
        (False, 1, 0, until_first, None),
        (True, 2, 1, timedelta(0), -10),
        (True, 3, 2, timedelta(0), -50),
        (False, 4, 2, timedelta(seconds=100), -150),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "--policy: there is none ''"),
        ("nutch", "--policy: there is none 'nutch'"),
        ("fixed:", "--policy: fixed:: INTERVAL is '', no duration"),
        ("fixed:10ms", "--policy: fixed:10ms: INTERVAL is 10ms; give a time from 1 s to 3653 d"),
        ("adaptive:least=5m", "--policy: adaptive:least=5m: there is no 'least'; give start, min, max, increase"),
        ("adaptive:min=2d,max=1d", "--policy: adaptive:min=2d,max=1d: longest: is 1 day"),
        ("adaptive:increase=much", "--policy: adaptive:increase=much: increase is 'much'; give a share"),
        ("adaptive:decrease=1", "--policy: adaptive:decrease=1: decrease: is 1.0"),
        ("no_such_module:f", "--policy: no_such_module:f: module 'no_such_module' can't be imported"),
        (f"{__name__}:nothing", f"--policy: {__name__}:nothing: module {__name__!r} has no function 'nothing'"),
    ],
)
def test_a_policy_that_does_not_exist_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    """It names the policy and what is wrong."""
    with pytest.raises(InvalidSetting) as refusal:
        read_policy(text)

    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(("name", "sentence"), [("fail", "raised ZeroDivisionError"), ("mistake", "gave 0; let it")])
def test_a_function_that_fails_is_named(name: str, sentence: str) -> None:
    """With what it raised or gave; and it travels to Spark's tasks by its name."""
    policy = pickle.loads(pickle.dumps(read_policy(f"{__name__}:{name}")))  # noqa: S301 — our own
    with pytest.raises(InvalidSetting, match=sentence):
        rehearse_all([("a", ())], MONTH, [PacedPolicy(policy)])


@pytest.mark.parametrize("pages", [40, pytest.param(2200, marks=pytest.mark.long)])
def test_no_policy_makes_more_visits_than_its_budget(pages: int) -> None:
    """Intervals grow by a factor; those that already keep to it are left alone, and little of it is wasted."""
    histories = LocalHistories(histories_of(options_of(pages=pages, shape=0.5)))
    names = ("fixed:5h", "adaptive", "fixed:29d")
    options = RehearsalOptions(
        policies={name: read_policy(name) for name in names},
        begin=BEGIN,
        end=BEGIN + 12 * DAY,
        warm_up=4 * DAY,
        budget=pages // 2,
        is_daily=True,
    )
    found = rehearse(histories, options)
    fixed, adaptive, slow, *references = found.policies
    budget = pages // 2 * 8

    assert found.budget == budget
    assert [each.name for each in references] == [*REFERENCES]
    assert all(each.totals.visits <= budget for each in found.policies)
    assert all(each.totals.visits > 0.95 * budget for each in (fixed, adaptive, *references))
    assert fixed.factor > 1 < adaptive.factor
    assert slow.factor == 1
    assert max(fixed.freshness, adaptive.freshness) < references[-1].freshness


def test_a_budget_of_one_visit_can_be_kept() -> None:
    """However long the intervals must be for that."""
    options = RehearsalOptions(policies={"fixed:1h": read_policy("fixed:1h")}, budget=1)
    found = rehearse(LocalHistories(histories_of(options_of(pages=5))), options)

    assert all(each.totals.visits <= 1 for each in found.policies)


def test_without_a_budget_the_references_get_the_visits_of_the_first_policy() -> None:
    """And the period is that of the changes, in whole hours."""
    histories = histories_of(options_of(pages=50, per_day=2.0))
    options = RehearsalOptions(policies={name: read_policy(name) for name in ("fixed:12h", "fixed:3d")})
    found = rehearse(LocalHistories(histories), options)
    changes = [change for _, moments in histories for change in moments]

    assert 0 < min(changes) - found.period.begin <= HOUR
    assert 0 < found.period.end - max(changes) <= HOUR
    assert found.policies[0].totals.changes == len(changes)
    for reference in found.policies[2:]:
        assert reference.totals.visits == pytest.approx(found.policies[0].totals.visits, rel=0.05)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "no page ever changed; say with --from and --until"),
        ({"begin": 5 * DAY, "end": 5 * DAY}, "--from: 1970-01-06T00:00:00.000Z to 1970-01-06T00:00:00.000Z is no time"),
        ({"begin": 0, "end": 4000 * DAY}, "--from: 1970-01-01T00:00:00.000Z to 1980-12-14T00:00:00.000Z is no time"),
        ({"begin": 0, "end": DAY, "warm_up": DAY}, "--warm-up: leaves no time to measure"),
        ({"begin": 0, "end": HOUR, "budget": 1, "is_daily": True}, "--budget: 1/day is no visit in the time"),
    ],
)
def test_a_time_or_budget_that_makes_no_sense_is_refused(options: dict[str, Any], sentence: str) -> None:
    """In one sentence that names the option."""
    made = RehearsalOptions(policies={"fixed:1h": FixedPolicy(HOUR)}, **options)
    with pytest.raises(InvalidSetting) as refusal:
        rehearse(LocalHistories(ChangeHistories({"a": ()})), made)

    assert str(refusal.value).startswith(sentence)


def test_pages_that_never_change_are_always_fresh() -> None:
    """They cost visits, and there is nothing to find, to miss or to wait for."""
    options = RehearsalOptions(policies={"fixed:1d": read_policy("fixed:1d")}, begin=BEGIN, end=MONTH.end)
    fixed, uniform, proportional, optimum = rehearse(
        LocalHistories(ChangeHistories({"a": (), "b": ()})), options
    ).policies

    assert (fixed.totals.visits, fixed.freshness, fixed.age, fixed.delay) == (60, 1.0, 0.0, None)
    assert (fixed.missed, fixed.unseen, fixed.finds) == (0.0, 0.0, 0.0)
    assert uniform.totals.visits == 60
    assert (proportional.totals.visits, optimum.totals.visits, optimum.finds) == (0, 0, 0.0)


def test_generated_pages_change_as_often_as_asked() -> None:
    """On average, in each law; another seed makes others, and a page does not depend on how many there are."""
    for law in ("gamma", "lognormal", "constant"):
        options = options_of(pages=1500, law=law, per_day=1.5, shape=0.8, seed=5)
        counts = [len(changes) for _, changes in histories_of(options)]
        assert sum(counts) / 1500 == pytest.approx(45, rel=0.1), law
    few, many, other = (list(generate(options_of(pages=n, seed=seed))) for n, seed in ((3, 1), (9, 1), (3, 2)))

    assert many[: len(few)] == few
    assert other != few
    assert all(moment is None or BEGIN <= moment < MONTH.end for _, moment in many)


def test_generated_bursts_and_rhythm_are_as_asked() -> None:
    """Changes come together, and most of them around the peak of the day."""
    options = options_of(
        pages=400, law="constant", per_day=3.0, burst=3.0, within=timedelta(minutes=1), rhythm=1.0, peak=6.0
    )
    moments = [change for _, changes in histories_of(options) for change in changes]
    close = [b - a < 10 * 60 * SECOND for _, changes in histories_of(options) for a, b in itertools.pairwise(changes)]
    hours = Counter((moment % DAY) // HOUR for moment in moments)

    assert len(moments) / 400 == pytest.approx(90, rel=0.05)
    assert sum(close) / len(close) == pytest.approx(2 / 3, abs=0.05)
    assert hours[6] > 1.7 * len(moments) / 24
    assert hours[18] < 0.3 * len(moments) / 24


async def test_visits_of_the_handler_http_become_a_history() -> None:
    """Its reasons say which visits found a change; the change lies between that visit and the one before."""
    bodies = itertools.cycle([b"a", b"a", b"b", b"c"])

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=next(bodies))

    message = make_message(http, {"url": "https://example.org/"}, id="page")
    async with open_site(answer) as session:
        life = await live(http, message, until=timedelta(days=9), http=session)
    visits = CollectedVisits("http")
    for cycle in life.cycles:
        due = cycle.due_at.timestamp()
        at = cycle.at.timestamp()
        call = HandlerCall("http", "page", "short", cycle.version, cycle.attempt, {}, due)
        outcome = Outcome("again", after=1.0, tolerance=0.0, reason=cycle.reason, ended_at=at)
        visits.add(to_event(call, outcome, at))
        if cycle.version == 3:  # the worker was killed before its outcome was recorded, and then it was made again
            visits.add(to_event(call, outcome, at + 1))
    rows = list(visits.rows())
    words = [cycle.reason.partition(",")[0] for cycle in life.cycles]
    moments = [round(cycle.at.timestamp() * 1e6) for cycle in life.cycles]

    assert words[:5] == ["first", "unchanged", "changed", "changed", "changed"]
    assert rows[0] == ("page", None)
    assert len(rows) - 1 == words.count("changed")
    for (_, change), n in zip(rows[1:], (n for n, word in enumerate(words) if word == "changed"), strict=True):
        assert change is not None
        assert moments[n - 1] - SECOND <= change <= moments[n] + SECOND


def test_events_of_others_are_no_visits() -> None:
    """Neither of other kinds, nor of cycles that compared nothing; without any, the sentence names the option."""
    visits = CollectedVisits("http")
    event = {"kind": "http", "id": "a", "version": 0, "attempt": 1, "outcome": "again", "reason": "gone, 404"}
    for other in ({}, {"kind": "echo", "reason": "first, 200"}, {"outcome": "failed", "reason": "changed, 200"}):
        visits.add({**event, **other})

    with pytest.raises(GiveUp, match="there is no visit of kind 'http' among the events; name the kind"):
        visits.find_span()
    with pytest.raises(GiveUp, match="event of http:a: KeyError"):
        visits.add({**event, "reason": "first, 200"})
