"""The `http` handler against a real site on loopback: what it asks, what it concludes, what it remembers."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from activities.api.outcome import UNCHANGED, Again
from shared.messages.json_value import encode_json
from tests.integration.web_site import DAY, NOW, D, Reply, Visitor, WebSite, conditional, digest, open_visitor


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


async def test_a_first_visit_keeps_the_rhythm_and_remembers_what_it_saw(site: WebSite, visitor: Visitor) -> None:
    """The first answer is neither a change nor none; digest and validators go into the payload, the body does not."""
    modified = "Fri, 20 Nov 2026 18:00:00 GMT"
    site.pages["/a"] = Reply(200, b"words", {"ETag": '"one"', "Last-Modified": modified})

    again = await visitor.come_back({"url": site.url("/a")})

    assert again.reason == "first, 200"
    assert again.after == D
    assert again.payload == {
        "url": site.url("/a"),
        "seen": {
            "etag": '"one"',
            "modified": modified,
            "page": digest(site.url("/a").encode()),
            "digest": digest(b"words"),
            "interval": DAY,
            "changed": int(NOW.timestamp()),
        },
    }
    assert len(encode_json(again.payload)) < 300


async def test_an_etag_turns_the_next_visit_into_a_question(site: WebSite, visitor: Visitor) -> None:
    """The ETag is sent back as If-None-Match, and 304 counts as unchanged."""
    site.pages["/a"] = conditional('W/"one"', b"words")

    first = await visitor.come_back({"url": site.url("/a")})
    second = await visitor.come_back(first.payload, NOW + D)

    assert "if-none-match" not in site.visits[0].headers
    assert site.visits[1].headers["if-none-match"] == 'W/"one"'
    assert second.reason == "unchanged, 304"
    assert second.payload == {**first.payload, "seen": {**first.payload["seen"], "interval": 120960}}


async def test_a_visit_that_learns_nothing_new_leaves_the_payload_alone(site: WebSite, visitor: Visitor) -> None:
    """What is written again is checked, sent and stored again, which costs more than the visit."""
    site.pages["/a"] = conditional('"one"', b"words")

    first = await visitor.come_back({"url": site.url("/a"), "interval": DAY, "max": DAY})
    second = await visitor.visit(first.payload, NOW + D)

    assert isinstance(second, Again)
    assert second.payload is UNCHANGED


async def test_last_modified_turns_the_next_visit_into_a_question(site: WebSite, visitor: Visitor) -> None:
    """Last-Modified is sent back as If-Modified-Since, letter for letter, and a bare 304 keeps it."""
    modified = "Fri, 20 Nov 2026 18:00:00 GMT"
    site.pages["/a"] = lambda visit: (
        Reply(304)
        if visit.headers.get("if-modified-since") == modified
        else Reply(200, b"words", {"Last-Modified": modified})
    )

    first = await visitor.come_back({"url": site.url("/a")})
    second = await visitor.come_back(first.payload)
    third = await visitor.come_back(second.payload)

    assert [second.reason, third.reason] == ["unchanged, 304"] * 2
    assert third.payload["seen"]["modified"] == modified


async def test_a_304_may_bring_a_new_etag(site: WebSite, visitor: Visitor) -> None:
    """The validator of the newest answer is the one that is asked with next."""
    site.pages["/a"] = Reply(200, b"words", {"ETag": '"one"'})
    first = await visitor.come_back({"url": site.url("/a")})
    site.pages["/a"] = Reply(304, headers={"ETag": '"two"'})

    second = await visitor.come_back(first.payload)

    assert second.payload["seen"]["etag"] == '"two"'


async def test_equal_bodies_are_unchanged_without_any_validator(site: WebSite, visitor: Visitor) -> None:
    """A site that always answers 200 with the same body is unchanged, and keeps the time of the last change."""
    site.pages["/a"] = Reply(200, b"words")

    first = await visitor.come_back({"url": site.url("/a")})
    second = await visitor.come_back(first.payload, NOW + D)

    assert second.reason == "unchanged, 200"
    assert second.after == 1.4 * D
    assert second.payload["seen"] == {
        "digest": digest(b"words"),
        "interval": 120960,
        "changed": int(NOW.timestamp()),
    }


async def test_another_body_is_a_change(site: WebSite, visitor: Visitor) -> None:
    """A different body shortens the interval and sets the time of the last change."""
    site.pages["/a"] = Reply(200, b"words", {"ETag": '"one"'})
    first = await visitor.come_back({"url": site.url("/a")})
    site.pages["/a"] = Reply(200, b"other words", {"ETag": '"two"'})

    second = await visitor.come_back(first.payload, NOW + D)

    assert second.reason == "changed, 200"
    assert second.after == 0.8 * D
    assert second.payload["seen"]["digest"] == digest(b"other words")
    assert second.payload["seen"]["etag"] == '"two"'
    assert second.payload["seen"]["changed"] == int((NOW + D).timestamp())


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (500, {}),
        (502, {}),
        (503, {}),
        (503, {"Retry-After": "soon"}),
        (504, {"Retry-After": "60"}),  # means nothing there
        (429, {}),
        (408, {}),
        (425, {}),
    ],
)
async def test_a_site_that_is_unwell_fails_the_attempt(
    site: WebSite, visitor: Visitor, status: int, headers: dict[str, str]
) -> None:
    """5xx, and the 4xx that ask for the same request again, are retried with backoff."""
    site.pages["/a"] = Reply(status, b"oh no", headers)

    assert await visitor.fail({"url": site.url("/a")}) == f"answered {status}; it will be asked again"


async def test_a_304_that_nobody_asked_for_fails_the_attempt(site: WebSite, visitor: Visitor) -> None:
    """Without a condition in the request there is nothing that it could be the same as."""
    site.pages["/a"] = Reply(304)

    for seen in ({}, {"digest": "any", "etag": '"1"', "page": "of another URL"}):
        reason = await visitor.fail({"url": site.url("/a"), "seen": seen})
        assert reason == "answered 304, not modified, though it was not asked by condition; it will be asked again"


@pytest.mark.parametrize("status", [300, 305, 400, 401, 403, 410, 451])
async def test_an_answer_that_no_retry_mends_parks_the_message(site: WebSite, visitor: Visitor, status: int) -> None:
    """Other 4xx, 410 among them, and 3xx that lead nowhere are rejected with a sentence that names URL and status."""
    site.pages["/a"] = Reply(status, b"no")

    expected = f"payload.url: {site.url('/a')} answered {status}; correct it, or replay once the site is mended"
    assert expected == await visitor.refuse({"url": site.url("/a")})


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "payload.url: is missing; give the http or https address to visit, as a string"),
        ([], "payload.url: is missing"),
        ({}, "payload.url: is missing"),
        ({"url": None}, "payload.url: is missing"),
        ({"url": 7}, "payload.url: is missing"),
        ({"url": "ftp://127.0.0.1/a"}, "payload.url: has the scheme 'ftp'; only http and https are visited"),
        ({"url": "file:///etc/passwd"}, "payload.url: has the scheme 'file'"),
        ({"url": "127.0.0.1/a"}, "payload.url: has the scheme ''"),
        ({"url": "http://me:secret@127.0.0.1/"}, "payload.url: holds credentials"),
        ({"url": "http://[/"}, "payload.url: can't be read"),
        ({"url": "http://[::1/"}, "payload.url: can't be read"),
        ({"url": "http:///a"}, "payload.url: names no host"),
        ({"url": "http://127.0.0.1/", "min": 0}, "payload.min: is '0'; give seconds from 1 to 315619200"),
        ({"url": "http://127.0.0.1/", "max": "day"}, "payload.max: is 'day'; give seconds"),
        ({"url": "http://127.0.0.1/", "interval": True}, "payload.interval: is 'True'; give seconds"),
        ({"url": "http://127.0.0.1/", "interval": 10**30}, "payload.interval: is '1000"),
        ({"url": "http://127.0.0.1/", "min": 9, "max": 8}, "payload.min: is more than payload.max, 8 s"),
    ],
)
async def test_a_payload_that_can_not_be_is_refused(visitor: Visitor, payload: Any, reason: str) -> None:
    """A payload without a URL that can be visited, or with an impossible wish, is rejected by the name of the field."""
    actual = await visitor.refuse(payload)

    assert actual.startswith(reason)
    assert "secret" not in actual
