"""`./run screenshots`: takes new pictures for docs/web-ui.md, of real messages on a real embedded server."""

import asyncio
import contextlib
import io
import sys
import tempfile
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from PIL import Image
from temporalio.client import Client

from activities import Again, Context, Message, Pack, Reject, handler
from activities.registry import Registry
from shared.lanes import LANES
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.local.terminal import echo_err
from starter.starting.bulk import BulkStarter
from tests.web_ui import WebUi, find_chromium, open_web_ui
from worker.run import WorkerPlan, run_workers

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOWN = "https://example.org/news"
PACK = Pack(packs=1, size=1000, coalesce=timedelta(minutes=5))
PACKED = 300
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
    settings, stopping = Settings(), asyncio.Event()
    registry = Registry([("the pictures", visit), ("the pictures", look)])
    plan = WorkerPlan(settings=settings, registry=registry, lanes=tuple(LANES), drain=timedelta(seconds=5))
    working = asyncio.create_task(run_workers(client, plan, stopping))
    try:
        starter = BulkStarter(client, settings, encodings={"price": PACK})
        await asyncio.gather(*(starter.start(envelope, None) for envelope in make_envelopes(datetime.now(UTC))))
        control = Control(client, settings)
        await control.pause("feed", "https://example.org/forum", "its owner is on holiday")
        await control.reprioritize("feed", SHOWN, 1, reason="asked by Eva")
        async with asyncio.timeout(SETTLED_SECONDS):
            while not await is_settled(client):  # noqa: ASYNC110 — the server sends no event when its index changes
                await asyncio.sleep(0.5)
        yield
    finally:
        stopping.set()
        await working


async def is_settled(client: Client) -> bool:
    """Say whether the index shows all messages that sleep, are paused or have failed."""
    queries = (
        ("State='active' AND DueAt IS NOT NULL", 8),
        ("State='parked'", 1),
        ("State='paused'", 1),
        ("State='has_parked'", 1),
    )
    counts = [(await client.count_workflows(f"{query} AND ExecutionStatus='Running'")).count for query, _ in queries]
    return all(count >= least for count, (_, least) in zip(counts, queries, strict=True))


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
            client = await server.connect()
            async with staging(client), open_web_ui(server.ui_url or "", chromium) as web:
                await take_all(web, IMAGES)
    for path in sorted(IMAGES.glob("*.png")):
        shrink(path)
        sys.stdout.write(f"{path.relative_to(IMAGES.parents[1])}  {path.stat().st_size / 1000:.0f} KB\n")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
