"""The work of the scenario: I/O with a long tail, and a tally of what was due, called, late and repeated."""

import asyncio
import os
import random
import resource
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

import aiohttp
import psutil

from bench.peers.work import Order as PeersOrder

TIMEOUT_MARGIN = 0.5
"""A call that was cut off so much before its timeout, or earlier, was cut off by something else."""

LISTED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(PeersOrder):
    """What a process of a contestant has to do; see `Row` for the I/O. With `site` (host:port), it is requests."""

    share: float = 0.0
    long: float = 0.0
    special: int = 0
    special_io: float = 0.0
    site: str = ""
    windows: int = 1

    def is_special(self, number: int) -> bool:
        """Whether a message is one of the special ones, which are spread over all."""
        return self.special > 0 and number % (self.count // self.special) == 0

    def first_dues(self) -> list[float]:
        """Give when each message is due first; the special ones are due soon, so that all their attempts are seen."""
        # a dataclass with slots is made anew, so `super()` would not know it
        dues = PeersOrder.first_dues(self)
        first = self.first_due.timestamp()
        return [first if self.is_special(number) else due for number, due in enumerate(dues)]


@dataclass(slots=True, kw_only=True)
class Window:
    """What was seen in a stretch of time; lateness is that of calls of all but special messages, when they began.

    At the end of the window `overdue` messages, special ones left out, have waited for longer than their tolerance,
    one of them for `waits` seconds. `in_flight` are the most calls at once. Counts from `repeated` on are those since
    the beginning.
    """

    seconds: float = 0.0
    calls: int = 0
    due: int = 0
    on_time: int = 0
    late_p50: float = 0.0
    late_p99: float = 0.0
    late_max: float = 0.0
    overdue: int = 0
    waits: float = 0.0
    in_flight: int = 0
    cpu: float = 0.0
    rss: int = 0
    files: int = 0
    repeated: int = 0
    left_out: int = 0
    early: int = 0
    cut_off: int = 0
    special_calls: int = 0
    special_ended: int = 0
    is_total: bool = False


class Work:
    """Does what an order says, and keeps the tally."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._due = array("d", order.first_dues())
        self._next = array("H", bytes(2 * order.count))
        self._began_at = array("d", bytes(8 * order.count))
        self._due_in = Counter(map(int, self._due))
        self._special = {number for number in range(order.count) if order.is_special(number)}
        patience = aiohttp.ClientTimeout(total=None)  # others cut calls off
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=patience)
        self._late = array("f")
        self._in_flight = 0
        self._seen = Window()
        self._now = Window()

    async def handle(self, message_id: str, version: int) -> float:
        """Do the I/O, and tell when the message is to come back."""
        number = int(message_id.rpartition("-")[2])
        began = time.time()
        self._begin(number, version, began)
        try:
            await self._do_io(number)
        except asyncio.CancelledError:
            if time.time() - began >= self._order.timeout - TIMEOUT_MARGIN:
                self._seen.cut_off += 1
                self._next[number] = version  # the next call of this version is an attempt, not a repeat
            raise
        finally:
            self._in_flight -= 1

        if number in self._special:
            self._seen.special_ended += 1
        delay = random.uniform(*self._order.delay)
        due = time.time() + delay
        self._due[number] = due
        self._due_in[int(due)] += 1
        return delay

    async def measure(self) -> AsyncIterator[Window]:
        """Measure windows after the warm-up, and at the end all of them together."""
        await asyncio.sleep(max(0.0, self._order.due_at - time.time()) + self._order.warmup)
        total = Window(is_total=True)
        late = array("f")

        for _ in range(self._order.windows):
            window = await self._watch(self._order.seconds / self._order.windows)
            yield window
            late.extend(self._late)
            total.seconds += window.seconds
            total.calls += window.calls
            total.due += window.due
            total.on_time += window.on_time
            total.cpu += window.cpu
            total.in_flight = max(total.in_flight, window.in_flight)
            total.rss = max(total.rss, window.rss)
            total.files = max(total.files, window.files)
            total.overdue = window.overdue
            total.waits = window.waits

        self._describe_lateness(total, late)
        yield self._with_counts(total)

    async def _watch(self, seconds: float) -> Window:
        window = self._now = Window(in_flight=self._in_flight)
        self._late = array("f")
        began_at = time.time()
        began = time.monotonic()
        cpu = _cpu()
        await asyncio.sleep(seconds)
        window.seconds = time.monotonic() - began
        window.cpu = _cpu() - cpu
        process = psutil.Process()
        window.rss = process.memory_info().rss
        window.files = process.num_fds()
        window.due = sum(self._due_in[second] for second in range(int(began_at), int(began_at + seconds)))
        self._describe_lateness(window, self._late)
        self._find_overdue(window)

        return self._with_counts(window)

    def _describe_lateness(self, window: Window, late: "array[float]") -> None:
        ordered = sorted(late)
        if ordered:
            window.late_p50 = ordered[len(ordered) // 2]
            window.late_p99 = ordered[int(len(ordered) * 0.99)]
            window.late_max = ordered[-1]

    def _find_overdue(self, window: Window) -> None:
        now = time.time()
        tolerance = self._order.tolerance
        waiting = [
            now - due
            for number, due in enumerate(self._due)
            if now - due > tolerance and number not in self._special and self._began_at[number] < due
        ]
        window.overdue = len(waiting)
        window.waits = max(waiting, default=0.0)

    def _with_counts(self, window: Window) -> Window:
        seen = self._seen
        for name in ("repeated", "left_out", "early", "cut_off", "special_calls", "special_ended"):
            setattr(window, name, getattr(seen, name))
        return window

    def _begin(self, number: int, version: int, now: float) -> None:
        seen = self._seen
        expected = self._next[number]
        if version < expected:
            seen.repeated += 1
            if seen.repeated <= LISTED_MAX:
                before = now - self._began_at[number]
                print(f"repeated: message {number}, version {version}, {before:.1f} s after its last", flush=True)
        seen.left_out += version > expected
        self._next[number] = version + 1
        self._began_at[number] = now

        self._in_flight += 1
        self._now.calls += 1
        self._now.in_flight = max(self._now.in_flight, self._in_flight)
        if number in self._special:
            seen.special_calls += 1
            return
        late = now - self._due[number]
        seen.early += late < 0
        self._late.append(late)
        self._now.on_time += late <= self._order.tolerance

    async def _do_io(self, number: int) -> None:
        order = self._order
        seconds = order.io_seconds

        if number in self._special:
            seconds = order.special_io
        elif order.share and random.random() < order.share:
            seconds = order.long

        if order.site:
            async with self._http.get(f"http://{order.site}/{seconds}") as answer:
                await answer.read()
        else:
            await asyncio.sleep(seconds)


def describe_limits() -> str:
    """Say how many files a process may open here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"open files: {soft:,}, at most {hard:,}"


def _cpu() -> float:
    used = os.times()
    return used.user + used.system


def to_wire(window: Window) -> dict[str, float]:
    """Give a window as JSON has it."""
    return asdict(window)
