"""Long sleeps and herds: a year passes in a moment, and ten thousand of one second are spread."""

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities import Again, Context, Message, handler
from shared.messages.envelope import Envelope
from shared.messages.placement import unit_hash
from shared.settings import Settings
from shared.temporal.search_attributes import REQUIRED
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from starter.steering.selection import Selection
from tests.conftest import serving, wait_until
from tests.support.subjects import Subject, declare

pytestmark = pytest.mark.xdist_group("long_sleep")  # what they share is made once

YEAR = timedelta(days=365)
HERD = 4000
TOLERANCE = 600.0


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server of its own whose clock can be moved for one workflow."""
    program = Path(sys.executable).with_name("temporal")
    arguments = ["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"]
    for name, kind in REQUIRED.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(program), dev_server_extra_args=arguments
    ) as environment:
        yield environment


async def test_a_message_that_sleeps_for_a_year_wakes_on_time(skipping: WorkflowEnvironment, encoding: str) -> None:
    """One day before it is due nothing runs; when the year is over, the next version does, not a moment early."""
    due: list[tuple[int, datetime]] = []

    @handler("yearly")
    async def yearly(message: Message, ctx: Context) -> Again:
        due.append((message.version, ctx.due_at))
        return Again(after=YEAR, tolerance=timedelta(0))

    settings = Settings(task_queue_prefix="yearly")
    async with serving(skipping.client, settings, yearly, lanes=("short",)):
        starter = BulkStarter(skipping.client, settings, encodings=declare(encoding, "yearly"))
        await starter.start(Envelope(kind="yearly", id="a", lane="short"), None)
        message = Subject(skipping.client, Control(skipping.client, settings), encoding, "yearly", "a")
        await wait_until(lambda: len(due) == 1, "the first cycle ran")
        await wait_until(lambda: message.has(version=1), "it is decided")
        await skipping.fast_forward(message.handle, YEAR - timedelta(days=1))
        assert await message.has(version=1)
        assert len(due) == 1

        await skipping.fast_forward(message.handle, timedelta(days=1, seconds=1))
        await wait_until(lambda: len(due) == 2, "the second cycle ran a year later")

    assert due[1][0] == 1
    assert timedelta(0) <= due[1][1] - due[0][1] - YEAR < timedelta(minutes=1)


@pytest.fixture(scope="module")
async def herd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Client, Settings, list[Envelope]]]:
    """Thousands of one-shot messages for one second with ten minutes of tolerance, on a server restarted since."""
    options = EmbeddedOptions(data=tmp_path_factory.mktemp("herd"), port=find_free_port(), ui_port=None)
    settings = Settings(task_queue_prefix="herd")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    envelopes = [
        Envelope(kind="echo", id=f"h{n}", lane="short", scheduled_at=at, tolerance_seconds=TOLERANCE)
        for n in range(HERD)
    ]

    async with run_embedded(options) as server:
        starter = BulkStarter(await server.connect(), settings)
        async for receipt in starter.start_all((None, e) for e in envelopes):
            assert receipt.outcome is StartOutcome.STARTED, receipt

    async with run_embedded(options) as server:
        yield await server.connect(), settings, envelopes


@pytest.mark.long
async def test_thousands_due_in_one_second_are_spread_within_tolerance(
    herd: tuple[Client, Settings, list[Envelope]],
) -> None:
    """After a restart every message is due where the hash of its id says, none before its second, evenly spread."""
    client, settings, envelopes = herd
    control = Control(client, settings)
    at = envelopes[0].scheduled_at
    assert at is not None

    async def all_listed() -> dict[str, float] | None:
        found = {m.id: m.due_at.timestamp() async for m in control.list(Selection(kind="echo")) if m.due_at}
        return found if len(found) == HERD else None

    due: dict[str, float] = await wait_until(all_listed, "the index lists all of them")

    expected = {e.id: at.timestamp() + unit_hash(f"echo:{e.id}") * TOLERANCE for e in envelopes}
    assert due == {name: pytest.approx(moment, abs=0.01) for name, moment in expected.items()}
    assert min(due.values()) >= at.timestamp()
    per_minute = [sum(60 * n <= d - at.timestamp() < 60 * (n + 1) for d in due.values()) for n in range(10)]
    assert sum(per_minute) == HERD
    assert min(per_minute) > 0.85 * HERD / 10, per_minute
