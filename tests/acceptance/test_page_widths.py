"""The operations page on screens of every width, full of long names: nothing is wider than the screen, or cut off."""

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page

from activities import Pack
from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.extras.web.tokens import Tokens
from starter.steering.keepers import GateControl
from starter.steering.selection import Selection
from tests.conftest import serving, wait_until
from tests.support.operations_pages import ServedPage, empty_server, make_handlers, serve_page, start_all
from tests.support.page_windows import CHROMIUM, NO_CHROMIUM, launched_browser, opened_window, sign_in

SOLO = "feed"
PACKED = "price"
PACK = Pack(packs=1, size=1000, coalesce=timedelta(0))
LONG = "x" * 120
"""A word without a place to break."""
ID = f"https://example.org/{LONG}"
TOKEN = "a token of sixteen characters or more"  # noqa: S105 — of this test alone
VIEWS = ("/", "/messages", "/parked", "/gates", "/dead-letters", "/workers", "/sign-in", "/nothing")
MESSAGES = tuple(
    f"/messages/{kind}/{quote(message_id, safe='')}{query}"
    for kind in (SOLO, PACKED)
    for message_id, query in ((ID, "?payload=true"), ("gone", ""))
)
ASKING = (
    "/parked/replay",
    f"/parked/drop?reason={LONG}",
    *(f"/messages/{kind}/{quote(ID, safe='')}/revise" for kind in (SOLO, PACKED)),
)

pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser at a time
    pytest.mark.long,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM),
]


@dataclass(frozen=True, slots=True)
class Stage:
    """One installation full of long names, a page that people sign in to, and one to look only."""

    writable: ServedPage
    reading: ServedPage
    browser: Browser


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One server, its workers, two pages and a browser for all tests of this module."""
    folder = tmp_path_factory.mktemp("widths")
    settings = Settings(task_queue_prefix="widths", page_writes=True)
    handlers = make_handlers(SOLO, PACKED, PACK)

    async with AsyncExitStack() as stack:
        _, client = await stack.enter_async_context(empty_server(folder))
        await stack.enter_async_context(serving(client, settings, *handlers))
        await start_all(client, settings, make_envelopes(), {PACKED: PACK})

        for gate in ("host:shop.example", f"host:{LONG}"):
            await GateControl(client, settings).close(gate, GateClosure.lasting(timedelta(hours=2), f"down: {LONG}"))

        tokens = load_tokens(folder)
        writable = await stack.enter_async_context(serve_page(client, settings, handlers, tokens))
        looking = dataclasses.replace(settings, page_writes=False)
        reading = await stack.enter_async_context(serve_page(client, looking, handlers))
        await wait_until(lambda: has_parked(writable), "one of each kind is parked")
        yield Stage(writable, reading, await stack.enter_async_context(launched_browser()))


def make_envelopes() -> list[Envelope]:
    """Make a message of each kind with a long id, one that is parked for a long reason, and one for each lane."""
    later = datetime.now(UTC) + timedelta(hours=2)
    return [
        *(Envelope(kind=SOLO, id=f"of-{lane}", lane=lane, scheduled_at=later) for lane in LANES),
        *(
            envelope
            for kind in (SOLO, PACKED)
            for envelope in (
                Envelope(kind=kind, id=ID, lane="short", payload={"text": LONG}, scheduled_at=later),
                Envelope(kind=kind, id="gone", lane="short", payload={"reject": f"status 410 {LONG}"}),
            )
        ),
    ]


def load_tokens(folder: Path) -> Tokens:
    """Load a token whose owner has a long name."""
    path = folder / "tokens.toml"
    path.write_text(f'[{LONG}]\ntoken = "{TOKEN}"\nwrite = true\n', "utf-8")
    return Tokens.load(path)


async def has_parked(served: ServedPage) -> bool:
    """Say whether one of each kind is parked."""
    return len([None async for _ in served.control.list(Selection(state="parked"))]) == 2


async def measure_overhang(page: Page) -> float:
    """Give by how many pixels the page is wider than what the screen has room for."""
    root = "document.documentElement"
    return await page.evaluate(f"{root}.scrollWidth - Math.ceil({root}.getBoundingClientRect().width)")


@pytest.mark.parametrize("width", [400, 1000, 1400])
@pytest.mark.parametrize("is_signed_in", [True, False])
async def test_no_page_is_wider_than_the_screen(stage: Stage, width: int, *, is_signed_in: bool) -> None:
    """Whoever looks at it, however long the names, reasons and payloads on it are, and with its table of numbers."""
    served = stage.writable if is_signed_in else stage.reading
    overhangs = dict[str, float]()
    screen = {"width": width, "height": 800}
    async with opened_window(stage.browser, served, is_refused=True, viewport=screen) as page:
        if is_signed_in:
            await sign_in(page, TOKEN)
        for path in (*VIEWS, *MESSAGES, *(ASKING if is_signed_in else ())):
            await page.goto(path)
            await page.locator("footer").wait_for()
            await page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            overhangs[path] = await measure_overhang(page)

    assert {path: overhang for path, overhang in overhangs.items() if overhang > 0} == {}


async def test_a_button_of_a_row_is_in_sight_on_a_narrow_screen(stage: Stage) -> None:
    """A table that is wider than the screen is scrolled sideways, and the button that its rows are about stays."""
    async with opened_window(stage.browser, stage.writable, viewport={"width": 400, "height": 800}) as page:
        await sign_in(page, TOKEN)
        await page.goto("/gates")
        boxes = [await button.bounding_box() for button in await page.locator("td button").all()]

    assert len(boxes) == 2 + len(LANES)
    assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 400 for box in boxes)


async def test_the_navigation_never_leaves_an_entry_alone(stage: Stage) -> None:
    """At every width its entries stand in one row, or in rows of as many."""
    rows = dict[int, list[int]]()
    async with opened_window(stage.browser, stage.writable) as page:
        await sign_in(page, TOKEN)
        for width in (320, 400, 500, 640, 760, 900, 1000, 1100, 1200, 1400):
            await page.set_viewport_size({"width": width, "height": 800})
            entries = await page.get_by_role("navigation", name="Views").get_by_role("link").all()
            tops = Counter([box["y"] for entry in entries if (box := await entry.bounding_box())])
            rows[width] = list(tops.values())

    assert {width: counts for width, counts in rows.items() if counts not in ([6], [3, 3])} == {}
