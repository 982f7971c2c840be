"""What a process of the scenario is told to do, and what it tells when it has done so."""

import ssl
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from activities import Pack
from bench.pack_spread import spread_over_packs
from shared.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a process has to do: watch `seconds` after `warmup`; see `Case` for the rest."""

    server: str
    origin: str
    hosts: int
    kind: str
    size: int
    messages: int
    delay_seconds: float
    at_once: int
    certificate: str
    due_at: float
    warmup: float
    seconds: float

    @property
    def tolerance(self) -> timedelta:
        """How late a visit may be."""
        return timedelta(seconds=self.delay_seconds / 20)

    @property
    def encoding(self) -> Pack | None:
        """The encoding of the kind."""
        return spread_over_packs(self.messages, self.size, self.tolerance)

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """What a request trusts: the site's own certificate, where it has one."""
        return ssl.create_default_context(cafile=self.certificate) if self.certificate else True

    @property
    def settings(self) -> Settings:
        """Settings of the worker and of who fills."""
        settings = Settings(task_queue_prefix="visits", http_allow_private=True, pack_room=self.messages + 1)
        return replace(settings, http_at_once=self.at_once) if self.at_once else settings

    def find_url(self, number: int) -> str:
        """Give the page of a message."""
        # what ends in .localhost leads to loopback, without a name server: RFC 6761 §6.3
        host = f"h{number % self.hosts}.localhost" if self.hosts > 1 else "localhost"
        return f"{self.origin.replace('localhost', host)}/page"

    def payload(self, number: int) -> dict[str, Any]:
        """Give the payload of a message; that of `http` has one interval for ever."""
        url = self.find_url(number)
        delay = self.delay_seconds
        return {"url": url, "interval": delay, "min": delay, "max": delay} if self.kind == "http" else {"url": url}


@dataclass(slots=True)
class Seen:
    """What was seen in the time that counts; lateness in seconds, `cpu` of this process."""

    visits: int = 0
    failed: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    rss: int = 0
    late_p50: float = 0.0
    late_p99: float = 0.0
