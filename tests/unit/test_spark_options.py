"""Options of the format `temporal`: names in any case, judged before anything is started."""

import base64
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from shared.errors import InvalidSetting
from shared.settings import Secret, Settings, load_settings, write_settings
from spark.format.reader import TemporalReader
from spark.tasks.options import (
    SHIPPED,
    read_write_options,
    write_connection_options,
    write_settings_options,
)

OWN = Settings(
    handlers=("one", "two.three"),
    task_queue_prefix="night",
    payload_max_bytes=100,
    index_after=timedelta(days=365, microseconds=1),
    workflow_task_timeout=timedelta(seconds=5),
    in_flight=7,
    pack_room=11,
    starts_per_second=0.0,
    patience=timedelta(milliseconds=1500),
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder without a dormice.toml."""
    monkeypatch.chdir(tmp_path)


def test_settings_travel_as_options() -> None:
    """What a process says of its settings is what tasks start by."""
    read = read_write_options({"receipts": "/r", **write_settings_options(OWN)})

    assert read.settings == OWN
    assert load_settings(write_settings(OWN, SHIPPED)) == OWN


def test_secrets_stay_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks get only what a start needs, whatever the driver's environment holds."""
    monkeypatch.setenv("DORMICE_KAFKA_PASSWORD", "hush")
    monkeypatch.setenv("DORMICE_IN_FLIGHT", "9")

    read = read_write_options({"receipts": "/r"})

    assert read.settings == Settings(in_flight=9)


def test_keys_travel_but_are_no_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks get what Spark's own processes find; where that is not what was asked for, nothing starts unencrypted."""
    ring = f"k:{base64.b64encode(bytes(32)).decode()}"
    (tmp_path / "keys").write_text(ring)
    asked = write_settings_options(Settings(encryption_keys=Secret(ring)))

    with pytest.raises(InvalidSetting, match="encryptionKey: is 'k', which is not the first key that Spark's own"):
        read_write_options({"receipts": "/r", **asked})
    monkeypatch.setenv("DORMICE_ENCRYPTION_KEYS_FILE", str(tmp_path / "keys"))
    read = read_write_options({"receipts": "/r", **asked})

    assert ring not in str(asked)
    assert read.settings.encryption_keys == Secret(ring)


def test_an_option_is_known_in_any_case(tmp_path: Path) -> None:
    """As everywhere in Spark; a relative path becomes an absolute one, because executors have other folders."""
    read = read_write_options({"RECEIPTS": "there", "taskqueueprefix": "p", "Restartfinished": "TRUE", "session": "m1"})

    assert read.receipts == str(tmp_path / "there")
    assert (read.settings.task_queue_prefix, read.restarts_finished, read.session) == ("p", True, "m1")


def test_the_receipts_may_be_anywhere() -> None:
    """The URI of a file system stays as it is."""
    assert read_write_options({"receipts": "s3://bucket/there"}).receipts == "s3://bucket/there"


def test_each_save_is_a_wish_of_its_own() -> None:
    """Unless a session says otherwise."""
    first = read_write_options({"receipts": "/r"})
    second = read_write_options({"receipts": "/r"})

    assert first.session != second.session
    assert first.run != second.run


def test_tasks_share_the_rate() -> None:
    """Each takes its part of it."""
    read = read_write_options({"receipts": "/r", "startsPerSecond": "300", "tasksAtOnce": "4"})

    assert read.settings == replace(Settings(), starts_per_second=75.0)


def test_the_server_is_that_of_the_driver_unless_options_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and certificates are left to each node."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "there:7233")
    monkeypatch.setenv("TEMPORAL_API_KEY", "hush")

    read = read_write_options({"receipts": "/r", "namespace": "night"})

    assert read.connection == {"TEMPORAL_ADDRESS": "there:7233", "TEMPORAL_NAMESPACE": "night"}
    assert write_connection_options({**read.connection, "PATH": "/"}) == {"address": "there:7233", "namespace": "night"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "receipts: is missing; name a folder"),
        ({"receipts": " "}, "receipts: is missing; name a folder"),
        (
            {"receipts": "/r", "receipt": "/r"},
            ("receipt: there is no such option; known: address, encryptionKey, encryptionKeysFile, handlers"),
        ),
        ({"receipts": "/r", "apiKey": "x"}, "apiKey: there is no such option; known: "),
        ({"receipts": "/r", "restartFinished": "maybe"}, "restartFinished: is 'maybe'; write true or false"),
        (
            {"receipts": "/r", "restartFinished": "true", "upsert": "true"},
            "restartFinished: says nothing beside upsert",
        ),
        ({"receipts": "/r", "run": "../x"}, "run: is '../x'; use at most 64 letters, digits and '-'"),
        ({"receipts": "/r", "tasksAtOnce": "0"}, "tasksAtOnce: is '0'; give a whole number of at least 1"),
        ({"receipts": "/r", "startsPerSecond": "9"}, "tasksAtOnce: is missing; say how many tasks share startsPerS"),
        ({"receipts": "/r", "startsPerSecond": "x"}, "starts_per_second (from flag): is 'x'; write a number"),
        ({"receipts": "/r", "patience": "5"}, "patience (from flag): is '5', no duration; write for example 90s"),
    ],
)
def test_a_bad_option_of_a_save_is_refused_in_one_sentence(given: dict[str, str], sentence: str) -> None:
    """It names the option, the problem and the next step."""
    with pytest.raises(InvalidSetting) as refused:
        read_write_options(given)

    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"receipts": "/r"},
            (
                "receipts: there is no such option; "
                "known: address, callsPerSecond, encryptionKey, encryptionKeysFile, handlers, "
            ),
        ),
        ({"partitions": "none"}, "partitions: is 'none'; give a whole number of at least 1"),
    ],
)
def test_a_bad_option_of_a_read_is_refused_in_one_sentence(given: dict[str, str], sentence: str) -> None:
    """It names the option, the problem and the next step."""
    with pytest.raises(InvalidSetting) as refused:
        TemporalReader(given, StructType())

    assert str(refused.value).startswith(sentence)


def test_a_read_leaves_visibility_what_it_bears() -> None:
    """Ten calls a second are what a namespace has by default."""
    reader = TemporalReader({"partitions": "5"}, StructType())

    assert (reader.tasks, reader.calls_per_second) == (5, 10)
