"""The buffer of due URLs against a small model of it, and each of its promises by itself."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from starter.extras.frontier.buffer.crawl_queue import QueueCounts
from starter.extras.frontier.buffer.due_buffer import DueBuffer
from starter.extras.frontier.buffer.recent_puts import REMEMBERED_SECONDS
from starter.extras.frontier.crawl_url import CrawlUrl, QueueName

BEGIN = 1_000_000
NAMES = [QueueName(crawl, key) for crawl in ("DEFAULT", "news") for key in ("a", "b")]
IDS = [f"{name.crawl}/{name.key}/{number}" for name in NAMES for number in range(4)]
ROOM = 12
QUEUE_ROOM = 3

ids = st.sampled_from(IDS)
queues = st.sampled_from(NAMES)


def name_of(message_id: str) -> QueueName:
    """Name the queue of an id."""
    crawl, key, _ = message_id.split("/")
    return QueueName(crawl, key)


def make_url(message_id: str, refetch_at: int) -> CrawlUrl:
    """Make a version of a URL."""
    return CrawlUrl(name_of(message_id), message_id, refetch_at=refetch_at)


@dataclass
class ModelQueue:
    """What a queue of the model does."""

    blocked_until: float = 0
    delay: float | None = None
    limit: int = 0
    gave_at: float = 0


@dataclass
class ModelPut:
    """A URL under way: what it is at its end, and whether that is at hand then."""

    url: CrawlUrl | None
    until: float
    is_at_hand: bool
    count: int = 1


@dataclass
class Model:
    """The buffer as a reader would write it who needs no speed."""

    urls: dict[str, tuple[CrawlUrl, float]] = field(default_factory=dict)
    """By id: the version at hand, and until when it is leased."""
    puts: dict[str, ModelPut] = field(default_factory=dict)
    recent: dict[str, tuple[CrawlUrl | None, float]] = field(default_factory=dict)
    queues: dict[QueueName, ModelQueue] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    """Put once, but longer ago."""
    stored: dict[str, CrawlUrl] = field(default_factory=dict)
    delay: float = 1.0

    def size_of(self, name: QueueName) -> int:
        """Count what is at hand of a queue."""
        return sum(name_of(each) == name for each in self.urls)

    def add(self, message_id: str, url: CrawlUrl, until: float) -> bool:
        """Take a URL in if there is room."""
        if len(self.urls) >= ROOM or self.size_of(url.queue) >= QUEUE_ROOM:
            return False
        self.urls[message_id] = url, until
        return True

    def waiting(self, name: QueueName, now: float) -> list[CrawlUrl]:
        """Give what a queue may give, in its order."""
        found = [url for url, until in self.urls.values() if url.queue == name and until <= now]
        return sorted(found, key=lambda url: (url.refetch_at, url.url))

    def count_leased(self, name: QueueName, now: float) -> int:
        """Count what is in somebody's hands."""
        return sum(url.queue == name and until > now for url, until in self.urls.values())

    def count_completed(self, name: QueueName) -> int:
        """Count what is not to be fetched any more."""
        return sum(url.queue == name and url.is_completed for url in self.stored.values())

    def count_active(self, name: QueueName) -> int:
        """Count what is to be fetched some time."""
        return sum(url.queue == name and not url.is_completed for url in self.stored.values())

    def may_give(self, name: QueueName, urls_max: int, now: float) -> bool:
        """Return whether a queue may give anything now."""
        queue = self.queues.get(name)
        if queue is None or not self.waiting(name, now):
            return False
        delay = self.delay if queue.delay is None else queue.delay
        is_full = 0 < urls_max <= self.count_leased(name, now)
        is_over = 0 < queue.limit <= self.count_completed(name)
        return queue.blocked_until <= now and queue.gave_at + delay <= now and not is_full and not is_over


class BufferMachine(RuleBasedStateMachine):
    """Does to both what crawlers, packs and time may do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = float(BEGIN)
        self.buffer = DueBuffer(ROOM, QUEUE_ROOM)
        self.model = Model()

    def begin_queue(self, name: QueueName) -> ModelQueue:
        """Give a queue of the model."""
        return self.model.queues.setdefault(name, ModelQueue())

    @rule(seconds=st.sampled_from([0.5, 1, 3, 10, REMEMBERED_SECONDS]))
    def let_time_pass(self, seconds: float) -> None:
        """Go on in time."""
        self.now += seconds
        recent = self.model.recent
        self.model.recent = {i: (url, at) for i, (url, at) in recent.items() if at > self.now - REMEMBERED_SECONDS}
        self.model.forgotten |= recent.keys() - self.model.recent.keys()

    @rule(message_id=ids, refetch_at=st.integers(1, 5))
    def offer(self, message_id: str, refetch_at: int) -> None:
        """A pack offers some version of a URL, whatever was put meanwhile."""
        model = self.model
        url = make_url(message_id, refetch_at)
        recent = model.recent.get(message_id)
        expected = True

        if message_id not in model.puts and (recent is None or recent[0] == url):
            self.begin_queue(url.queue)
            if message_id in model.urls:
                model.urls[message_id] = url, model.urls[message_id][1]
            else:
                expected = model.add(message_id, url, 0)

        assert self.buffer.offer(message_id, url, self.now) == expected

    @rule(message_id=ids)
    def begin_put(self, message_id: str) -> None:
        """A crawler puts a URL."""
        self.buffer.begin_put(message_id, name_of(message_id))
        if (under_way := self.model.puts.get(message_id)) is not None:
            under_way.count += 1
        else:
            url, until = self.model.urls.pop(message_id, (None, 0.0))
            self.model.puts[message_id] = ModelPut(url, until, is_at_hand=url is not None)

    @precondition(lambda self: self.model.puts)
    @rule(data=st.data(), refetch_at=st.sampled_from([0, 3, BEGIN + 5, 2 * BEGIN]))
    def keep_put(self, data: st.DataObject, refetch_at: int) -> None:
        """The server has stored a put."""
        message_id = data.draw(st.sampled_from(sorted(self.model.puts)))
        self.note(message_id, make_url(message_id, refetch_at))

    @precondition(lambda self: self.model.puts)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """The server has deleted a URL."""
        self.note(data.draw(st.sampled_from(sorted(self.model.puts))), None)

    def note(self, message_id: str, url: CrawlUrl | None) -> None:
        """Note what is stored in both."""
        self.buffer.change(name_of(message_id), self.model.stored.get(message_id), url)
        self.begin_queue(name_of(message_id))
        self.buffer.keep_put(message_id, url, self.now)
        is_due = url is not None and 0 < url.refetch_at <= self.now
        put = self.model.puts[message_id]
        put.url = url
        put.until = 0.0
        put.is_at_hand = is_due
        self.model.recent[message_id] = url, self.now
        self.model.stored.pop(message_id, None)
        if url is not None:
            self.model.stored[message_id] = url

    @precondition(lambda self: self.model.puts)
    @rule(data=st.data())
    def end_put(self, data: st.DataObject) -> None:
        """A put has ended."""
        message_id = data.draw(st.sampled_from(sorted(self.model.puts)))
        self.buffer.end_put(message_id, self.now)
        put = self.model.puts[message_id]
        put.count -= 1
        if not put.count:
            del self.model.puts[message_id]
            if put.url is not None and put.is_at_hand:
                self.begin_queue(put.url.queue)
                self.model.add(message_id, put.url, put.until)

    @rule(
        name=st.one_of(st.none(), queues),
        crawl=st.sampled_from([None, "DEFAULT", "news", "other"]),
        limits=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        lease=st.sampled_from([1, 4]),
        read_max=st.sampled_from([1, 2, 100]),
    )
    def take(
        self, name: QueueName | None, crawl: str | None, limits: tuple[int, int], lease: int, read_max: int
    ) -> None:
        """Somebody takes URLs, and may stop to read at any of them."""
        model = self.model
        queues_max, urls_max = limits
        if name is not None:
            crawl = name.crawl

        wanted = [n for n in NAMES if (n == name if name else crawl in (None, n.crawl))]
        may_give = {n for n in wanted if model.may_give(n, urls_max, self.now)}
        given: dict[QueueName, int] = {}
        key = "" if name is None else name.key
        taken = self.buffer.take(crawl, key, limits, lease, lambda: self.now)
        count = 0

        for url in itertools.islice(taken, read_max):
            count += 1
            assert url.queue in may_give, "a queue gave that may not"
            assert url == model.waiting(url.queue, self.now)[0], "not in the order of the dates"
            model.urls[url.url] = url, self.now + lease
            model.queues[url.queue].gave_at = self.now
            given[url.queue] = given.get(url.queue, 0) + 1

        taken.close()
        assert all(number <= urls_max for number in given.values()) or not urls_max
        if name is None and queues_max:
            assert len(given) <= queues_max

        if count < read_max:  # it was read to its end
            served = len(may_give) if name is not None or not queues_max else min(len(may_give), queues_max)
            assert len(given) == served, "a queue was left out"
            for each, number in given.items():
                assert number == urls_max or not model.waiting(each, self.now), "a URL was left out"

    @rule(name=queues, seconds=st.sampled_from([0, 2, 100]))
    def block(self, name: QueueName, seconds: int) -> None:
        """Somebody blocks a queue."""
        until = self.now + seconds if seconds else 0
        self.buffer.block(name, until)
        if name in self.model.queues:
            self.model.queues[name].blocked_until = until

    @rule(name=st.one_of(st.none(), queues), seconds=st.sampled_from([0, 1, 5]))
    def set_delay(self, name: QueueName | None, seconds: int) -> None:
        """Somebody sets a delay."""
        self.buffer.set_delay(name, seconds)
        if name is None:
            self.model.delay = seconds
        elif name in self.model.queues:
            self.model.queues[name].delay = seconds

    @rule(name=queues, count=st.integers(0, 2))
    def limit(self, name: QueueName, count: int) -> None:
        """Somebody sets a limit."""
        assert self.buffer.limit(name, count) == (name in self.model.queues)
        if name in self.model.queues:
            self.model.queues[name].limit = count

    @rule(message_id=ids)
    def peek(self, message_id: str) -> None:
        """What was put last counts, then what is at hand."""
        model = self.model
        put = model.puts.get(message_id)
        recent = model.recent.get(message_id)
        if recent is None and message_id in self.model.forgotten:
            return  # it may be remembered for longer
        expected = model.urls.get(message_id, (None, 0))[0] if recent is None else recent[0]
        if put is not None and put.url is not None:
            expected = put.url
        assert self.buffer.peek(message_id, name_of(message_id)) == expected

    @invariant()
    def counts_are_true(self) -> None:
        """Whatever happens, counts are those of the model."""
        assert len(self.buffer) == len(self.model.urls)
        for name in self.model.queues:
            active = self.model.count_active(name)
            leased = self.model.count_leased(name, self.now)
            expected = QueueCounts(1, active, leased, self.model.count_completed(name), int(active > 0 or leased > 0))
            assert self.buffer.queues.count(*name, self.now) == expected


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = hypothesis_settings(max_examples=200, stateful_step_count=40)


def fill(buffer: DueBuffer, *keys: str, count: int = 3) -> None:
    """Offer some URLs of each queue."""
    for key, number in itertools.product(keys, range(count)):
        url = CrawlUrl(QueueName("DEFAULT", key), f"http://{key}/{number}", refetch_at=number + 1)
        assert buffer.offer(url.url, url, BEGIN)


def take(buffer: DueBuffer, now: float, queues_max: int = 0, urls_max: int = 0, lease: float = 30) -> list[str]:
    """Take URLs of any crawl."""
    found: Iterator[CrawlUrl] = buffer.take(None, "", (queues_max, urls_max), lease, lambda: now)
    return [url.url for url in found]


def test_queues_take_turns() -> None:
    """Who takes from one queue at a time comes to each before any comes again."""
    buffer = DueBuffer(100)
    buffer.set_delay(None, 0)
    fill(buffer, "a", "b", "c")
    taken = [take(buffer, BEGIN + second, queues_max=1, urls_max=1, lease=0.5)[0] for second in range(6)]
    assert taken == [f"http://{key}/0" for key in "abcabc"]


def test_a_late_offer_does_not_bring_an_old_version_back() -> None:
    """A batch that began before a put offers what was stored then, during the put or after it."""
    buffer = DueBuffer(100)
    fill(buffer, "a", count=1)
    name = QueueName("DEFAULT", "a")
    old = CrawlUrl(QueueName("DEFAULT", "a"), "http://a/0", refetch_at=1)
    assert take(buffer, BEGIN)
    buffer.begin_put(old.url, name)
    assert buffer.offer(old.url, old, BEGIN + 40)
    buffer.keep_put(old.url, CrawlUrl(name, old.url), BEGIN + 40)
    buffer.end_put(old.url, BEGIN + 40)
    assert buffer.offer(old.url, old, BEGIN + 41)
    assert take(buffer, BEGIN + 50) == []
    assert buffer.peek(old.url, name) == CrawlUrl(name, old.url)


def test_who_reads_no_further_holds_no_more() -> None:
    """A client that goes away in the middle of its answer leaves the rest to others."""
    buffer = DueBuffer(100)
    fill(buffer, "a", "b")
    reading = buffer.take(None, "", (0, 0), 30, lambda: BEGIN)
    first = next(reading)
    assert buffer.queues.count("DEFAULT", "", BEGIN).in_process == 1
    assert [url for url in take(buffer, BEGIN) if first.queue.key in url] == []
    assert len(take(buffer, BEGIN + 1)) == 2


def test_a_full_buffer_refuses_and_takes_again() -> None:
    """Whatever finds no room is offered once more later; a queue leaves room to others."""
    buffer = DueBuffer(4, queue_room=3)
    fill(buffer, "a")
    more = CrawlUrl(QueueName("DEFAULT", "a"), "http://a/9", refetch_at=1)
    assert not buffer.offer(more.url, more, BEGIN)
    fill(buffer, "b", count=1)
    other = CrawlUrl(QueueName("DEFAULT", "c"), "http://c/9", refetch_at=1)
    assert not buffer.offer(other.url, other, BEGIN)
    buffer.begin_put("http://a/0", more.queue)
    buffer.keep_put("http://a/0", None, BEGIN)
    buffer.end_put("http://a/0", BEGIN)
    assert buffer.offer(more.url, more, BEGIN)


def test_a_deleted_queue_is_forgotten() -> None:
    """Its delays and blocks too; URLs that are stored still count until they are deleted."""
    buffer = DueBuffer(100)
    fill(buffer, "a", count=1)
    name = QueueName("DEFAULT", "a")
    url = CrawlUrl(QueueName("DEFAULT", "a"), "http://a/0", refetch_at=1)
    buffer.change(name, None, url)
    buffer.clear(name)
    buffer.drop(name)
    assert buffer.queues.count("DEFAULT", "a", BEGIN).active == 1
    assert take(buffer, BEGIN) == []
    buffer.change(name, url, None)
    buffer.drop(name)
    assert buffer.queues.list_crawls() == []


def test_a_queue_that_is_blocked_for_long_takes_no_more_room_with_time() -> None:
    """Each put lines its queue up; a rest is noted once."""
    buffer = DueBuffer(1000)
    fill(buffer, "a", count=1)
    buffer.block(QueueName("DEFAULT", "a"), BEGIN + 1000)
    for number in range(100):
        buffer.change(QueueName("DEFAULT", "a"), None, CrawlUrl(QueueName("DEFAULT", "a"), "x", refetch_at=number + 1))
        assert take(buffer, BEGIN + number) == []
    assert len(buffer._turns._rests) < 5  # pyright: ignore[reportPrivateUsage] — nothing else shows it
