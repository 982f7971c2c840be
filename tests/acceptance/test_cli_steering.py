"""The commands that list and steer messages, as people type them."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import Again, Context, Message, Reject, handler
from activities.api.handler import Handler
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.steering.selection import Selection
from tests.acceptance.conftest import Ran, Run
from tests.conftest import Serve, Start, wait_until

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = "2036-01-01T00:00:00Z"


@pytest.fixture
def kind(message_id: Callable[[], str]) -> str:
    """A kind of this test's own, so that filters meet its messages alone."""
    return f"kind-{message_id()}"


@pytest.fixture
async def steered(serve: Serve, kind: str) -> AsyncIterator[Handler]:
    """A worker whose handler comes back in an hour, or rejects with the payload as the reason."""

    @handler(kind)
    async def steered(message: Message, ctx: Context) -> Again | Reject:
        return Reject(message.payload) if message.payload else Again(after=timedelta(hours=1))

    async with serve(steered, lanes=("short",)):
        yield steered


@pytest.fixture
def messages(start: Start, control: Control, kind: str) -> Callable[..., Any]:
    """Start some messages of the kind, and wait until the index knows them."""

    async def messages(*ids: str, state: str = "active", **fields: Any) -> None:
        for message_id in ids:
            await start(kind, message_id, **fields)
        await wait_until(lambda: _is_counted(control, kind, state, len(ids)), f"{len(ids)} messages are {state}")

    return messages


async def _is_counted(control: Control, kind: str, state: str, expected: int) -> bool:
    return await control.count(Selection(kind=kind, state=state)) == expected


async def state_of(control: Control, kind: str, message_id: str) -> str:
    """Give the state that the server has of a message."""
    return (await control.look_up(kind, message_id)).state


def names(ran: Ran) -> list[str]:
    """Give the first column of a table, without its header."""
    return [line.split()[0] for line in ran.out.splitlines()[1:]]


async def test_list_shows_a_table_or_json_lines_and_says_when_there_is_more(
    run: Run, messages: Callable[..., Any], kind: str
) -> None:
    """Data on standard output, the hint on standard error."""
    await messages("a", "b", "c", scheduled_at=LATER)

    table = await run("list", "--kind", kind)
    cut = await run("list", "--kind", kind, "--limit", "2", "--json")
    none = await run("list", "--kind", kind, "--due-before", "+1h")
    nothing = await run("pause", "--kind", f"{kind}-none", "--yes")

    assert (table.code, table.err) == (0, "")
    assert table.out.splitlines()[0].split() == ["MESSAGE", "LANE", "STATE", "DUE", "IN"]
    assert sorted(names(table)) == [f"{kind}:{letter}" for letter in "abc"]
    assert [(line["kind"], line["state"], line["due_at"]) for line in cut.lines] == [(kind, "active", LATER)] * 2
    assert cut.err == "2 of 3 messages; --limit N lists more\n"
    assert " 2036-01-01 00:00:00 UTC  in " in table.out
    assert (none.code, none.out, none.err) == (0, "", "no message matches\n")
    assert nothing.err == "pause: no message matches; 'dormice list' shows those that are alive\n"


VERBS: list[tuple[list[str], dict[str, Any]]] = [
    (["now"], {"version": 1}),
    (["reschedule", "--at", "2035-01-01T00:00:00+01:00"], {"due_at": "2034-12-31T23:00:00Z"}),
    (
        ["reprioritize", "--priority", "1", "--at", "2035-01-01T00:00:00Z"],
        {"priority": 1, "due_at": "2035-01-01T00:00:00Z"},
    ),
    (["revise", "--payload", '{"n": [1, 2]}', "--to-lane", "medium"], {"payload": {"n": [1, 2]}, "lane": "medium"}),
    (["revise", "--payload", "null"], {"payload": None, "revision": 1}),
    (["pause", "--reason", "holidays"], {"state": "paused"}),
    (["resume"], {"state": "active"}),
    (["stop"], {"state": "stopped"}),
]


@pytest.mark.usefixtures("steered")
@pytest.mark.parametrize(("verb", "expected"), VERBS, ids=lambda value: " ".join(value)[:30])
async def test_every_verb_changes_the_message_that_is_named(
    run: Run, start: Start, control: Control, kind: str, *, verb: list[str], expected: dict[str, Any]
) -> None:
    """It says how many took it; what it did shows at once."""
    await start(kind, "a", scheduled_at=LATER)

    ran = await run(verb[0], f"{kind}:a", *verb[1:])

    assert (ran.code, ran.out, ran.err) == (0, "", f"{verb[0]}: sent to 1 message, 0 not found\n")
    await wait_until(lambda: _shows(control, kind, expected), f"the message shows {expected}")


async def _shows(control: Control, kind: str, expected: dict[str, Any]) -> bool:
    status = (await control.show(kind, "a")).status
    if status is None:
        return expected.get("lane") == "medium"  # moved to a lane that nobody serves here
    found = {**status, "due_at": status["due_at"].replace(" UTC", "Z").replace(" ", "T")}
    return all(found[key] == value for key, value in expected.items())


async def test_one_wrong_name_among_many_is_told_and_the_rest_is_sent(run: Run, start: Start, kind: str) -> None:
    """Exit code 1; the counts are data with --json."""
    await start(kind, "a", scheduled_at=LATER)
    await start(kind, "b", scheduled_at=LATER)

    ran = await run("pause", f"{kind}:a", f"{kind}:nobody", f"{kind}:b", "--json")

    counts = {"sent": 2, "waiting": 0, "not_found": 1, "passed_over": 0, "unsent": 0}
    assert (ran.code, ran.document) == (1, {"verb": "pause"} | counts)
    assert ran.err == f"dormice: no message {kind}:nobody is alive; 'dormice list' shows those that are\n"


async def test_names_may_come_from_standard_input(run: Run, start: Start, control: Control, kind: str) -> None:
    """One id a line; a line that names no message is reported with its number and skipped."""
    await start(kind, "a", scheduled_at=LATER)
    await start(kind, "with space", scheduled_at=LATER)

    ran = await run("pause", "-", stdin=f"{kind}:a\n\nnonsense\n  {kind}:with space  \n")
    fine = await run("resume", "-", stdin=f"{kind}:a\n")

    assert ran.code == 1
    assert ran.err.splitlines() == [
        "dormice: line 3: KIND:ID is 'nonsense'; write KIND:ID, for example feed:42",
        "pause: sent to 2 messages, 0 not found",
    ]
    assert (fine.code, fine.err) == (0, "resume: sent to 1 message, 0 not found\n")


@pytest.mark.usefixtures("steered")
async def test_a_filter_only_counts_until_it_is_confirmed(
    run: Run, messages: Callable[..., Any], control: Control, kind: str
) -> None:
    """Nothing is sent by mistake: exit code 2 and what to add; with --yes all of them take it."""
    await messages("a", "b", "c", scheduled_at=LATER)

    asked = await run("stop", "--kind", kind, "--state", "active")
    as_data = await run("stop", "--kind", kind, "--json")
    untouched = [await state_of(control, kind, letter) for letter in "abc"]
    sent = await run("stop", "--kind", kind, "--lane", "short", "--yes", "--json")
    await wait_until(lambda: _is_counted(control, kind, "stopped", 3), "all are stopped")

    assert (asked.code, asked.out) == (2, "")
    assert asked.err == "stop: 3 messages would be meant; nothing was sent, add --yes to send it\n"
    assert (as_data.code, as_data.document) == (2, {"verb": "stop", "matched": 3, "sent": 0})
    assert untouched == ["active"] * 3
    assert (sent.code, sent.document) == (
        0,
        {"verb": "stop", "sent": 3, "waiting": 0, "not_found": 0, "passed_over": 0, "unsent": 0},
    )


async def test_everything_means_all_that_are_alive(run: Run, tmp_path: Path) -> None:
    """Of every kind, on a server that no other test has messages on."""
    options = EmbeddedOptions(data=tmp_path / "own", port=find_free_port(), ui_port=None, slim=False)
    async with run_embedded(options) as own:
        for kind in ("echo", "ledger"):
            await run("start", kind, "a", "--scheduled-at", LATER, TEMPORAL_ADDRESS=own.address)
        ran = await run("pause", "--everything", "--json", TEMPORAL_ADDRESS=own.address)

    assert (ran.code, ran.document["matched"]) == (2, 2)


@pytest.mark.usefixtures("steered")
async def test_parked_messages_are_listed_with_their_reasons(run: Run, messages: Callable[..., Any], kind: str) -> None:
    """Narrowed by reason and age; the table and the JSON show the same."""
    await messages("a", state="parked", payload="no colour")
    listed = await run("parked", "list", "--kind", kind)
    as_data = await run("parked", "list", "--kind", kind, "--reason", "colour", "--json")
    others = await run("parked", "list", "--kind", kind, "--reason", "shape")
    older = await run("parked", "list", "--kind", kind, "--older-than", "1h")

    assert names(listed) == [f"{kind}:a"]
    assert listed.out.splitlines()[1].endswith("ago)  no colour")
    assert [(line["id"], line["parked_reason"]) for line in as_data.lines] == [("a", "no colour")]
    assert as_data.document["parked_at"].endswith("Z")
    assert (others.code, others.out, others.err) == (0, "", "no parked message matches\n")
    assert older.out == ""


@pytest.mark.usefixtures("steered")
async def test_parked_messages_are_replayed_and_dropped(
    run: Run, messages: Callable[..., Any], start: Start, control: Control, kind: str
) -> None:
    """By name or filter; a message that is not parked is none of these commands' business."""
    await messages("a", "b", "c", state="parked", payload="no colour")
    await start(kind, "fine", scheduled_at=LATER)

    asked = await run("parked", "drop", "--kind", kind, "--reason", "colour")
    dropped = await run("parked", "drop", f"{kind}:a", f"{kind}:fine", f"{kind}:nobody")
    await wait_until(lambda: _is_counted(control, kind, "parked", 2), "one is dropped")
    await run("revise", f"{kind}:b", f"{kind}:c", "--payload", "null")
    replayed = await run("parked", "replay", "--kind", kind, "--yes", "--json")
    await wait_until(lambda: _is_counted(control, kind, "active", 3), "two are active again")

    assert asked.err == "drop: 3 messages would be meant; nothing was sent, add --yes to send it\n"
    assert (asked.code, dropped.code, replayed.code) == (2, 1, 0)
    assert dropped.err.splitlines() == [
        f"dormice: {kind}:fine is not parked but active; nothing was sent to it",
        f"dormice: no message {kind}:nobody is known; 'dormice list' shows those that are alive",
        "drop: sent to 1 message, 1 not found, 1 passed over",
    ]
    assert replayed.document == {
        "verb": "replay",
        "sent": 2,
        "waiting": 0,
        "not_found": 0,
        "passed_over": 0,
        "unsent": 0,
    }
    assert await state_of(control, kind, "a") == "stopped"


async def test_skip_moves_the_clock_of_one_message(
    run: Run, messages: Callable[..., Any], steered: Handler, control: Control, kind: str
) -> None:
    """What is due in the time that is skipped runs in it; other messages stay where they are."""
    await messages("a", "b")
    await wait_until(lambda: _are_tried(control, kind), "both have run once")
    skipped = await run("skip", f"{kind}:a", "150m")
    versions = [(await control.show(kind, name)).status for name in ("a", "b")]

    assert (skipped.code, skipped.err) == (0, f"{kind}:a: its clock is ahead now\n")
    assert [status and status["version"] for status in versions] == [3, 1]


async def _are_tried(control: Control, kind: str) -> bool:
    views = [await control.show(kind, name) for name in ("a", "b")]
    return all(view.status is not None and view.status["version"] == 1 for view in views)
