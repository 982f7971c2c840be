"""What a frontier's process reports about itself: whether it is ready, and what it holds."""

from dataclasses import dataclass
from typing import Any

from starter.extras.frontier.frontier import Frontier
from worker.health import Readiness


@dataclass(slots=True)
class FrontierReadiness(Readiness):
    """Ready means: this process alone serves the kind, and the Temporal server answers."""

    frontier: Frontier | None = None

    def find_gap(self) -> str:
        """Say what does not work now; empty when everything does."""
        return "starting" if self.frontier is None else self.frontier.gap

    def report_status(self) -> dict[str, Any] | None:
        """Give the counts of each crawl; None before there is a frontier."""
        if self.frontier is None:
            return None
        crawls = {crawl: self.frontier.count(crawl, "")._asdict() for crawl in self.frontier.list_crawls()}
        return {"is_active": self.frontier.is_active, "gap": self.frontier.gap, "crawls": crawls}
