"""Logs: how a process tells what it does, on standard error, for a person or as JSON lines, with ids in fields."""

import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from temporalio import activity, workflow

from shared.settings import Settings

CORE = "temporalio.core"
"""Logger of what the SDK's core has to say in a worker."""

CHATTY = ("aiokafka", CORE)
"""They log each of their attempts, some thirty a second while a broker or a server is away."""

QUIET_SECONDS = 10.0
"""Between two lines of one kind from a chatty logger."""

_OWN_TO_LOGGING = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OF_TEMPORAL = ("temporal_workflow", "temporal_activity")
_OF_CORE = "temporal_log"


def set_up_logs(settings: Settings) -> None:
    """Log at the level and in the format of the settings, unless somebody has set logging up already."""
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else _PlainLines())
    handler.addFilter(_Hush())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


class _PlainLines(logging.Formatter):
    """One line for a person: what happened, then the fields."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — logging's own name
        told = " ".join(f"{name}={value}" for name, value in _fields_of(record).items())
        return super().formatMessage(record) + (f" [{told}]" if told else "")


class _JsonLines(logging.Formatter):
    """One JSON object a line; `at` is in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Hush(logging.Filter):
    """Lets a line of a chatty logger through once in a while; the next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(CHATTY):
            return True
        now = time.monotonic()
        seen = self._seen.setdefault((record.name, str(record.msg)), [now - QUIET_SECONDS, 0])
        if now - seen[0] < QUIET_SECONDS:
            seen[1] += 1
            return False
        if seen[1]:
            record.left_out = int(seen[1])
        seen[:] = [now, 0]
        return True


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Give what a caller told beside the message; of what the SDK tells, which workflow it is about."""
    told: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in _OF_TEMPORAL:
            about = cast("Mapping[str, Any]", value)
            told |= {part: about[part] for part in ("workflow_id", "run_id") if part in about}
        elif name == _OF_CORE:
            told |= cast("Mapping[str, Any]", value.fields)
        elif name not in _OWN_TO_LOGGING and not name.startswith("__temporal"):
            told[name] = value
    return told
