"""The doctor's checks of this machine: the installation, its handlers and settings, limits and disk."""

import platform
import resource
import shutil
from importlib.metadata import version
from pathlib import Path

from activities.registry import Registry, load_registry
from shared.errors import DormiceError
from shared.lanes import LANES
from shared.settings import Settings
from shared.temporal.encryption import build_converter
from starter.insight.doctor.checks import Finding, fine, stamp, unknown, warning, wrong
from starter.local.terminal import plural
from worker.deployment import check_deployment
from worker.lanes.profiles import PROFILES
from worker.lanes.starting import check_lanes, read_weights

SPARE_FILES = 100
"""Files that a process opens besides its handlers' connections: for the server, Kafka, its modules and logs."""

DISK_BYTES_MIN = 1024**3
"""A database that can't grow takes no start, no signal and no outcome: warn while there is time to act."""


def check_machine(settings: Settings, data: Path) -> tuple[list[Finding], Registry | None]:
    """Make all checks, and give the handlers, None if they can't be loaded; `data` may be an embedded server's folder.

    Handlers are imported in the calling thread, as some can't be imported in another one.
    """
    registry: Registry | None = None
    try:
        registry = load_registry(settings)
        handlers = fine(f"{plural(len(registry), 'kind')}: {', '.join(sorted(registry))}")
    except DormiceError as exc:
        handlers = Finding.of(exc)

    versions = f"dormice {version('dormice')}, Python {platform.python_version()}, temporalio {version('temporalio')}"
    findings = {
        "installation": fine(versions),
        "handlers": handlers,
        "settings": _check_settings(settings),
        "open files": _check_open_files(settings),
        "disk": _check_disk(data),
    }
    return [each for name, finding in findings.items() for each in stamp(name, finding)], registry


def _check_settings(settings: Settings) -> Finding:
    try:
        for check in (read_weights, check_lanes, build_converter, check_deployment):
            check(settings)
    except DormiceError as exc:
        return Finding.of(exc)
    return fine(f"task queues {settings.task_queue_prefix}-{{{','.join(LANES)}}}")


def _check_open_files(settings: Settings) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return fine("no limit")

    # the handler of a solo message holds a slot, that of a packed message does not
    slots = sum(max(profile.workflow_slots, profile.activity_slots) for profile in PROFILES.values())
    needed = slots + settings.handlers_at_once + SPARE_FILES
    seen = f"a process may open {limit:,}"

    if limit < needed:
        remedy = f"raise it where workers are started, for example with 'ulimit -n {max(needed, 4096)}'"
        return warning(f"{seen}, and a worker with all handlers at work may need {needed:,}", remedy)

    return fine(seen)


def _check_disk(data: Path) -> Finding:
    if not (data / "temporal.db").exists():
        return unknown(f"no embedded server keeps messages in {data}; --data names its folder")
    try:
        free = shutil.disk_usage(data).free
    except OSError as exc:
        return wrong(f"{data} can't be looked at ({exc.strerror})", "correct its rights")
    if free < DISK_BYTES_MIN:
        remedy = "make room, or move the folder to a larger disk while the server is stopped"
        return warning(f"{free / 1e9:.2f} GB are free for {data}", remedy)

    return fine(f"{free / 1e9:,.1f} GB are free for {data}")
