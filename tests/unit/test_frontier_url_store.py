"""When the messages of a frontier's URLs are due, and how long those wait for which there is no room."""

from hypothesis import given
from hypothesis import strategies as st

from starter.extras.frontier.crawl_url import CrawlUrl, QueueName
from starter.extras.frontier.due_worker import RefusalRate
from starter.extras.frontier.url_store import NEVER, ROUNDED_MAX, ROUNDED_SHARE, SOON_SECONDS, find_due

NOW = 1_800_000_000.0
OFFER = 300.0
SHARES = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 2**63), SHARES)
def test_a_message_is_due_when_its_url_may_be_fetched(refetch_at: int, share: float) -> None:
    """Never before that, and later by no more than a few per cent of the time until then."""
    due = find_due(CrawlUrl(QueueName("", "a"), "a", refetch_at=refetch_at), NOW, share, OFFER)

    assert due <= NOW + NEVER.total_seconds() + ROUNDED_MAX, "ten years are the most that a message may sleep"
    if refetch_at == 0:
        assert due == NOW + NEVER.total_seconds()
    elif refetch_at > NOW + SOON_SECONDS:
        soonest = min(refetch_at, NOW + NEVER.total_seconds())
        assert soonest <= due <= soonest + min(ROUNDED_MAX, ROUNDED_SHARE * (soonest - NOW)) + 1e-3
    else:
        assert NOW + OFFER <= due <= NOW + OFFER * (1 + ROUNDED_SHARE)


@given(st.lists(st.integers(int(NOW) + 10_000, int(NOW) + 12_000), min_size=50, max_size=50), SHARES)
def test_dates_of_one_pack_are_rounded_to_the_same_moments(dates: list[int], share: float) -> None:
    """So that one wake serves many."""
    dues = {find_due(CrawlUrl(QueueName("", "a"), "a", refetch_at=date), NOW, share, OFFER) for date in dates}
    assert len(dues) <= 2_000 / ROUNDED_MAX + 2


def test_the_more_find_no_room_the_longer_each_waits() -> None:
    """Few are offered again as soon as any other; none waits for more than some hours."""
    few = RefusalRate(OFFER)
    many = RefusalRate(OFFER)
    assert OFFER * 0.75 <= few.note(NOW) <= OFFER * 1.25
    waits = [many.note(NOW + number / 2000) for number in range(120_000)]
    assert waits[-1] > 10 * OFFER
    assert max(waits) <= 8 * 3600
    assert many.note(NOW + 1000) <= OFFER * 1.25, "what was long ago does not count"
