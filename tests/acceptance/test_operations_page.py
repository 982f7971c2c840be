"""The operations page as a person uses it, in a real browser: what it tells is what the command line tells."""

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from activities import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.steering.keepers import GateControl
from starter.steering.selection import Selection
from tests.conftest import serving, wait_until
from tests.support.operations_pages import MARKUP, ServedPage, empty_server, make_handlers, serve_page, start_all
from tests.support.page_windows import CHROMIUM, NO_CHROMIUM, launched_browser, opened_window

SOLO = "feed"
PACKED = "price"
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))
LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
IDS = {SOLO: ["asleep", "steered", "a/b:c", "stopped"], PACKED: [f"berlin-{n}" for n in range(6)]}
REASON = f"status 410 {MARKUP}"
VIEWS = ("Overview", "Messages", "Parked", "Gates and idle", "Dead letters", "Workers")

pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser at a time
    pytest.mark.long,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM),
]


@dataclass(frozen=True, slots=True)
class Stage:
    """One installation with messages in every state, its page to change things, and one to look only."""

    writable: ServedPage
    reading: ServedPage
    browser: Browser


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One server, its workers, two pages and a browser for all tests of this module."""
    settings = Settings(task_queue_prefix="page", page_writes=True, patience=timedelta(seconds=20))
    handlers = make_handlers(SOLO, PACKED, PACK)

    async with AsyncExitStack() as stack:
        _, client = await stack.enter_async_context(empty_server(tmp_path_factory.mktemp("page")))
        await stack.enter_async_context(serving(client, settings, *handlers))
        envelopes = [
            Envelope(kind=kind, id=each, lane="short", payload={"text": MARKUP}, scheduled_at=LATER)
            for kind, ids in IDS.items()
            for each in ids
        ]
        envelopes += [
            Envelope(kind=kind, id=f"gone-{n}", lane="short", payload={"reject": REASON})
            for kind in IDS
            for n in range(2)
        ]
        await start_all(client, settings, envelopes, {PACKED: PACK})
        writable = await stack.enter_async_context(serve_page(client, settings, handlers))
        looking = dataclasses.replace(settings, page_writes=False)
        reading = await stack.enter_async_context(serve_page(client, looking, handlers))
        await wait_until(lambda: has_parked(writable, 4), "all are indexed, and four are parked")
        browser = await stack.enter_async_context(launched_browser())
        yield Stage(writable, reading, browser)


async def has_parked(served: ServedPage, count: int) -> bool:
    """Say whether so many are parked, and all others are listed."""
    listed = [each async for each in served.control.list(Selection())]
    everything = sum(map(len, IDS.values())) + 4
    return len(listed) == everything and [each.state for each in listed].count("parked") == count


def opened(stage: Stage, served: ServedPage, **options: Any) -> contextlib.AbstractAsyncContextManager[Page]:
    """Open a window on a page for a `with` block."""
    return opened_window(stage.browser, served, **options)


async def sign_in(page: Page, served: ServedPage) -> None:
    """Sign in as a person does, with the token that was printed at the start, by the link of the first view."""
    await page.goto("/")
    await page.get_by_role("link", name="Sign in").click()
    await page.get_by_label("Token").fill(served.page.token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_text("may change things")).to_be_visible()


async def read_table(page: Page, name: str) -> list[list[str]]:
    """Give the cells of the rows of a table with a column of that name."""
    table = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name=name, exact=True)).first
    rows = await table.locator("tbody tr").all()
    return [[text.strip() for text in await row.locator("th, td").all_inner_texts()] for row in rows]


async def test_every_view_tells_what_the_command_line_tells(stage: Stage) -> None:
    """Counts, messages, parked ones by reason, gates and workers; each view is reached by a link of the first."""
    control = stage.reading.control
    counts = {state: (await control.estimate(Selection(state=state))).number for state in ("active", "parked")}
    listed = {f"{each.kind}:{each.id}": each.state async for each in control.list(Selection())}
    async with opened(stage, stage.reading) as page:
        await page.goto("/")
        first = await page.inner_text("main")
        tiles = await page.locator(".tile").all_inner_texts()
        for name in VIEWS:
            await page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_role("heading", level=1)).to_be_visible()

        async def read_workers() -> list[list[str]] | None:
            await page.goto("/workers")
            found = await read_table(page, "Process")
            return found if len(found) >= 3 else None

        workers = await wait_until(read_workers, "the worker of each lane has sent a heartbeat")
        await page.goto("/messages")
        messages = {row[0].partition("\n")[0]: row[2] for row in await read_table(page, "Message")}
        await page.get_by_label("State").select_option("parked")
        await page.get_by_label("Kind").fill(PACKED)
        await page.get_by_role("button", name="Filter").click()
        filtered = [row[0].partition("\n")[0] for row in await read_table(page, "Message")]
        address = page.url
        await page.goto("/parked")
        groups = await read_table(page, "Reason")

    assert {tile.split("\n")[0]: int(tile.split("\n")[1]) for tile in tiles if tile.split("\n")[0] in counts} == counts
    assert messages == listed
    assert sorted(filtered) == [f"{PACKED}:gone-0", f"{PACKED}:gone-1"]
    assert address.endswith(f"/messages?kind={PACKED}&state=parked")
    assert {row[0]: int(row[1]) for row in groups}[REASON] == 4
    assert "Messages are parked" in first
    assert {row[0] for row in workers} == {"short", "medium", "long"}
    assert {row[3] for row in workers} == {"alive"}


@pytest.mark.parametrize("kind", IDS)
async def test_a_payload_is_hidden_until_asked_for_and_shows_as_it_is_written(stage: Stage, kind: str) -> None:
    """HTML in a payload or a reason stays text, and nothing of it runs."""
    message_id = IDS[kind][0]
    async with opened(stage, stage.reading) as page:
        await page.goto(f"/messages/{kind}/{message_id}")
        hidden = await page.content()
        await page.get_by_role("link", name="Show the payload").click()
        payload = await page.locator("pre").inner_text()
        why = await page.locator(".because").inner_text()
        await page.goto(f"/messages/{kind}/gone-0")
        parked = await page.inner_text("main")
        bold = await page.locator("main b").count()
        title = await page.title()
    view = await stage.reading.control.show(kind, message_id)

    assert "bold" not in hidden
    assert json.loads(payload) == {"text": MARKUP}
    assert view.status is not None
    assert why == view.status["why"]
    assert REASON in parked
    assert (bold, title) == (0, f"{kind}:gone-0 · dormice")


async def test_what_only_looks_has_no_form_that_changes_anything(stage: Stage) -> None:
    """Neither on the views nor on a message; it says that it is read-only."""
    async with opened(stage, stage.reading) as page:
        for path in ("/", "/messages", f"/messages/{SOLO}/asleep", "/parked", "/gates", "/dead-letters", "/workers"):
            await page.goto(path)
            assert await page.locator("form[method=post]").count() == 0, path
            await expect(page.get_by_text("read-only")).to_be_visible()


@pytest.mark.parametrize("kind", IDS)
async def test_a_message_is_steered_with_reasons_and_asked_about_again(stage: Stage, kind: str) -> None:
    """Pause, resume, reschedule and priority take effect at once; stop asks first; the decisions have the reasons."""
    message_id = IDS[kind][1]
    control = stage.writable.control
    async with opened(stage, stage.writable) as page:
        await sign_in(page, stage.writable)
        await page.goto(f"/messages/{kind}/{message_id}")
        for verb, fields in (
            ("pause", {"Reason": "asked by Eva"}),
            ("resume", {"Reason": "Eva is back"}),
            ("reschedule", {"When": "2036-01-01T00:00Z", "Reason": "later"}),
        ):
            form = page.locator(f"form[action$='/{verb}']")
            for label, value in fields.items():
                await form.get_by_label(label).fill(value)
            await form.get_by_role("button").click()
            await expect(page.get_by_role("status").first).to_contain_text("sent")
        priority = page.locator("form[action$='/reprioritize']")
        await priority.get_by_label("Priority").select_option("1")
        await priority.get_by_role("button").click()
        changed = await control.show(kind, message_id)
        await page.locator("form[action$='/stop'] button").click()
        asked = await page.inner_text("main")
        still = (await control.look_up(kind, message_id)).state
        await page.get_by_label("Reason").fill("enough")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".headline")).to_contain_text("stopped")
        await expect(page.locator("form[action$='/stop']")).to_have_count(0)

    async def has_ended() -> bool:
        return (await control.look_up(kind, message_id)).state == "stopped"

    await wait_until(has_ended, "it has ended")

    assert changed.status is not None
    assert (changed.status["priority"], changed.status["due_at"]) == (1, "2036-01-01 00:00:00 UTC")
    decided = [(decision["what"], decision["reason"]) for decision in changed.decisions]
    assert ("pause", "asked by Eva") in decided
    assert ("resume", "Eva is back") in decided
    assert "It ends for good" in asked
    assert still == "active"


@pytest.mark.parametrize("kind", IDS)
async def test_a_revision_begins_with_the_payload_and_keeps_what_was_typed(stage: Stage, kind: str) -> None:
    """The message's own view does not show the payload; what is refused stands in the form again, and says why."""
    message_id = IDS[kind][2]
    control = stage.writable.control
    wrong = '{"text": "half\nof it'
    async with opened_window(stage.browser, stage.writable, is_refused=True) as page:
        await sign_in(page, stage.writable)
        await page.goto(f"/messages/{kind}/{quote(message_id, safe='')}")
        hidden = await page.content()
        await page.get_by_role("button", name="Revise").click()
        payload = page.get_by_label("Payload as JSON")
        begun_with = {"text": MARKUP}
        assert json.loads(await payload.input_value()) == begun_with
        await payload.fill(wrong)
        await page.get_by_label("Reason").fill("asked by Eva")
        await page.get_by_role("button", name="Revise").click()
        await expect(page.get_by_role("alert")).to_contain_text("Payload: ")
        assert await payload.input_value() == wrong
        await expect(page.get_by_label("Reason")).to_have_value("asked by Eva")
        await payload.fill('{"text": "whole"}')
        await page.get_by_role("button", name="Revise").click()
        await expect(page.get_by_role("status").first).to_contain_text("sent")
        moved = page.locator("form[action$='/reschedule']")
        await moved.get_by_label("When").fill("tomorrow")
        await moved.get_by_label("Reason").fill("too early")
        await moved.get_by_role("button").click()
        await expect(page.get_by_role("alert")).to_contain_text("Due_at: ")
        await expect(page.get_by_label("When")).to_have_value("tomorrow")
        await expect(page.get_by_label("Reason")).to_have_value("too early")

    async def is_revised() -> bool:
        status = (await control.show(kind, message_id)).status
        return status is not None and status["payload"] == {"text": "whole"}

    await wait_until(is_revised, "it has its new payload")
    assert "bold" not in hidden


async def test_parked_messages_are_counted_before_they_are_replayed_or_dropped(stage: Stage) -> None:
    """Two steps: the count of what the filter selects, then the deed, whose outcome is shown."""
    control = stage.writable.control
    await start_all(
        stage.writable.installation.client,
        stage.writable.installation.settings,
        [Envelope(kind=kind, id="late", lane="short", payload={"reject": "too late"}) for kind in IDS],
        {PACKED: PACK},
    )
    selected = Selection(state="parked")

    async def has_late(count: int) -> bool:
        return [each.parked_reason async for each in control.list(selected)].count("too late") == count

    await wait_until(lambda: has_late(2), "both are parked")
    async with opened(stage, stage.writable) as page:
        await sign_in(page, stage.writable)
        await page.goto("/parked")
        await page.get_by_role("link", name="too late", exact=True).click()
        await page.get_by_role("link", name="Drop").click()
        asked = await page.inner_text("main")
        await page.get_by_role("link", name="No, go back").click()
        kept = await has_late(2)
        await page.get_by_role("link", name="Drop").click()
        await page.get_by_role("button", name="Drop 2 messages").click()
        await expect(page.locator(".sendings li").first).to_contain_text("2 sent")
        await wait_until(lambda: has_late(0), "both have ended")
        await page.goto(f"/parked?kind={SOLO}")
        await page.get_by_role("link", name="Replay").click()
        before = (await control.show(SOLO, "gone-0")).decisions
        await page.get_by_role("button", name="Replay 2 messages").click()
        await expect(page.locator(".sendings li").first).to_contain_text("2 sent")

        async def has_run_again() -> bool:
            return len((await control.show(SOLO, "gone-0")).decisions) > len(before)

        await wait_until(has_run_again, "it has run again")

    assert "2 parked messages would be meant. They end for good." in asked
    assert "reason 'too late'" in asked
    assert kept


async def test_a_gate_is_closed_and_opened(stage: Stage) -> None:
    """With its reason and the time at which it opens, as `dormice gates list` has it."""
    api = stage.writable.installation
    gates = GateControl(api.client, api.settings)

    async def has(name: str, is_closed: bool) -> bool:  # noqa: FBT001 — a fact
        return (name in await gates.fetch(time.time())) is is_closed

    async with opened(stage, stage.writable) as page:
        await sign_in(page, stage.writable)
        await page.goto("/gates")
        await page.get_by_role("textbox", name="Gate").fill("host:shop.example")
        await page.get_by_role("textbox", name="Opens at").fill("+2h")
        await page.get_by_label("Reason").fill(MARKUP)
        await page.get_by_role("button", name="Close it").click()
        await wait_until(lambda: has("host:shop.example", is_closed=True), "it is closed")
        closure = (await gates.fetch(time.time()))["host:shop.example"]
        await page.goto("/gates")
        await expect(page.get_by_role("row").filter(has_text="host:shop.example")).to_contain_text(MARKUP)
        await page.get_by_role("button", name="Open host:shop.example").click()
        await wait_until(lambda: has("host:shop.example", is_closed=False), "it is open")

    assert closure.reason == MARKUP
    assert 7000 < closure.opens_at - closure.closed_at < 7300


async def test_it_can_be_used_with_the_keyboard_alone(stage: Stage) -> None:
    """The first Tab shows the way past the navigation; links and fields show where the focus is."""
    async with opened(stage, stage.reading) as page:
        await page.goto("/messages")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await expect(page.get_by_label("Kind")).to_be_focused()
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        await page.keyboard.type(SOLO)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/messages?kind={SOLO}")
        names = [row[0].partition("\n")[0] for row in await read_table(page, "Message")]
        await page.get_by_role("link", name=f"{SOLO}:asleep", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("asleep")
        await page.go_back()
        await expect(page.get_by_label("Kind")).to_have_value(SOLO)

    assert outline == "solid"
    assert {name.partition(":")[0] for name in names} == {SOLO}


async def test_without_scripts_everything_works_by_links_and_forms(stage: Stage) -> None:
    """Signing in, looking, filtering and changing a message."""
    async with opened(stage, stage.writable, java_script_enabled=False) as page:
        await sign_in(page, stage.writable)
        for name in VIEWS:
            await page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()

        await page.goto("/messages")
        await page.get_by_label("Kind").fill(SOLO)
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_role("link", name=f"{SOLO}:a/b:c").click()
        form = page.locator("form[action$='/pause']")
        await form.get_by_label("Reason").fill("no scripts")
        await form.get_by_role("button").click()
        await expect(page.locator(".headline")).to_contain_text("paused")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".headline")).to_contain_text("active")


async def test_it_is_dark_where_the_system_is(stage: Stage) -> None:
    """The colours follow the reader's system."""
    grounds = dict[str, str]()
    for scheme in ("light", "dark"):
        async with opened(stage, stage.reading, color_scheme=scheme) as page:
            await page.goto("/")
            grounds[scheme] = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    shades = {scheme: sum(map(int, re.findall(r"\d+", colour))) for scheme, colour in grounds.items()}

    assert shades["dark"] < 150
    assert shades["light"] > 600


async def test_it_refreshes_while_somebody_looks_and_rests_while_nobody_does(stage: Stage) -> None:
    """What changes appears by itself and moves nothing; in the background it asks nothing, and goes on at once."""
    control = stage.reading.control
    asked = list[str]()
    async with opened(stage, stage.reading) as page:
        await page.goto(f"/messages/{SOLO}/stopped")
        page.on("request", lambda request: asked.append(request.url))
        await page.evaluate(
            "window.shifts = 0; new PerformanceObserver((list) => list.getEntries().forEach((each) => "
            "{ window.shifts += each.value; })).observe({type: 'layout-shift', buffered: false})"
        )
        await control.reprioritize(SOLO, "stopped", 2)
        await expect(page.locator(".facts")).to_contain_text("Priority\n2", use_inner_text=True)
        shifts = await page.evaluate("window.shifts")
        await page.evaluate("document.hasFocus = () => false; dispatchEvent(new Event('blur'))")
        await expect(page.locator("#watch")).to_have_text("paused while you are elsewhere")
        asked.clear()
        await control.pause(SOLO, "stopped")
        await page.evaluate("new Promise((done) => setTimeout(done, 6000))")  # longer than it would take to ask again
        resting = list(asked)
        await page.evaluate("document.hasFocus = () => true; dispatchEvent(new Event('focus'))")
        await expect(page.locator(".headline")).to_contain_text("paused")

    assert resting == []
    assert len(asked) >= 1
    assert shifts < 0.05
