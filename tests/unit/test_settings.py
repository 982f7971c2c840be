"""Settings: where they come from, which source wins, and the error for a wrong one."""

import pickle
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dormice import client as client_module
from shared.errors import InvalidSetting
from shared.settings import ENV_PREFIX, Secret, Settings, describe_settings, find_unknown_variables, load_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without any settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    """Write a settings file."""
    path.write_text(text, "utf-8")
    return path


def refuse(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, file: Path | None = None) -> str:
    """Give the sentence that settings are refused with."""
    with pytest.raises(InvalidSetting) as caught:
        load_settings(flags, environ, file)
    return str(caught.value)


def test_without_any_source_every_setting_has_its_default() -> None:
    """Nothing needs to be set."""
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ((), 64),
        (("file",), 1),
        (("environment",), 2),
        (("flag",), 3),
        (("file", "environment"), 2),
        (("file", "flag"), 3),
        (("environment", "flag"), 3),
        (("file", "environment", "flag"), 3),
    ],
)
def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    folder: Path, sources: tuple[str, ...], expected: int
) -> None:
    """The nearer a source is to the command line, the more it counts, setting by setting."""
    file = write(folder / "own.toml", "in_flight = 1\ncycles_per_run = 9") if "file" in sources else None
    environ = {"DORMICE_IN_FLIGHT": "2"} if "environment" in sources else {}
    flags = {"in_flight": "3"} if "flag" in sources else {}

    settings = load_settings(flags, environ, file)

    assert settings.in_flight == expected
    assert settings.cycles_per_run == (9 if file else 5)


def test_the_file_in_the_working_folder_is_read_when_it_is_there(folder: Path) -> None:
    """`dormice.toml` needs no flag."""
    write(folder / "dormice.toml", 'task_queue_prefix = "m\u00e4use"')

    assert load_settings().task_queue_prefix == "m\u00e4use"


def test_a_file_given_by_name_stands_in_for_the_one_in_the_working_folder(folder: Path) -> None:
    """Two files are never mixed."""
    write(folder / "dormice.toml", "in_flight = 1\ncycles_per_run = 2")

    assert load_settings(file=write(folder / "own.toml", "in_flight = 7")) == Settings(in_flight=7)


def test_other_variables_of_the_environment_are_left_alone() -> None:
    """Only the names of settings count: other programs and Temporal have variables of their own."""
    environ = {"DORMICE_UNHEARD_OF": "x", "IN_FLIGHT": "7", "dormice_in_flight": "7", "TEMPORAL_ADDRESS": "nowhere"}

    assert load_settings(environ=environ) == Settings()


def test_what_the_worker_controller_gives_is_the_default_of_deployment_and_build(folder: Path) -> None:
    """Temporal's controller on Kubernetes names them so; our own variables, a file and flags come before it."""
    given = {"TEMPORAL_DEPLOYMENT_NAME": "default/dormice", "TEMPORAL_WORKER_BUILD_ID": "abc"}

    assert load_settings(environ=given) == Settings(deployment_name="default/dormice", build_id="abc")
    assert load_settings(environ=given | {"DORMICE_BUILD_ID": "own"}).build_id == "own"
    assert load_settings(environ=given, file=write(folder / "own.toml", 'build_id = "filed"')).build_id == "filed"


def test_a_variable_with_our_prefix_that_is_no_setting_is_found_with_what_it_is_like() -> None:
    """The error for a typo names the setting it resembles; what the client of the HTTP API reads is in order."""
    environ = {"DORMICE_HANDLER": "a", "DORMICE_UNHEARD_OF": "x", "DORMICE_IN_FLIGHT": "1", "HANDLER": "b"}
    environ |= dict.fromkeys(
        (client_module.URL_VARIABLE, client_module.TOKEN_VARIABLE, client_module.TOKEN_FILE_VARIABLE), "x"
    )

    assert list(find_unknown_variables(environ)) == [
        ("DORMICE_HANDLER", "DORMICE_HANDLERS"),
        ("DORMICE_UNHEARD_OF", ""),
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("handlers", "a.b, c ,,", ("a.b", "c")),
        ("handlers", "", ()),
        ("task_queue_prefix", "a-b", "a-b"),
        ("payload_max_bytes", "1", 1),
        ("index_after", "0s", timedelta(0)),
        ("index_after", "1h30m", timedelta(minutes=90)),
        ("patience", "250ms", timedelta(milliseconds=250)),
        ("workflow_task_timeout", "1s", timedelta(seconds=1)),
        ("sandbox", "TRUE", True),
        ("sandbox", "on", True),
        ("sandbox", "yes", True),
        ("sandbox", "0", False),
        ("sandbox", "Off", False),
        ("starts_per_second", "0", 0.0),
        ("starts_per_second", "12.5", 12.5),
        ("http_timeout", "1ms", timedelta(milliseconds=1)),
        ("log_level", "warning", "warning"),
        ("kafka_password", "p, q=1 ", Secret("p, q=1 ")),
        ("kafka_password", "", Secret()),
        ("kafka_security_protocol", "SASL_SSL", "SASL_SSL"),
    ],
)
def test_text_becomes_the_settings_own_type(name: str, value: str, expected: Any) -> None:
    """Flags and the environment are text; both read it alike."""
    from_flag = getattr(load_settings({name: value}), name)
    from_environment = getattr(load_settings(environ={ENV_PREFIX + name.upper(): value}), name)

    assert (from_flag, type(from_flag)) == (expected, type(expected))
    assert from_environment == expected


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        ('handlers = ["a.b", "c"]', "handlers", ("a.b", "c")),
        ('handlers = "a.b,c"', "handlers", ("a.b", "c")),
        ("in_flight = 7", "in_flight", 7),
        ("in_flight = 7.0", "in_flight", 7),
        ("starts_per_second = 7", "starts_per_second", 7.0),
        ("sandbox = true", "sandbox", True),
        ('patience = "2m"', "patience", timedelta(minutes=2)),
    ],
)
def test_a_file_may_use_its_own_types(folder: Path, line: str, name: str, expected: Any) -> None:
    """TOML's numbers, truth values and lists are taken as they are."""
    found = getattr(load_settings(file=write(folder / "own.toml", line)), name)

    assert (found, type(found)) == (expected, type(expected))


BAD_TEXTS = [
    ("unheard_of", "1", "no such setting; 'dormice settings' lists them all"),
    ("in_flight", "many", "is 'many'; write a whole number"),
    ("in_flight", "1.5", "is '1.5'; write a whole number"),
    ("in_flight", "", "is ''; write a whole number"),
    ("in_flight", "0", "is 0; give at least 1"),
    ("payload_max_bytes", "-1", "is -1; give at least 1"),
    ("starts_per_second", "fast", "is 'fast'; write a number"),
    ("starts_per_second", "nan", "is 'nan'; write a number"),
    ("starts_per_second", "inf", "is 'inf'; write a number"),
    ("starts_per_second", "-0.1", "is -0.1; give at least 0"),
    ("trace_ratio", "1.01", "is 1.01; give at most 1"),
    ("index_after", "60", "is '60', no duration; write for example 90s, 15m, 6h or 2d"),
    ("index_after", "-1s", "is '-1s', which is negative"),
    ("patience", "9999999999d", "longer than time itself"),
    ("workflow_task_timeout", "500ms", "is 0.5s; give at least 1s"),
    ("http_timeout", "0s", "is 0s; give at least 0.001s"),
    ("sandbox", "maybe", "is 'maybe'; write true or false"),
    ("sandbox", "", "is ''; write true or false"),
    ("task_queue_prefix", "", "is empty; leave it out for its default"),
    ("kafka_servers", "", "is empty; leave it out for its default"),
    ("kafka_security_protocol", "TLS", "is 'TLS'; use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    (
        "kafka_sasl_mechanism",
        "plain",
        "is 'plain'; use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER",
    ),
    ("log_level", "loud", "is 'loud'; use one of debug, info, warning, error"),
]


@pytest.mark.parametrize(("name", "value", "phrase"), BAD_TEXTS)
def test_a_bad_flag_is_refused_in_one_sentence(name: str, value: str, phrase: str) -> None:
    """The sentence names the setting, the flag as its source, the problem and what to write."""
    sentence = refuse({name: value})

    assert sentence.startswith(f"{name} (from flag): ")
    assert phrase in sentence
    assert len(sentence.splitlines()) == 1


@pytest.mark.parametrize(("name", "value", "phrase"), BAD_TEXTS[1:])
def test_a_bad_variable_is_refused_in_one_sentence(name: str, value: str, phrase: str) -> None:
    """The sentence names the environment as the source; a good flag does not hide a bad variable."""
    sentence = refuse({"in_flight": "5"}, {ENV_PREFIX + name.upper(): value})

    assert sentence.startswith(f"{name} (from environment): ")
    assert phrase in sentence


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("unheard_of = 1", "unheard_of (from {file}): no such setting; 'dormice settings' lists them all"),
        ("[dormice]\nin_flight = 1", "dormice (from {file}): no such setting"),
        ("in_flight = true", "in_flight (from {file}): is True; write a whole number"),
        ("in_flight = 1.5", "in_flight (from {file}): is 1.5; write a whole number"),
        ("in_flight = [1]", "in_flight (from {file}): is [1]; write a whole number"),
        ("in_flight = inf", "in_flight (from {file}): is inf; write a whole number"),
        ("starts_per_second = nan", "starts_per_second (from {file}): is nan; write a number"),
        ("patience = 60", "patience (from {file}): is '60', no duration"),
        ("sandbox = 2", "sandbox (from {file}): is 2; write true or false"),
        ("handlers = [1]", "handlers (from {file}): is [1]; write names, comma-separated or as a list"),
        ("task_queue_prefix = 5", "task_queue_prefix (from {file}): is 5; write text in quotes"),
        ("kafka_password = 5", "kafka_password (from {file}): is no text; write text in quotes"),
        ("in_flight = ", "config: {path} can't be read as TOML ("),
        ("in_flight = 1\nin_flight = 2", "config: {path} can't be read as TOML ("),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(folder: Path, line: str, phrase: str) -> None:
    """The sentence names the setting and the file it stands in."""
    path = write(folder / "own.toml", line)
    sentence = refuse(file=path)

    assert sentence.startswith(phrase.format(file=f"file {path}", path=path))
    assert len(sentence.splitlines()) == 1


def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(folder: Path) -> None:
    """A missing file, a folder and bytes that are no text each say what to do."""
    (folder / "binary.toml").write_bytes(b"\xff\xfe")

    assert refuse(file=folder / "none.toml") == (
        f"config: there is no file {folder / 'none.toml'}; give the path of a TOML file"
    )
    for path in (folder, folder / "binary.toml"):
        assert refuse(file=path).startswith(f"config: {path} can't be read as TOML (")


def test_every_setting_is_described() -> None:
    """Help texts and docs list every setting with its variable, its default and a note."""
    described = {name: (default, note) for name, default, note in describe_settings()}

    assert list(described) == [ENV_PREFIX + f.name.upper() for f in fields(Settings)]
    assert all(note for _, note in described.values())
    assert described["DORMICE_INDEX_AFTER"][0] == "60s"
    assert described["DORMICE_SANDBOX"][0] == "false"


def test_every_described_default_reads_back() -> None:
    """What help shows as the default can be written back as it stands."""
    environ = {name: default for name, default, _ in describe_settings()}

    assert load_settings(environ=environ) == Settings()


def test_a_secret_is_shown_to_nobody() -> None:
    """Neither by itself nor in the settings that hold it; whether there is one is no secret."""
    settings = load_settings({"kafka_password": "hush"})

    assert settings.kafka_password.reveal() == "hush"
    assert (str(settings.kafka_password), f"{settings.kafka_password}") == ("***", "***")
    assert "kafka_password=Secret('***')" in repr(settings)
    assert "hush" not in repr(settings) + str(asdict(settings))
    assert (str(Secret()), bool(Secret()), bool(Secret("x"))) == ("", False, True)


def test_a_secret_is_what_it_hides() -> None:
    """Settings with the same secret are the same, also after a trip to another process."""
    one = Settings(kafka_password=Secret("1"))
    same = Settings(kafka_password=Secret("1"))
    other = Settings()

    assert one == same == pickle.loads(pickle.dumps(one))  # noqa: S301 — ours
    assert hash(one) == hash(same)
    assert one != other
    assert Secret("1") != "1"
