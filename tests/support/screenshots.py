"""`./run screenshots`: takes new pictures for docs/web-ui.md and docs/operations-page.md, of real messages."""

import asyncio
import contextlib
import io
import math
import os
import random
import sys
import tempfile
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.async_api import async_playwright
from temporalio.client import Client

from activities import Again, Context, Message, Pack, Reject, handler
from activities.registry import Registry
from bench.serving import run_plan
from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.connect import connect
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.local.terminal import echo_err
from starter.starting.bulk import BulkStarter
from starter.steering.keepers import GateControl
from tests.support.operations_pages import serve_page
from tests.support.web_ui import WebUi, find_chromium, open_web_ui
from worker.main import HEARTBEAT
from worker.run import WorkerPlan

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SHOWN = "https://example.org/news"
PACK = Pack(packs=1, size=1000, coalesce=timedelta(minutes=5))
PACKED = 300
REMINDER_PACK = Pack(packs=4, size=5000, coalesce=timedelta(minutes=5))
REMINDERS = 4000
REMINDER_HOURS = 7
VIEWS = {
    "overview": "/",
    "messages": "/messages?kind=feed",
    "message": f"/messages/feed/{quote('https://example.org/forum', safe='')}",
    "parked": "/parked",
    "gates": "/gates",
    "workers": "/workers",
}
COLOURS = 128
SETTLED_SECONDS = 60.0


@handler("feed", lane="medium")
async def visit(message: Message, ctx: Context) -> Again | Reject:
    """Come back after as many hours as the payload says, or never again."""
    if message.payload is None:
        return Reject("status 410, gone")
    return Again(after=timedelta(hours=message.payload["hours"]), reason="unchanged, 304")


@handler("price", encoding=PACK)
async def look(message: Message, ctx: Context) -> Again | Reject:
    """Come back in an hour; one has nothing to look at."""
    if message.id == "berlin-42":
        return Reject("status 404")
    return Again(after=timedelta(hours=1), tolerance=timedelta(minutes=10), reason="status 200")


@handler("reminder", lane="medium", encoding=REMINDER_PACK)
async def remind(message: Message, ctx: Context) -> Again:
    """Come back in a week."""
    return Again(after=timedelta(days=7), reason="sent, 200")


def make_reminders(now: datetime) -> list[Envelope]:
    """Make many messages that are due in waves."""
    chance = random.Random(8)
    hours = list[float]()
    while len(hours) < REMINDERS:
        hour = chance.uniform(0.3, REMINDER_HOURS)
        if chance.random() < 0.35 + 0.3 * math.sin(hour * 1.6) + 0.3 * (3.5 < hour < 4):
            hours.append(hour)
    return [
        Envelope(kind="reminder", id=f"{n:05}", lane="medium", scheduled_at=now + timedelta(hours=hour))
        for n, hour in enumerate(hours)
    ]


HANDLERS = (visit, look, remind)


def make_envelopes(now: datetime) -> list[Envelope]:
    """Make a few messages in every state, and many packed ones."""
    evening = (now + timedelta(days=1)).replace(hour=20, minute=0, second=0, microsecond=0)
    pages = ("blog", "docs", "forum", "jobs", "news", "press", "shop", "status")
    return [
        *(Envelope(kind="price", id=f"berlin-{n}", lane="short") for n in range(PACKED)),
        *(
            Envelope(kind="feed", id=f"https://example.org/{name}", lane="medium", payload={"hours": 2 + n})
            for n, name in enumerate(pages)
        ),
        Envelope(kind="feed", id="https://example.org/archive", lane="long", scheduled_at=evening),
        Envelope(kind="feed", id="https://example.org/gone", lane="medium"),
    ]


@contextlib.asynccontextmanager
async def staging(client: Client) -> AsyncGenerator[None]:
    """Start the messages and run workers for a `with` block, which begins when each message is in its state."""
    settings = Settings()
    registry = Registry([("the pictures", each) for each in HANDLERS])

    plan = WorkerPlan(settings=settings, registry=registry, lanes=tuple(LANES), drain=timedelta(seconds=5))
    async with run_plan(client, plan):
        starter = BulkStarter(client, settings, encodings={"price": PACK, "reminder": REMINDER_PACK})
        now = datetime.now(UTC)
        await asyncio.gather(*(starter.start(envelope, None) for envelope in make_envelopes(now)))
        assert [None async for _ in starter.start_all((None, each) for each in make_reminders(now))]
        control = Control(client, settings)
        await control.pause("feed", "https://example.org/forum", "its owner is on holiday")
        await control.reprioritize("feed", SHOWN, 1, reason="asked by Eva")

        async with asyncio.timeout(SETTLED_SECONDS):
            while not await is_settled(client):  # noqa: ASYNC110 — the server sends no event when its index changes
                await asyncio.sleep(0.5)

        yield


async def is_settled(client: Client) -> bool:
    """Say whether the index shows all messages that sleep, are paused or have failed."""
    queries = (
        ("State='active' AND DueAt IS NOT NULL", 8),
        ("State='parked'", 1),
        ("State='paused'", 1),
        ("State='has_parked'", 1),
    )
    counts = [(await client.count_workflows(f"{query} AND ExecutionStatus='Running'")).count for query, _ in queries]
    return all(count >= minimum for count, (_, minimum) in zip(counts, queries, strict=True))


async def take_all(web: WebUi, folder: Path) -> None:
    """Take each picture."""
    running = "WorkflowType='message' AND ExecutionStatus='Running'"
    await web.show_list(running)
    await web.arrange_columns()
    await web.show_list(running)
    await web.take_picture(folder / "list.png")
    await web.open_workflow(f"feed:{SHOWN}")
    await web.page.get_by_role("button", name="Event run_handler").wait_for()
    await web.take_picture(folder / "message.png")
    await web.read_details()
    await web.take_picture(folder / "details.png")
    await web.open_workflow(f"feed:{SHOWN}")
    form = await web.fill_in_signal("reprioritize", '{"priority": 1, "reason": "asked by Eva"}')
    await form.screenshot(path=folder / "signal.png", animations="disabled", scale="css")
    await web.open_workflow("price~0")
    await web.read_details()
    await web.take_picture(folder / "pack.png")


async def take_page(client: Client, chromium: str, folder: Path) -> None:
    """Take a picture of each view of the operations page, and a dark one of the first."""
    settings = Settings(page_writes=True)
    closure = GateClosure.lasting(timedelta(hours=2), "asked for a pause, status 429")
    await GateControl(client, settings).close("host:shop.example", closure)

    async with serve_page(client, settings, HANDLERS) as served, async_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=chromium, args=sandbox)

        for is_dark, names in ((False, list(VIEWS)), (True, ["overview"])):
            context = await browser.new_context(
                base_url=served.address,
                viewport={"width": 1180, "height": 760},
                color_scheme="dark" if is_dark else "light",
            )
            page = await context.new_page()
            await page.goto("/sign-in")
            await page.get_by_label("Token").fill(served.page.token)
            await page.get_by_role("button", name="Sign in").click()

            for name in names:
                await page.goto(VIEWS[name])
                await page.locator("footer").wait_for()
                path = folder / f"page-{name}{'-dark' if is_dark else ''}.png"
                await page.screenshot(path=path, animations="disabled", scale="css", full_page=True)

        await browser.close()


def shrink(path: Path) -> None:
    """Rewrite a picture with few colours, which makes its file a third of the size."""
    small = io.BytesIO()
    Image.open(path).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    path.write_bytes(small.getvalue())


async def main() -> int:
    """Take the pictures and give the exit code."""
    chromium = find_chromium()
    if chromium is None:
        echo_err("screenshots: chromium is not on the PATH; install it (Debian: apt-get install chromium)")
        return 2

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dormice-screenshots-") as folder:
        options = EmbeddedOptions(data=Path(folder), port=find_free_port(), ui_port=find_free_port())
        async with run_embedded(options) as server:
            client = await connect(Settings(), {"TEMPORAL_ADDRESS": server.address}, heartbeat=HEARTBEAT)
            async with staging(client):
                async with open_web_ui(server.ui_url or "", chromium) as web:
                    await take_all(web, IMAGES)
                await take_page(client, chromium, IMAGES)

    for path in sorted(IMAGES.glob("*.png")):
        shrink(path)
        sys.stdout.write(f"{path.relative_to(IMAGES.parents[2])}  {path.stat().st_size / 1000:.0f} KB\n")

    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
