"""The doctor's checks of this machine: the installation, its handlers and settings, limits and disk."""

import platform
import resource
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from activities.registry import Registry, load_registry
from shared.errors import DormiceError
from shared.lanes import LANES
from shared.settings import Settings
from shared.temporal.encryption import build_converter
from starter.insight.doctor.checks import Finding, fine, stamp, unknown, warning, wrong
from starter.screen import plural
from worker.deployment import check_deployment
from worker.lanes.leaders import check_lanes
from worker.lanes.profiles import PROFILES
from worker.lanes.tenants import read_weights

SPARE_FILES = 100
"""Files that a process opens besides its handlers' connections: for the server, Kafka, its modules and logs."""

DISK_LEAST_BYTES = 1024**3
"""A database that can't grow takes no start, no signal and no outcome: warn while there is time to act."""


class Machine:
    """Looks at this machine; imports handlers in the calling thread, as some can't be imported in another one."""

    def __init__(self, settings: Settings, data: Path) -> None:
        """Take the folder in which an embedded server may keep its messages."""
        self.registry: Registry | None = None
        """The handlers, None until they have been loaded."""
        self._settings = settings
        self._data = data

    def look(self) -> list[Finding]:
        """Make all checks."""
        checks: dict[str, Callable[[], Finding]] = {
            "installation": look_at_installation,
            "handlers": self._look_at_handlers,
            "settings": self._look_at_settings,
            "open files": self._look_at_open_files,
            "disk": self._look_at_disk,
        }
        return [finding for name, look in checks.items() for finding in stamp(name, _try(look))]

    def _look_at_handlers(self) -> Finding:
        self.registry = load_registry(self._settings)
        return fine(f"{plural(len(self.registry), 'kind')}: {', '.join(sorted(self.registry))}")

    def _look_at_settings(self) -> Finding:
        for check in (read_weights, check_lanes, build_converter, check_deployment):
            check(self._settings)
        return fine(f"task queues {self._settings.task_queue_prefix}-{{{','.join(LANES)}}}")

    def _look_at_open_files(self) -> Finding:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return fine("no limit")
        # the handler of a solo message holds a slot, that of a packed message does not
        slots = sum(max(profile.workflow_slots, profile.activity_slots) for profile in PROFILES.values())
        needed = slots + self._settings.handlers_at_once + SPARE_FILES
        if limit < needed:
            return warning(
                f"a process may open {limit:,}, and a worker with all handlers at work may need {needed:,}",
                f"raise it where workers are started, for example with 'ulimit -n {max(needed, 4096)}'",
            )
        return fine(f"a process may open {limit:,}")

    def _look_at_disk(self) -> Finding:
        if not (self._data / "temporal.db").exists():
            return unknown(f"no embedded server keeps messages in {self._data}; --data names its folder")
        try:
            free = shutil.disk_usage(self._data).free
        except OSError as exc:
            return wrong(f"{self._data} can't be looked at ({exc.strerror})", "correct its rights")
        if free < DISK_LEAST_BYTES:
            remedy = "make room, or move the folder to a larger disk while the server is stopped"
            return warning(f"{free / 1e9:.2f} GB are free for {self._data}", remedy)
        return fine(f"{free / 1e9:,.1f} GB are free for {self._data}")


def look_at_installation() -> Finding:
    """Report the versions, for the readers of the report."""
    return fine(f"dormice {version('dormice')}, Python {platform.python_version()}, temporalio {version('temporalio')}")


def _try(look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except DormiceError as exc:
        return Finding.of(exc)
