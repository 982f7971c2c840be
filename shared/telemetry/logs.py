"""Logs on standard error, for a person or as JSON lines, with ids in fields."""

import json
import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from temporalio import activity, workflow

from shared.settings import Settings

CORE = "temporalio.core"  # logger for messages of the SDK's core in a worker

CHATTY = {"aiokafka": 10.0, CORE: 10.0, "opentelemetry": 600.0}
"""Seconds between two lines of one kind, for loggers that log each attempt (about 30 a second) while a broker, a server
or a telemetry receiver is away. OpenTelemetry gets the longest pause: nothing here depends on a receiver."""

THROTTLED_SECONDS = 10.0
"""Minimum time between two lines that share a throttle: while a server is away, thousands fail every second."""

WORDY = ("httpx", "httpcore", "urllib3", "py4j")
"""Loggers that log each request or step: nothing below a warning is shown, unless the level is debug."""

PLAIN = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"

_OWN_TO_LOGGING = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OF_TEMPORAL = ("temporal_workflow", "temporal_activity")
_OF_CORE = "temporal_log"


class MessageFields(Protocol):
    """Which message some work is about; read only when a line is written or a span begins."""

    @property
    def identity(self) -> Mapping[str, str]:
        """Attributes of every span: `workflow_id` and `correlation_id`."""
        ...

    @property
    def fields(self) -> Mapping[str, object]:
        """Fields of every log line."""
        ...


ABOUT: ContextVar[MessageFields | None] = ContextVar("ABOUT", default=None)
"""What the current task works on; the tasks and threads that it starts inherit it."""


class LogThrottle:
    """Lets one line through every THROTTLED_SECONDS, for whoever logs each of many failures."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def lets_through(self) -> bool:
        """Return whether a line may be logged now; if so, it counts as logged."""
        now = time.monotonic()
        if now < self._silent_until:
            return False

        self._silent_until = now + THROTTLED_SECONDS
        return True


def set_up_logs(settings: Settings) -> None:
    """Log at the level and in the format of the settings, unless somebody has set logging up already."""
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False
    handler = logging.StreamHandler()
    lines = _JsonLines() if settings.log_format == "json" else _PlainLines(PLAIN)
    handler.setFormatter(lines)
    handler.addFilter(_Hush())
    if settings.log_level != "debug":
        for name in WORDY:
            logging.getLogger(name).setLevel(logging.WARNING)

    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


class _PlainLines(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — logging's own name
        fields = " ".join(f"{name}={value}" for name, value in _fields_of(record).items())
        return super().formatMessage(record) + (f" [{fields}]" if fields else "")


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
    """Lets one line per interval of a chatty logger through; the next line reports how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        quiet = next((seconds for name, seconds in CHATTY.items() if record.name.startswith(name)), None)
        if quiet is None:
            return True

        now = time.monotonic()
        seen = self._seen.setdefault((record.name, str(record.msg)), [now - quiet, 0])
        if now - seen[0] < quiet:
            seen[1] += 1
            return False

        if seen[1]:
            record.left_out = int(seen[1])

        seen[:] = [now, 0]
        return True


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Give a line's own fields, the message it is about, and the workflow and run that the SDK names."""
    about = ABOUT.get()
    fields: dict[str, Any] = {} if about is None else dict(about.fields)

    for name, value in vars(record).items():
        if name in _OF_TEMPORAL:
            of_sdk = cast("Mapping[str, Any]", value)
            # in a handler's call the SDK names the pack's workflow; the message that the line is about takes precedence
            fields = {part: of_sdk[part] for part in ("workflow_id", "run_id") if part in of_sdk} | fields
        elif name == _OF_CORE:
            fields |= cast("Mapping[str, Any]", value.fields)
        elif name not in _OWN_TO_LOGGING and not name.startswith("__temporal"):
            fields[name] = value

    return fields
