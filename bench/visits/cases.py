"""The cases: who visits, in which encoding, and how many hosts there are."""

from dataclasses import dataclass

SCRAPY = "scrapy"
CELERY = "celery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load.

    `kind` is the built-in `http`, or `ten-lines`, a handler that reads a page and comes back, or `scrapy` or `celery`,
    which visit without an end; Scrapy stores nothing, Celery each visit to come, in Redis. `size` is that of its packs,
    0 for a workflow each. The messages are spread over `hosts`; the site answers in full, or with 304 where a visit has
    a validator. With `is_encrypted` it is asked by TLS.
    """

    title: str
    kind: str = "ten-lines"
    size: int = 1000
    messages: int = 100_000
    rate: float = 10_000 / 3
    hosts: int = 1
    at_once: int = 0
    is_encrypted: bool = False

    @property
    def delay_seconds(self) -> float:
        """How soon a message comes back, so that `rate` a second are due."""
        return self.messages / self.rate


CASES = {
    "ten-lines": Case(title="ten lines, packed"),
    "http": Case(title="http, packed", kind="http", at_once=500),
    "http-hosts": Case(title="http, packed, 10,000 hosts", kind="http", hosts=10_000),
    "http-polite": Case(title="http, packed, one host, 8 at once", kind="http"),
    "tls": Case(title="ten lines, packed, TLS", is_encrypted=True),
    "solo": Case(title="ten lines, solo", size=0, messages=6000, rate=300.0),
    "scrapy": Case(title="Scrapy", kind=SCRAPY),
    "celery": Case(title="Celery, 50 threads", kind=CELERY),
    "http-solo": Case(title="http, solo", kind="http", size=0, messages=6000, rate=300.0, at_once=500),
}
