"""What gets a stop signal ends, with all that it has started, whoever sent it and however its parent ended."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from shared.exit import find_stop_signals
from starter.cli.interruption import run_in_background, run_until_signal
from starter.local.supervised_process import kill_supervised, start_supervised
from tests.conftest import wait_until
from tests.support.processes import ending_family, is_gone
from worker.main import take_signals

ROOT = Path(__file__).parents[2]
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def handlers() -> Generator[None]:
    """Give the handlers of this process back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the suite may have it ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_lets_work_end_what_it_has_started(number: signal.Signals) -> None:
    """It is cancelled, so that each of its blocks ends what it began; there is no result then."""
    ended: list[str] = []

    async def work() -> str:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            ended.append("what it began")
        return "never"

    assert await run_until_signal(work()) is None
    assert ended == ["what it began"]
    for taken in find_stop_signals():
        asyncio.get_running_loop().remove_signal_handler(taken)


def test_work_beside_a_block_gives_its_result_or_its_error() -> None:
    """The block decides when it wants to know."""

    async def work(divisor: int) -> float:
        await asyncio.sleep(0)
        return 1 / divisor

    with run_in_background(work(2)) as half, run_in_background(work(0)) as wrong:
        assert half.result(timeout=60) == 0.5
        with pytest.raises(ZeroDivisionError):
            wrong.result(timeout=60)


def test_work_beside_a_block_is_cancelled_with_it() -> None:
    """It cleans up before the block's own error goes on, and the error is not replaced."""
    began = threading.Event()
    ended = list[str]()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append("what it began")

    def interrupt() -> None:
        with run_in_background(work()):
            assert began.wait(timeout=60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()

    assert ended == ["what it began"]


def test_a_terminal_that_ends_lets_a_worker_drain() -> None:
    """A terminal may hang up twice without it counting as a second signal, which would end a drain at once."""
    first = threading.Semaphore(0)
    second = threading.Event()
    with take_signals(first.release, second.set):
        os.kill(os.getpid(), signal.SIGHUP)
        assert first.acquire(timeout=60)
        os.kill(os.getpid(), signal.SIGHUP)
        assert not second.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert second.wait(60)
    assert not first.acquire(blocking=False)


def test_nohup_is_respected() -> None:
    """Whoever has the end of the terminal ignored wants the process to outlive it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert find_stop_signals() == (signal.SIGINT, signal.SIGTERM)

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert signal.SIGHUP in find_stop_signals()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
async def test_what_ignores_being_told_to_end_does_not_outlive_its_parent_watch() -> None:
    """Whoever kills the parent watch alone leaves nothing behind."""
    watch = await start_supervised([sys.executable, "-c", DEAF], asyncio.subprocess.PIPE)
    try:
        assert watch.stdout is not None
        assert await watch.stdout.readline() == b"deaf\n"
        family = psutil.Process(watch.pid).children()
        watch.kill()
        await wait_until(lambda: is_gone(family), "the supervised process is gone")
        assert family
    finally:
        await kill_supervised(watch)


async def test_what_ignores_being_told_to_end_does_not_outlive_who_started_it() -> None:
    """When its parent is gone, however it went, the pipe closes; the parent watch then insists after a while."""
    code = (
        "import sys, starter.local.parent_watch; "
        "starter.local.parent_watch.GRACE_SECONDS = 0.2; starter.local.parent_watch.main(sys.argv[1:])"
    )
    pipe = asyncio.subprocess.PIPE

    watch = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, sys.executable, "-c", DEAF), cwd=ROOT, stdin=pipe, stdout=pipe
    )
    async with ending_family(watch):
        assert watch.stdin is not None
        assert watch.stdout is not None
        assert await watch.stdout.readline() == b"deaf\n"
        family = psutil.Process(watch.pid).children()
        watch.stdin.close()
        await wait_until(lambda: is_gone(family), "the supervised process is gone")
        assert family
