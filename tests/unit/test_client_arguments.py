"""The client's arguments: each wrong one gets a sentence that names it, before anything is sent."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import dormice
from dormice import errors

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 — refused
HIDDEN = "secret-0123456789"


@pytest.fixture
def herd() -> Iterator[Any]:
    """A client whose API is not there; without types, as for callers that no type checker reads."""
    with dormice.connect_sync("http://127.0.0.1:1", HIDDEN, timeout=timedelta(0)) as herd:
        yield herd


WRONG: list[tuple[Callable[[Any], Any], str, str]] = [
    (lambda herd: herd.message(3, "a"), "kind", "is 3, of type int; give a text, such as 'reminder'"),
    (lambda herd: herd.message("a", None), "id", "is None; give a text, such as 'ada'"),
    (lambda herd: herd.message("a", True), "id", "is True, of type bool; give a text, such as 'ada'"),
    (lambda herd: herd.message("a", ".."), "id", "is '..', which in a URL is a step in the path; give another text"),
    (lambda herd: herd.message("a", "\ud800"), "id", "holds half of a character, which UTF-8 can't encode"),
    (lambda herd: herd.start("a", "b", after=5), "after", "is 5, of type int; give a timedelta, such as timedelta"),
    (lambda herd: herd.start("a", "b", at="8pm"), "at", "is '8pm', of type str; give a datetime with a time zone"),
    (lambda herd: herd.start("a", "b", at=NAIVE), "at", "2030-01-01T00:00:00 has no time zone; add one"),
    (lambda herd: herd.start("a", "b", after=timedelta.max), "after", "is 999999999 days, 23:59:59.999999, which no"),
    (lambda herd: herd.start("a", "b", scheduled_at=NAIVE), "scheduled_at", "is no argument here; did you mean at?"),
    (lambda herd: herd.start("a", "b", tolerence=5), "tolerence", "is no argument here; did you mean tolerance?"),
    (
        lambda herd: herd.start("a", "b", colour=5),
        "colour",
        "is no argument here; use at, after, tolerance, expires_at",
    ),
    (lambda herd: herd.upsert("a", "b", if_version="3"), "if_version", "is '3', of type str; give a whole number"),
    (lambda herd: herd.upsert("a", "b", priority=True), "priority", "is True, of type bool; give a whole number"),
    (lambda herd: list(herd.start_many(5)), "items", "is 5, of type int; give a list or generator of dormice.Envelope"),
    (
        lambda herd: list(herd.start_many([], idempotency_key="ключ")),
        "idempotency_key",
        "is 'ключ', of type str, which",
    ),
    (lambda herd: herd.message("a", "b").reschedule(5), "at", "is 5, of type int; give a datetime with a time zone"),
    (lambda herd: herd.message("a", "b").revise(1, lane=2), "lane", "is 2, of type int; give a text"),
    (lambda herd: herd.message("a", "b").run_now(5), "reason", "is 5, of type int; give a text"),
    (
        lambda herd: herd.message("a", "b").result(5),
        "timeout",
        "is 5, of type int; give a timedelta, such as timedelta",
    ),
    (
        lambda herd: herd.call("GET", "http://x/v1"),
        "path",
        "is 'http://x/v1', of type str; give one that begins with /",
    ),
    (lambda herd: herd.call("GET", "/v1/kinds", [1]), "query", "is [1], of type list; give a dict"),
    (lambda herd: herd.call("GE T", "/v1/kinds"), "method", "is 'GE T', of type str; give a method of HTTP"),
    (lambda herd: type(herd)("http://x"), "http", "is 'http://x', of type str; give a client of httpx, or make this"),
    (lambda _: connect(5), "url", "is 5, of type int; give the address of 'dormice serve', such as"),
    (lambda _: connect("http://u:hidden@h"), "url", "is 'http://…@h', which is no address of HTTP; write it like"),
    (lambda _: connect("http://h:99999"), "url", "is 'http://h:99999', which is no address of HTTP"),
    (lambda _: connect(token=b"hidden"), "token", "is of type bytes; give a text"),
    (lambda _: connect(timeout=5), "timeout", "is 5, of type int; give a timedelta, such as timedelta(minutes=5)"),
]


def connect(url: Any = "", token: Any = "", **options: Any) -> None:
    """Connect, with arguments that have no types."""
    with dormice.connect_sync(url, token, **options):
        pass


@pytest.mark.parametrize(("call", "field", "problem"), WRONG)
def test_a_wrong_argument_gets_one_sentence(herd: Any, call: Callable[[Any], Any], field: str, problem: str) -> None:
    """It names the argument, what is wrong with it, and what to give."""
    with pytest.raises(errors.DormiceError) as raised:
        call(herd)

    assert not isinstance(raised.value, errors.RetryLater)
    assert raised.value.field == field
    assert str(raised.value).startswith(f"{field}: {problem}")


def test_a_client_and_its_messages_say_what_they_are(herd: Any) -> None:
    """To people and in logs, without the token."""
    message = herd.message("reminder", 7)

    assert repr(herd) == "<dormice client of http://127.0.0.1:1>"
    assert repr(message) == "<dormice message reminder:7, at http://127.0.0.1:1>"
    assert repr(dormice.Envelope("reminder", "ada", {"to": "x"})).startswith("Envelope(kind='reminder', id='ada', payl")
    assert HIDDEN not in repr([herd, message, herd.start, message.pause])
