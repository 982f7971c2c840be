"""A URL of a crawl and its message: there and back, and never one message for two URLs."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope
from starter.extras.frontier.crawl_url import CrawlUrl, QueueName, derive_key, normalize_crawl

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
URLS = st.one_of(TEXT, st.builds("http://{}/{}".format, st.sampled_from(["a.org", "b.org:80", "ü.de"]), TEXT))
KEYS = st.one_of(st.sampled_from(["a.org", "b.org", "ü.de"]), TEXT)
CRAWL_URLS = st.builds(
    CrawlUrl,
    queue=st.builds(QueueName.of, st.one_of(st.just(""), TEXT), KEYS),
    url=URLS,
    metadata=st.dictionaries(TEXT, st.lists(TEXT, max_size=3), max_size=3),
    refetch_at=st.integers(0, 2**63),
    created_at=st.integers(0, 2**40),
)


@given(CRAWL_URLS)
@example(CrawlUrl(QueueName("DEFAULT", "."), "."))
@example(CrawlUrl(QueueName("DEFAULT", ".."), ".."))
def test_a_url_and_its_message_go_there_and_back(url: CrawlUrl) -> None:
    """What is stored of a URL is all of it, under an id that every envelope takes."""
    envelope = Envelope(kind="frontier", id=url.message_id, lane="short", payload=url.to_payload())
    assert CrawlUrl.of_message(envelope.id, envelope.payload) == url


@given(CRAWL_URLS, CRAWL_URLS)
@example(
    CrawlUrl(QueueName("DEFAULT", "other"), "http://a.org/"),
    CrawlUrl(QueueName("DEFAULT", "a.org"), CrawlUrl(QueueName("DEFAULT", "other"), "http://a.org/").message_id),
)
def test_two_urls_never_share_a_message(one: CrawlUrl, other: CrawlUrl) -> None:
    """The id says which URL it is, also of a URL that looks like the id of another."""
    is_same = (one.queue, one.url) == (other.queue, other.url)
    assert (one.message_id == other.message_id) == is_same


def test_the_id_of_an_ordinary_url_is_the_url() -> None:
    """People find a URL's message by the URL."""
    url = CrawlUrl(QueueName.of("", "a.org"), "https://a.org/page?x=1", refetch_at=5, created_at=3)
    assert url.message_id == url.url
    assert url.to_payload() == {"created": 3, "refetch": 5}


def test_the_id_of_any_other_url_begins_like_it() -> None:
    """People recognise a URL by its message's id."""
    url = CrawlUrl(QueueName.of("news", "a.org"), "https://a.org/" + "ä" * 300)
    assert url.message_id.startswith("https://a.org/ä")
    assert len(url.message_id.encode()) <= 200


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://a.org/x", "a.org"),
        ("https://a.org:8080/x", "a.org"),
        ("http://a.org?q=http://b.org", "a.org"),
        ("a.org/x", "a.org"),
        ("http://a.org&x", "a.org"),
        ("http:///x", None),
        ("", None),
    ],
)
def test_the_key_of_a_url_is_its_host(url: str, key: str | None) -> None:
    """A client may leave out the key, as with the reference."""
    assert derive_key(url) == key


@pytest.mark.parametrize(("crawl", "name"), [("", "DEFAULT"), (" \t", "DEFAULT"), ("news", "news"), (" x", " x")])
def test_a_blank_crawl_is_the_default_one(crawl: str, name: str) -> None:
    """A client may leave out the crawl."""
    assert normalize_crawl(crawl) == name


@pytest.mark.parametrize(
    "payload", [None, [], "x", {"url": 3}, {"refetch": "soon"}, {"metadata": []}, {"crawl": None}, {"key": 1}]
)
def test_a_message_that_no_frontier_has_made_is_refused(payload: object) -> None:
    """Somebody may start a message of the kind by hand."""
    with pytest.raises(InvalidEnvelope):
        CrawlUrl.of_message("http://a.org/", payload)
