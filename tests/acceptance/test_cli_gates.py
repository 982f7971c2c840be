"""The commands about gates, as people type them."""

import re

import pytest

from tests.acceptance.conftest import Run
from tests.conftest import Serve, wait_until

pytestmark = pytest.mark.timeout(120)


async def test_gates_are_closed_listed_and_opened(run: Run, serve: Serve) -> None:
    """The first is closed before a worker is there, others wait for one; the last word counts for how long."""
    before = await run("gates")
    closed = await run("gates", "close", "host:example.org", "--for", "2h", "--reason", "maintenance")
    alone = await run("gates", "list")
    waiting = await run("gates", "close", "mail")
    async with serve(lanes=("short",)):
        await run("gates", "close", "host:example.org", "--for", "1h")

        async def are_both() -> bool:
            return (await run("gates", "list")).out.count("closed by hand") == 2

        await wait_until(are_both, "both are closed")
        listed = await run("gates", "list")
        one, other = (await run("gates", "--json")).lines
        again = await run("gates", "close", "mail", "--until", "2035-01-01T00:00:00Z", "--json")
        opened = await run("gates", "open", "mail", "--json")
        await run("gates", "open", "host:example.org")

        async def are_open() -> bool:
            return await _lines(run) == 0

        await wait_until(are_open, "both are open")

    assert (before.code, before.out, before.err) == (0, "", "all gates are open\n")
    assert closed.code == 0
    assert re.fullmatch(r"gate host:example\.org: closed for 2 h, until 20\S+ \S+ UTC\n", closed.err)
    assert [line.split()[0] for line in alone.out.splitlines()] == ["GATE", "host:example.org"]
    lack = "once lane short has a worker; start one with 'dormice worker --lane short'"
    assert (waiting.code, waiting.err) == (0, f"gate mail: closed until it is opened, {lack}\n")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["GATE", "host:example.org", "mail"]
    assert "when it is opened" in listed.out.splitlines()[2]
    assert (one["gate"], one["reason"], other["gate"], other["opens_at"]) == (
        "host:example.org",
        "closed by hand",
        "mail",
        None,
    )
    assert (again.document["gate"], again.document["opens_at"]) == ("mail", "2035-01-01T00:00:00.000Z")
    assert (opened.code, opened.err) == (0, "gate mail: open\n")
    assert opened.document == {"gate": "mail", "closed_at": None, "opens_at": None, "reason": ""}


async def _lines(run: Run) -> int:
    return len((await run("gates", "list", "--json")).out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("close",), "Missing argument 'GATE'"),
        (("close", ""), "gate: '' names no gate; give 1 to 300 bytes without control characters"),
        (("open", "a\nb"), "gate: 'a\\nb' names no gate"),
        (("close", "mail", "--for", "0s"), "--for: is 0.0 s, which is less than a second away; correct it, or leave"),
        (("close", "mail", "--for", "99999d"), "--for: is 99999 d, which is more than ten years away"),
        (
            ("close", "mail", "--until", "2020-01-01T00:00:00Z"),
            "--until: is 2020-01-01 00:00:00 UTC, which has passed; correct it, or leave it out",
        ),
        (("close", "mail", "--until", "+1h", "--for", "1h"), "--until: goes on without --for; leave one of them out"),
        (("close", "mail", "--for", "long"), "Invalid value for '--for': is 'long', no duration"),
    ],
)
async def test_what_cannot_be_meant_is_refused(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence, exit code 2, and nothing is closed."""
    ran = await run("gates", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")
    assert (await run("gates", "list")).err == "all gates are open\n"
