"""When the `http` handler comes back: intervals, freshness, Retry-After, on a real site on loopback."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from activities.api.outcome import RetryAfter
from tests.integration.web_site import (
    DAY,
    NOW,
    D,
    H,
    M,
    Reply,
    S,
    Visitor,
    WebSite,
    conditional,
    digest,
    open_visitor,
)


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A site of the test's own."""
    with WebSite() as site:
        yield site


@pytest.fixture
async def visitor(site: WebSite) -> AsyncIterator[Visitor]:
    """A visitor who may go to loopback, and leaves before the site closes."""
    async with open_visitor() as visitor:
        yield visitor


async def test_the_interval_grows_to_max_while_nothing_changes(site: WebSite, visitor: Visitor) -> None:
    """Each unchanged visit multiplies the interval by 1.4 until `max`, where it stays."""
    site.pages["/a"] = conditional('"one"', b"words")
    payload: Any = {"url": site.url("/a"), "interval": 100, "min": 50, "max": 300}

    delays: list[timedelta | None] = []
    for _ in range(6):
        again = await visitor.come_back(payload)
        payload = again.payload
        delays.append(again.after)

    assert delays == [100 * S, 140 * S, 196 * S, 274.4 * S, 300 * S, 300 * S]
    assert {"interval": 100, "min": 50, "max": 300}.items() <= payload.items()


async def test_the_interval_shrinks_to_min_while_everything_changes(site: WebSite, visitor: Visitor) -> None:
    """Each changed visit multiplies the interval by 0.8 until `min`, where it stays."""
    site.pages["/a"] = lambda _: Reply(200, b"version %d" % len(site.visits))
    payload: Any = {"url": site.url("/a"), "interval": 100, "min": 50, "max": 300}

    delays: list[timedelta | None] = []
    for _ in range(6):
        again = await visitor.come_back(payload)
        payload = again.payload
        delays.append(again.after)

    assert delays == [100 * S, 80 * S, 64 * S, 51.2 * S, 50 * S, 50 * S]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({}, D),
        ({"interval": 1.5}, M),  # below the usual min
        ({"interval": 10, "min": 5}, 10 * S),
        ({"min": 2 * DAY}, 2 * D),
        ({"max": 30}, 30 * S),  # the usual min gives way
        ({"interval": 500 * DAY}, 365 * D),
        ({"min": 400 * DAY}, 400 * D),  # the usual max gives way
        ({"interval": None, "min": None, "max": None}, D),
        ({"seen": {"interval": 7200}}, 2 * H),
        ({"seen": {"interval": "soon", "digest": None}}, D),
        ({"seen": "nothing"}, D),
        ({"seen": {"interval": -5, "etag": 7, "page": []}}, D),
    ],
)
async def test_wishes_about_the_rhythm_are_kept_within_sensible_bounds(
    site: WebSite, visitor: Visitor, requests: dict[str, Any], expected: timedelta
) -> None:
    """`interval`, `min` and `max` are optional, a state that makes no sense counts as none."""
    site.pages["/a"] = Reply(200, b"words")

    again = await visitor.come_back({"url": site.url("/a"), **requests})

    assert expected == again.after


FRESHNESS: list[tuple[dict[str, str], timedelta]] = [
    ({}, H),
    ({"Cache-Control": "max-age=60"}, H),  # a floor, so a shorter life changes nothing
    ({"Cache-Control": "max-age=7200"}, 2 * H),
    ({"cache-control": "public, MAX-AGE = 7200"}, 2 * H),
    ({"Cache-Control": 'max-age="7200"'}, 2 * H),
    ({"Cache-Control": "max-age=7200, s-maxage=10800"}, 3 * H),
    ({"Cache-Control": "s-maxage=60, max-age=7200"}, H),  # the more specific one, even when shorter
    ({"Cache-Control": "max-age=7200, max-age=60"}, 2 * H),  # the first of two
    ({"Cache-Control": "max-age=7200", "Age": "1800"}, 1.5 * H),
    ({"Cache-Control": "max-age=7200", "Age": "9999"}, H),
    ({"Cache-Control": "no-cache, max-age=7200"}, H),
    ({"Cache-Control": "max-age=7200, no-store"}, H),
    ({"Cache-Control": 'no-cache="Set-Cookie", max-age=7200'}, 2 * H),
    ({"Cache-Control": "max-age=soon"}, H),
    ({"Cache-Control": "max-age=-7200"}, H),
    ({"Cache-Control": "max-age=" + "9" * 5000}, 5 * H),  # never above the policy's max
    ({"Cache-Control": "max-age=31536000"}, 5 * H),
    ({"Expires": format_datetime(NOW + 2 * H, usegmt=True)}, 2 * H),
    (
        {
            "Expires": format_datetime(NOW + 9 * H, usegmt=True),
            "Date": format_datetime(NOW + 7 * H, usegmt=True),
        },
        2 * H,
    ),
    ({"Expires": format_datetime(NOW + 2 * H, usegmt=True), "Cache-Control": "max-age=10800"}, 3 * H),
    ({"Expires": "0"}, H),
    ({"Expires": "tomorrow"}, H),
    ({"Expires": format_datetime(NOW - D, usegmt=True)}, H),
]


@pytest.mark.parametrize(("headers", "expected"), FRESHNESS)
@pytest.mark.parametrize("status", [200, 304])
async def test_what_is_fresh_is_not_visited_before(
    site: WebSite, visitor: Visitor, status: int, headers: dict[str, str], expected: timedelta
) -> None:
    """s-maxage, max-age and Expires, in this order, are a floor for the next visit and never pass `max`."""
    site.pages["/a"] = Reply(status, b"words" if status == 200 else b"", headers)
    before: dict[str, Any] = {"digest": "another", "interval": 3600 / 0.8}
    if status == 304:
        before = {"digest": "any", "interval": 3600 / 1.4, "etag": '"1"', "page": digest(site.url("/a").encode())}

    again = await visitor.come_back({"url": site.url("/a"), "max": 5 * 3600, "seen": before})

    assert again.after is not None
    assert abs(again.after - expected) < timedelta(milliseconds=1)


async def test_the_floor_is_not_the_rhythm(site: WebSite, visitor: Visitor) -> None:
    """A long freshness delays one visit; the interval the page has earned stays its own."""
    site.pages["/a"] = Reply(200, b"words", {"Cache-Control": "max-age=7200"})

    again = await visitor.come_back({"url": site.url("/a"), "interval": 3600})

    assert again.after == 2 * H
    assert again.payload["seen"]["interval"] == 3600


@pytest.mark.parametrize(
    "headers", [{"Cache-Control": "public, max-age=31536000, immutable"}, {"Expires": "Thu, 31 Dec 2037 23:55:55 GMT"}]
)
async def test_freshness_without_end_stops_no_visits(site: WebSite, visitor: Visitor, headers: dict[str, str]) -> None:
    """Some sites send it with everything: it counts up to the payload's `max`, a day without one, and is told."""
    site.pages["/a"] = Reply(200, b"words", headers)

    usual = await visitor.come_back({"url": site.url("/a"), "interval": 3600})
    longer = await visitor.come_back({"url": site.url("/a"), "interval": 3600, "max": 7 * DAY})

    assert (usual.after, longer.after) == (D, 7 * D)
    assert usual.reason.startswith("first, 200; fresh for ")
    assert usual.reason.endswith(" by its own word, of which 1 d count")


@pytest.mark.parametrize(
    ("headers", "requests", "expected"),
    [
        ({}, {"interval": 3600}, 30 * M),  # half of the delay, as for any message
        ({"Cache-Control": "max-age=2700"}, {"interval": 3600}, 45 * M),
        ({"Cache-Control": "max-age=7200"}, {"interval": 3600}, 2 * H),
        ({}, {"interval": 3600, "min": 3000}, 50 * M),
    ],
)
async def test_idle_capacity_is_not_spent_on_what_is_fresh(
    site: WebSite, visitor: Visitor, headers: dict[str, str], requests: dict[str, Any], expected: timedelta
) -> None:
    """A visit may be pulled forward by half its delay, but not into freshness and not below `min`."""
    site.pages["/a"] = Reply(200, b"words", headers)

    again = await visitor.come_back({"url": site.url("/a"), **requests})

    assert expected == again.earliest


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3600", H),
        (" 3600 ", H),
        ("292.05", 293 * S),  # some limiters of rates send fractions
        ("292.0", 292 * S),
        (format_datetime(NOW + 2 * H, usegmt=True), 2 * H),
        ((NOW + 2 * H).strftime("%A, %d-%b-%y %H:%M:%S GMT"), 2 * H),  # RFC 850, obsolete and still met
        ((NOW + 2 * H).strftime("%a %b %d %H:%M:%S %Y"), 2 * H),  # asctime, likewise
        ("0", M),  # never sooner than `min`: a site that says 0 for ever must not be hammered
        (format_datetime(NOW - D, usegmt=True), M),
        ("99999999999999999999", 7 * D),  # never later than `max`
    ],
)
async def test_retry_after_is_obeyed(
    site: WebSite, visitor: Visitor, status: int, value: str, expected: timedelta
) -> None:
    """429 and 503 with Retry-After, in seconds or as a date, wait that long without using up an attempt."""
    site.pages["/a"] = Reply(status, b"busy", {"Retry-After": value})

    with pytest.raises(RetryAfter) as caught:
        await visitor.visit({"url": site.url("/a"), "max": 7 * DAY})

    assert expected == caught.value.delay
    assert str(caught.value) == f"asked to wait, {status}"
    assert caught.value.gate == (f"host:127.0.0.1:{site.port}" if status == 429 else "")
    assert caught.value.gate_delay <= expected, "how seldom one message may be visited is nobody else's business"


async def test_a_vanished_page_is_visited_more_seldom(site: WebSite, visitor: Visitor) -> None:
    """404 lengthens the interval by half each time; a page that comes back as it was is unchanged."""
    site.pages["/a"] = Reply(200, b"words", {"ETag": '"one"'})
    first = await visitor.come_back({"url": site.url("/a"), "interval": 100, "max": 400})
    page = site.pages.pop("/a")

    second = await visitor.come_back(first.payload)
    third = await visitor.come_back(second.payload)
    fourth = await visitor.come_back(third.payload)
    site.pages["/a"] = page
    fifth = await visitor.come_back(fourth.payload)

    assert [second.reason, third.reason, fourth.reason] == ["gone, 404"] * 3
    assert [second.after, third.after, fourth.after] == [150 * S, 225 * S, 337.5 * S]
    assert (fifth.reason, fifth.after) == ("unchanged, 200", 400 * S)
