"""Options of the format `temporal`, as given with `.option(…)`: read and validated once, on the driver."""

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
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

KEY_OPTION = "encryptionKey"  # id of the key that encrypts; a process that does not find this key must stop
CONNECTION = {"address": "TEMPORAL_ADDRESS", "namespace": "TEMPORAL_NAMESPACE", "profile": "TEMPORAL_PROFILE"}
"""Variables by option. Keys and certificates are not options: Spark's plans and logs would show them."""

OF_SPARK = ("path", "checkpointLocation", "queryName")  # options that Spark itself adds to a stream or a save

_WRITE = ("receipts", "progress", "session", "run", "tasksAtOnce", "restartFinished", "upsert")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_RUN = re.compile(r"[A-Za-z0-9-]{1,64}")


def _to_option(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


OF_SERVER = (*CONNECTION, *map(_to_option, SHIPPED), KEY_OPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows are started, and where their receipts are written."""

    connection: Mapping[str, str]  # variables that every task connects with
    settings: Settings  # the settings of one task; `starts_per_second` is the share of one task
    receipts: str  # a folder: an absolute path that all executors share, or a URI
    progress: str  # a folder of the driver's and all executors' in which tasks note their progress; empty for none
    session: str  # names one start as a whole: a repeated start in the same session gets the same answer
    run: str  # part of the names of the receipt files
    restarts_finished: bool
    is_upsert: bool  # messages that are alive get what their row says


def read_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Validate the options of a save or a stream; raises InvalidSetting in one sentence."""
    options = Options(given, (*_WRITE, *OF_SPARK, *OF_SERVER))
    made = uuid.uuid4().hex

    run = options.text("run") or made
    if not _RUN.fullmatch(run):
        raise InvalidSetting(f"run: is {run!r}; use at most 64 letters, digits and '-'")
    if not (receipts := options.text("receipts")):
        raise InvalidSetting("receipts: is missing; name a folder")
    if not re.match(r"[a-z][a-z0-9]+:", receipts):  # no URI; executors work in other folders
        receipts = str(Path(receipts).absolute())

    restarts_finished = options.flag("restartFinished")
    is_upsert = options.flag("upsert")
    if restarts_finished and is_upsert:
        raise InvalidSetting("restartFinished: says nothing beside upsert, which starts them anew; leave it out")

    return WriteOptions(
        connection=options.connection(),
        settings=options.settings(options.count("tasksAtOnce", 0)),
        receipts=receipts,
        progress=options.text("progress"),
        session=options.text("session") or made,
        run=run,
        restarts_finished=restarts_finished,
        is_upsert=is_upsert,
    )


def write_settings_options(settings: Settings) -> dict[str, str]:
    """Give settings as options, so that tasks use the settings of this process."""
    options = {_to_option(name): text for name, text in write_settings(settings, SHIPPED).items()}
    return options | {KEY_OPTION: next(iter(read_keys(settings)), "")}


def write_connection_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the connection of this process as options."""
    return {name: environ[variable] for name, variable in CONNECTION.items() if environ.get(variable)}


class Options:
    """Options as Spark passes them: names in any case, all values text; raises InvalidSetting for an unknown name."""

    def __init__(self, given: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items()}
        known = {name.lower() for name in names}
        unknown = next((name for name in given if name.lower() not in known), None)
        if unknown is not None:
            shown = ", ".join(sorted(set(names).difference(OF_SPARK)))
            raise InvalidSetting(f"{unknown}: there is no such option; known: {shown}")

    def text(self, name: str) -> str:
        """Give the text of an option; empty when it is not given."""
        return self._given.get(name.lower(), "")

    def flag(self, name: str) -> bool:
        """Give an option that is true or false."""
        word = self.text(name).lower() or "false"
        if word not in _WORDS:
            raise InvalidSetting(f"{name}: is {word!r}; write true or false")
        return _WORDS[word]

    def count(self, name: str, default: int) -> int:
        """Give a whole number of at least 1."""
        text = self.text(name)
        if text and not (text.isdecimal() and int(text) > 0):
            raise InvalidSetting(f"{name}: is {text!r}; give a whole number of at least 1")
        return int(text) if text else default

    def connection(self) -> dict[str, str]:
        """Give the variables of the connection: those of this process, unless options say otherwise."""
        given = {variable: self.text(name) or os.environ.get(variable, "") for name, variable in CONNECTION.items()}
        return {variable: text for variable, text in given.items() if text}

    def settings(self, tasks_at_once: int) -> Settings:
        """Give the settings of one task; the start rate is divided among the tasks that run at once."""
        flags = {name: self.text(_to_option(name)) for name in SHIPPED if self.text(_to_option(name))}
        loaded = load_settings(flags, os.environ)
        rate = loaded.starts_per_second
        if rate > 0 and not tasks_at_once:
            raise InvalidSetting(f"tasksAtOnce: is missing; say how many tasks share startsPerSecond={rate:g}")

        # no secrets but the encryption keys, because Spark sends these settings to its tasks
        shipped = {name: getattr(loaded, name) for name in SHIPPED}
        shipped |= {"starts_per_second": rate / max(1, tasks_at_once), "encryption_keys_file": ""}
        return Settings(**shipped, encryption_keys=Secret(write_keys(self._find_keys(loaded))))

    def _find_keys(self, settings: Settings) -> dict[str, bytes]:
        """Read the keys in Spark's planning process, whose environment may differ from that of the caller."""
        keys = read_keys(settings)
        if (wanted := self.text(KEY_OPTION)) and wanted != next(iter(keys), ""):
            raise InvalidSetting(
                f"{KEY_OPTION}: is {wanted!r}, which is not the first key that Spark's own processes find; "
                "set DORMICE_ENCRYPTION_KEYS where they start, or encryption_keys_file"
            )
        return keys
