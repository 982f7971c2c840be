"""Temporal's Web UI as a person sees it, in a real browser: what docs/web-ui.md promises is there and works."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Locator
from temporalio.client import Client

from activities import Again, Context, Message, Pack, Reject, handler
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, Start, wait_until
from tests.support.web_ui import WebUi, find_chromium, open_web_ui

PAGE = Path(__file__).parents[2] / "docs" / "web-ui.md"
CHROMIUM = find_chromium() or ""

pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser at a time
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed (Debian: apt-get install chromium)"),
]

EVENING = datetime.now(UTC).replace(hour=20, minute=0, second=0, microsecond=0) + timedelta(days=30)
PACK = Pack(packs=1, size=100, coalesce=timedelta(minutes=5))


@pytest.fixture
async def web(server: EmbeddedServer) -> AsyncIterator[WebUi]:
    """A browser window before the session's server."""
    assert server.ui_url is not None
    async with open_web_ui(server.ui_url, CHROMIUM) as web:
        yield web


@pytest.fixture
async def working(serve: Serve, kind: str) -> AsyncIterator[None]:
    """A handler that comes back in an hour with something to escape, or rejects what its payload names so."""

    @handler(kind, lane="medium")
    async def visit(message: Message, ctx: Context) -> Again | Reject:
        if message.payload == "reject":
            return Reject("status 404 from *shop*")
        return Again(after=timedelta(hours=1), tolerance=timedelta(0), reason="<b>304</b>")

    async with serve(visit):
        yield


async def read_rows(table: Locator) -> list[dict[str, str]]:
    """Give the rows of a table, each with its cells by heading."""
    headings, *rows = await table.get_by_role("row").all()
    names = await headings.get_by_role("columnheader").all_inner_texts()
    cells = [await row.get_by_role("cell").all_inner_texts() for row in rows]
    return [{name.strip(): cell.strip() for name, cell in zip(names, row, strict=True)} for row in cells]


async def test_the_list_shows_kind_lane_state_and_due_time(
    web: WebUi, working: None, start: Start, client: Client, kind: str
) -> None:
    """With the columns and filters that the page names; the browser remembers the columns, and a filter by its name."""
    await start(kind, "asleep", lane="long", scheduled_at=EVENING)
    await start(kind, "parked", lane="medium", payload="reject")
    query = f"WorkflowType='message' AND Kind='{kind}'"
    is_parked = f"{query} AND State='parked'"
    await wait_until(lambda: has_count(client, query, 2), "the index knows both")
    await wait_until(lambda: has_count(client, is_parked, 1), "the index knows who is parked")

    await web.show_list(query)
    await web.arrange_columns()
    await web.save_view("mine")
    table = await web.show_list(query)
    found = {row["Workflow ID"]: row for row in await read_rows(table)}
    parked = await read_rows(await web.show_list(is_parked))
    await web.open_view("mine")
    await table.get_by_role("link", name=f"{kind}:asleep", exact=True).wait_for()

    assert set(found) == {f"{kind}:asleep", f"{kind}:parked"}
    asleep = found[f"{kind}:asleep"]
    assert (asleep["Status"], asleep["Kind"], asleep["Lane"], asleep["State"]) == ("RUNNING", kind, "long", "active")
    assert re.fullmatch(rf"{EVENING.day} \w+ {EVENING.year}, 20:00:00.00 UTC", asleep["DueAt"])
    assert [(row["Workflow ID"], row["State"]) for row in parked] == [(f"{kind}:parked", "parked")]


async def has_count(client: Client, query: str, count: int) -> bool:
    """Say whether the index finds `count` messages."""
    return (await client.count_workflows(query)).count == count


async def test_the_server_understands_every_query_of_the_documentation(client: Client) -> None:
    """Each row of its table can be typed as it stands."""
    table = PAGE.read_text("utf-8").partition("| query | finds |")[2].partition("\n\n")[0]
    queries = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)

    assert len(queries) > 5
    for query in queries:
        assert (await client.count_workflows(query)).count >= 0, query


async def test_the_page_of_a_message_tells_where_it_stands_and_why(
    web: WebUi, working: None, start: Start, client: Client, kind: str
) -> None:
    """Its timeline names the calls and the due time; its details show state, reason and decisions as written."""
    message = await start(kind, "a", lane="medium", payload={})
    await wait_until(
        lambda: has_count(client, f"Kind='{kind}' AND DueAt > '{datetime.now(UTC).isoformat()}'", 1), "asleep"
    )
    due_at = (await message.query("status"))["due_at"]

    await web.open_workflow(message.id)
    await web.page.get_by_role("button", name="Event run_handler").get_by_text("version 0, attempt 1").wait_for()
    await web.page.get_by_text(f"due {due_at}").wait_for()
    details = await web.read_details()
    summary = await web.page.locator("iframe").first.content_frame.locator("main").inner_text()

    assert summary.strip() == f"{kind} a"
    assert f"active — due {due_at} since again (<b>304</b>)" in details
    assert "lane medium, priority 3, version 1" in details
    assert f"version 1: again (<b>304</b>), then due {due_at}" in details


async def test_signals_sent_with_the_form_take_effect(
    web: WebUi, working: None, start: Start, control: Control, kind: str
) -> None:
    """With an input as the documentation names it, and a pause with none."""
    message = await start(kind, "a", lane="medium", scheduled_at=EVENING)

    async def has(**expected: object) -> bool:
        status = (await control.show(kind, "a")).status or {}
        return all(status.get(name) == value for name, value in expected.items())

    await wait_until(lambda: has(state="active"), "it is asleep")
    await web.open_workflow(message.id)
    await web.send_signal("reprioritize", '{"priority": 1, "reason": "asked by Eva"}')
    await wait_until(lambda: has(priority=1), "the priority is another one")
    await web.send_signal("pause")
    await wait_until(lambda: has(state="paused"), "it is paused")
    await web.send_signal("reschedule")  # without the moment that it needs
    await web.send_signal("resume", '{"reason": "Eva is back"}')
    await wait_until(lambda: has(state="active"), "it goes on")

    decisions = (await control.show(kind, "a")).decisions
    assert [decision["what"] for decision in decisions] == ["started", "reprioritize", "pause", "ignored", "resume"]
    assert (await message.describe()).raw_description.workflow_execution_info.priority.priority_key == 1


async def test_the_page_of_a_pack_counts_its_messages_and_steers_them(
    web: WebUi, serve: Serve, client: Client, settings: Settings, kind: str
) -> None:
    """Its details count them by state; a signal with ids reaches those; the layout says how the kind is packed."""

    @handler(kind, encoding=PACK)
    async def look(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    control = Control(client, settings)
    async with serve(look, lanes=("short",)):
        starter = BulkStarter(client, settings, encodings={kind: PACK})
        for name in ("a", "b"):
            await starter.start(Envelope(kind=kind, id=name, lane="short", scheduled_at=EVENING), None)
        await web.open_workflow(f"{kind}~0")
        await web.send_signal("pause", '{"ids": ["a"], "reason": "asked by Eva"}')
        await wait_until(lambda: is_paused(control, kind, "a"), "it is paused")
        await web.open_workflow(f"{kind}~0")  # the page keeps what it has read once
        pack = await web.read_details()
        await web.open_workflow(f"{kind}~")
        layout = await web.read_details()

    assert f"2 messages of kind {kind}: 1 asleep, 0 running, 1 paused, 0 parked" in pack
    assert "1 packs of about 100 messages, lane short, coalescing 5 min" in layout


async def is_paused(control: Control, kind: str, message_id: str) -> bool:
    """Tell whether a message is held."""
    return (await control.look_up(kind, message_id)).state == "paused"
