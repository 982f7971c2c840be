"""Options of the format `temporal`, as given with `.option(…)`: read and validated once, on the driver."""

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shared.errors import InvalidSetting
from shared.settings import Secret, Settings, load_settings, write_settings
from shared.temporal.encryption import read_keys, write_keys

SHIPPED = (
    "handlers",
    "task_queue_prefix",
    "payload_max_bytes",
    "index_after",
    "workflow_task_timeout",
    "in_flight",
    "pack_room",
    "starts_per_second",
    "patience",
    "encryption_keys_file",
)
"""Settings that a start needs in every task; each is also an option."""

KEY_OPTION = "encryptionKey"
"""Id of the key that encrypts; a process that does not find this key must stop."""

CONNECTION = {"address": "TEMPORAL_ADDRESS", "namespace": "TEMPORAL_NAMESPACE", "profile": "TEMPORAL_PROFILE"}
"""Variables by option. Keys and certificates are not options: Spark's plans and logs would show them."""

_WRITE = ("receipts", "progress", "session", "run", "tasksAtOnce", "restartFinished")
_READ = ("partitions", "callsPerSecond")
_TOPIC = ("topic", "startingOffsets", "maxRecords", "kafkaServers")
_OF_SPARK = ("path", "checkpointLocation", "queryName")
"""Options that Spark itself adds to a stream or a save."""

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_RUN = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows are started, and where their receipts are written."""

    connection: Mapping[str, str]
    """Variables that every task connects with."""
    settings: Settings
    """The settings of one task; `starts_per_second` is the share of one task."""
    receipts: str
    """A folder: an absolute path that all executors share, or a URI."""
    progress: str = ""
    """A folder in which tasks note their progress; empty for none."""
    session: str
    """Names one start as a whole: a repeated start in the same session gets the same answer."""
    run: str
    """Part of the names of the receipt files."""
    restarts_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How messages are read."""

    connection: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Settings = field(default_factory=Settings)
    partitions: int = 2
    """Number of tasks that read; they share `calls_per_second`."""
    calls_per_second: float = 10.0
    """Rate of visibility calls; a namespace's default limit is 10 a second."""


def read_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Validate the options of a save or a stream; raises InvalidSetting in one sentence."""
    options = _Options(given, (*_WRITE, *_OF_SPARK))
    made = uuid.uuid4().hex
    run = options.text("run") or made
    if not _RUN.fullmatch(run):
        raise InvalidSetting(f"run: is {run!r}; use at most 64 letters, digits and '-'")
    return WriteOptions(
        connection=options.connection(),
        settings=options.settings(options.count("tasksAtOnce", 0)),
        receipts=_to_place(options.text("receipts"), "receipts"),
        progress=_to_place(options.text("progress"), "progress") if options.text("progress") else "",
        session=options.text("session") or made,
        run=run,
        restarts_finished=options.flag("restartFinished"),
    )


def read_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Validate the options of a read; raises InvalidSetting in one sentence."""
    options = _Options(given, (*_READ, "path"))
    return ReadOptions(
        connection=options.connection(),
        settings=options.settings(1),
        partitions=options.count("partitions", 2),
        calls_per_second=float(options.count("callsPerSecond", 10)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """Which records are read as a stream."""

    topic: str
    settings: Settings
    """The login for Kafka; secrets are never options."""
    is_from_earliest: bool = True
    """Whether a stream without a checkpoint begins with the oldest record, or else with the next one to come."""
    records_max: int = 0
    """Most records of a micro-batch; 0 for no limit."""


def read_topic_options(given: Mapping[str, str]) -> TopicOptions:
    """Validate the options of a stream of records; raises InvalidSetting in one sentence."""
    options = _Options(given, (*_TOPIC, *_OF_SPARK), others=())
    if not (topic := options.text("topic")):
        raise InvalidSetting("topic: is missing; name a Kafka topic")
    begin = options.text("startingOffsets").lower() or "earliest"
    if begin not in ("earliest", "latest"):
        raise InvalidSetting(f"startingOffsets: is {begin!r}; write earliest or latest")
    servers = options.text("kafkaServers")
    return TopicOptions(
        topic=topic,
        settings=load_settings({"kafka_servers": servers} if servers else {}, os.environ),
        is_from_earliest=begin == "earliest",
        records_max=options.count("maxRecords", 0),
    )


def write_settings_options(settings: Settings) -> dict[str, str]:
    """Give settings as options, so that tasks use the settings of this process."""
    options = {_to_option(name): text for name, text in write_settings(settings, SHIPPED).items()}
    return options | {KEY_OPTION: next(iter(read_keys(settings)), "")}


def write_connection_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the connection of this process as options."""
    return {name: environ[variable] for name, variable in CONNECTION.items() if environ.get(variable)}


class _Options:
    """Options as Spark passes them: names in any case, all values text."""

    def __init__(self, given: Mapping[str, str], own: tuple[str, ...], others: tuple[str, ...] | None = None) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        others = (*CONNECTION, *map(_to_option, SHIPPED), KEY_OPTION) if others is None else others
        known = {name.lower(): name for name in (*own, *others)}
        unknown = next((name for name in given if name.lower() not in known), None)
        if unknown is not None:
            shown = ", ".join(sorted(name for name in known.values() if name not in _OF_SPARK))
            raise InvalidSetting(f"{unknown}: there is no such option; known: {shown}")

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "").strip()

    def flag(self, name: str) -> bool:
        word = self.text(name).lower() or "false"
        if word not in _WORDS:
            raise InvalidSetting(f"{name}: is {word!r}; write true or false")
        return _WORDS[word]

    def count(self, name: str, default: int) -> int:
        text = self.text(name)
        if text and not (text.isdecimal() and int(text) > 0):
            raise InvalidSetting(f"{name}: is {text!r}; give a whole number of at least 1")
        return int(text) if text else default

    def connection(self) -> dict[str, str]:
        own = {CONNECTION[name]: self.text(name) for name in CONNECTION if self.text(name)}
        return {v: os.environ[v] for v in CONNECTION.values() if os.environ.get(v)} | own

    def settings(self, tasks_at_once: int) -> Settings:
        """Give the settings of one task; the start rate is divided among the tasks that run at once."""
        flags = {name: self.text(_to_option(name)) for name in SHIPPED if self.text(_to_option(name))}
        loaded = load_settings(flags, os.environ)
        rate = loaded.starts_per_second
        if rate > 0 and not tasks_at_once:
            raise InvalidSetting(f"tasksAtOnce: is missing; say how many tasks share startsPerSecond={rate:g}")
        # no secrets but the encryption keys, because Spark sends these settings to its tasks
        shipped = Settings(**{name: getattr(loaded, name) for name in SHIPPED})
        keys = Secret(write_keys(self._find_keys(loaded)))
        rate /= max(1, tasks_at_once)
        return replace(shipped, starts_per_second=rate, encryption_keys=keys, encryption_keys_file="")

    def _find_keys(self, settings: Settings) -> dict[str, bytes]:
        """Read the keys in Spark's planning process, whose environment may differ from that of the caller."""
        keys = read_keys(settings)
        if (wanted := self.text(KEY_OPTION)) and wanted != next(iter(keys), ""):
            raise InvalidSetting(
                f"{KEY_OPTION}: is {wanted!r}, which is not the first key that Spark's own processes find; "
                "set DORMICE_ENCRYPTION_KEYS where they start, or encryption_keys_file"
            )
        return keys


def _to_option(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _to_place(text: str, name: str) -> str:
    if not text:
        raise InvalidSetting(f"{name}: is missing; name a folder")
    return text if re.match(r"[a-z][a-z0-9]+:", text) else str(Path(text).absolute())
