"""What a bridge process reports to its supervisor: whether it is ready, and its status."""

from collections.abc import Callable
from typing import Any

from starter.bridge.bridge import Bridge
from starter.bridge.monitoring.status import read_status
from worker.health import Readiness


class BridgeReadiness(Readiness):
    """Ready means: a member of the group, with a Temporal server that answers.

    A member without partitions is a standby, and ready.
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        super().__init__(is_stopping)
        self._bridge: Bridge | None = None

    def watch(self, bridge: Bridge) -> None:
        """Watch this bridge from now on."""
        self._bridge = bridge

    def find_gap(self) -> str:
        """Say what does not work yet; empty when everything does."""
        if self._bridge is None:
            return "starting"
        return "" if self._bridge.rebalances else "not yet a member of the group"

    def tell_status(self) -> dict[str, Any] | None:
        """Give the bridge's status; None before there is a bridge."""
        return None if self._bridge is None else read_status(self._bridge).dump()
