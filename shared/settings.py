"""The settings of one process: flag > environment > file > default, read once in `main` and frozen.

Temporal's own connection settings (address, namespace, TLS, API key) are not here: they follow Temporal's
environment configuration (`TEMPORAL_ADDRESS`, `TEMPORAL_PROFILE`, …), see `shared.temporal.connect`.
"""

# ruff: noqa: RUF009 — no default of a setting can change, a Secret neither

# Not by pydantic-settings: it merges its sources before it checks them, so that no sentence could say where a wrong
# value came from, and a good flag would hide a bad variable. And 'dormice --help' loads this module, but no pydantic.

import contextlib
import difflib
import math
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from shared.errors import InvalidSetting
from shared.messages.timespan import parse_duration

ENV_PREFIX = "DORMICE_"
CLIENT_VARIABLES = ("DORMICE_API_URL", "DORMICE_API_TOKEN", "DORMICE_API_TOKEN_FILE")
"""Variables that the client of the HTTP API reads, in the environment of an application."""
CONTROLLER_VARIABLES = {"deployment_name": "TEMPORAL_DEPLOYMENT_NAME", "build_id": "TEMPORAL_WORKER_BUILD_ID"}
"""Variables that Temporal's worker controller on Kubernetes gives to the workers of each build; they are defaults."""
DEFAULT_FILE = "dormice.toml"

_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Secret:
    """Text that is never shown: as text it is `***`, or nothing where there is none; `reveal` gives it."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Give the text itself."""
        return self._text

    def __str__(self) -> str:
        return "***" if self._text else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _setting(
    default: Any, note: str, at_least: float = -math.inf, one_of: tuple[str, ...] = (), at_most: float = math.inf
) -> Any:
    return field(default=default, metadata={"note": note, "at_least": at_least, "one_of": one_of, "at_most": at_most})


NO_SECRET = Secret()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting with its default; the name in the environment is `DORMICE_` + the name in upper case."""

    handlers: tuple[str, ...] = _setting((), "Modules with handlers, comma-separated, beside the installed ones.")
    task_queue_prefix: str = _setting("dormice", "Task queues are PREFIX-short, PREFIX-medium and PREFIX-long.")
    deployment_name: str = _setting(
        "",
        "Worker deployment that workers belong to; its current version alone gets tasks. Left out, that in "
        "TEMPORAL_DEPLOYMENT_NAME, and without any, all workers do.",
    )
    build_id: str = _setting(
        "",
        "Build of this code, such as an image's tag or a commit; left out, that in TEMPORAL_WORKER_BUILD_ID, and "
        "without any, dormice and its version.",
    )
    payload_max_bytes: int = _setting(4096, "Largest payload of a message, in bytes of JSON.", 1)
    cycles_per_run: int = _setting(
        5, "Cycles after which a message continues as new; its first run may have up to twice as many.", 1
    )
    pack_cycles_per_run: float = _setting(
        # a pack that is not cached replays all cycles of its run when it wakes; a new run costs writing the whole state
        0.25,
        "Cycles for each of its messages after which a pack continues as new.",
        0,
        at_most=2,
    )
    index_after: timedelta = _setting(
        timedelta(seconds=60), "Shorter delays do not update the DueAt search attribute.", 0
    )
    workflow_task_timeout: timedelta = _setting(
        timedelta(seconds=10), "How long a worker may hold a workflow task before another one gets it.", 1
    )
    handlers_at_once: int = _setting(500, "Handlers of packed messages at work at once in one worker process.", 1)
    cached_workflows: int = _setting(
        0, "Messages and packs that one worker process keeps in memory on each lane; 0 = 1000, on long 200.", 0
    )
    cached_bytes: int = _setting(200_000_000, "Bytes that they may take in one worker process, about; 0 = no limit.", 0)
    tenant_weights: tuple[str, ...] = _setting(
        (), "Shares of a busy lane, TENANT=WEIGHT, comma-separated; who is not named has the weight 1."
    )
    idle_lanes: tuple[str, ...] = _setting(
        (), "Lanes whose idle capacity runs what is due next, from their first worker on; 'dormice idle' changes it."
    )
    canary_lanes: tuple[str, ...] = _setting(
        (), "Lanes that get a message of their own, from their first worker on, which shows every minute that they run."
    )
    sandbox: bool = _setting(False, "Run workflow code in the SDK's sandbox (costs CPU on every cold wake).")
    in_flight: int = _setting(64, "Starts or signals under way at once from one process.", 1)
    pack_room: int = _setting(100_000, "Messages that a bulk start holds back to send them to their packs together.", 1)
    starts_per_second: float = _setting(
        0.0, "Most starts a second from one process; 0 = only what the server bears.", 0
    )
    patience: timedelta = _setting(
        timedelta(minutes=5), "How long one start or signal is retried while the server is away.", 0
    )
    encryption_keys: Secret = _setting(
        NO_SECRET, "Keys for payloads, ID:BASE64 of 32 bytes, comma-separated: the first encrypts; never shown."
    )
    encryption_keys_file: str = _setting("", "File with such keys, one a line, in place of encryption_keys.")
    codec_token: Secret = _setting(NO_SECRET, "Token that the codec server wants, 16 characters at least; never shown.")
    codec_token_file: str = _setting("", "File with the token alone, in place of codec_token.")
    codec_origins: tuple[str, ...] = _setting(
        ("http://127.0.0.1:8233", "http://localhost:8233"), "Web UIs whose pages may ask the codec server."
    )
    api_tokens_file: str = _setting("", "TOML file with the tokens of callers of 'dormice serve', a table each.")
    page_writes: bool = _setting(
        False, "Let people who have signed in change things on the operations page; without it they can only look."
    )
    page_bridges: tuple[str, ...] = _setting(
        (), "Bridges that the operations page asks how they are, HOST:PORT of their --health-port, comma-separated."
    )
    http_allow_private: bool = _setting(False, "Let the http handler reach private and loopback addresses.")
    http_at_once: int = _setting(8, "Requests of one worker process to one host at once, by http and webhook.", 1)
    http_max_bytes: int = _setting(5 * 1024 * 1024, "Largest response body the http handler reads.", 1)
    http_timeout: timedelta = _setting(timedelta(seconds=8), "Total time of one request of the http handler.", 0.001)
    webhook_key_file: str = _setting(
        "", "File with the key that signs what webhooks send, one or two a line each; unsigned when left out."
    )
    kafka_servers: str = _setting("localhost:9092", "Kafka brokers to ask first, HOST:PORT, comma-separated.")
    kafka_security_protocol: str = _setting(
        "PLAINTEXT",
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL: SSL is TLS, SASL a login.",
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    kafka_sasl_mechanism: str = _setting(
        "PLAIN",
        "How to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER.",
        one_of=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"),
    )
    kafka_username: str = _setting("", "User name for PLAIN and SCRAM.")
    kafka_password: Secret = _setting(NO_SECRET, "Password for PLAIN and SCRAM; never shown.")
    kafka_password_file: str = _setting("", "File with the password alone, in place of kafka_password.")
    kafka_token_file: str = _setting("", "File with the token for OAUTHBEARER, read anew at each login.")
    kafka_token_extensions: tuple[str, ...] = _setting(
        (), "SASL extensions sent beside the token, NAME=VALUE, comma-separated."
    )
    kafka_kerberos_service_name: str = _setting("kafka", "Service in the brokers' Kerberos principal, for GSSAPI.")
    kafka_kerberos_domain_name: str = _setting("", "Host in that principal; the broker's own when left out.")
    kafka_ca_file: str = _setting(
        "", "PEM file, or folder of hashed ones, with the CAs to trust; the system's when left out."
    )
    kafka_certificate_file: str = _setting("", "PEM file with the certificate that shows who we are, with its chain.")
    kafka_key_file: str = _setting("", "PEM file with its private key, unless that is in the certificate's file.")
    kafka_key_password_file: str = _setting("", "File with the password of an encrypted private key.")
    celery_broker_url: Secret = _setting(
        NO_SECRET, "Broker to which held tasks of Celery go, as its broker_url; never shown, for it has a password."
    )
    celery_broker_url_file: str = _setting("", "File with that address alone, in place of celery_broker_url.")
    celery_broker_options: tuple[str, ...] = _setting(
        (), "Options of that broker's transport, as Celery's broker_transport_options, NAME=VALUE, comma-separated."
    )
    outbox_dsn: Secret = _setting(
        NO_SECRET, "Connection string of the database that 'dormice outbox' reads, like postgresql://…; never shown."
    )
    outbox_dsn_file: str = _setting("", "File with it alone, in place of outbox_dsn.")
    outcomes_topic: str = _setting(
        "", "Kafka topic that is told every cycle's outcome, one event each; none when left out."
    )
    ui_address: str = _setting(
        "", "Where Temporal's Web UI is, like https://ui.example.org; that of 'dormice dev' when left out."
    )
    telemetry_prometheus: str = _setting("", "HOST:PORT at which Prometheus may fetch metrics, like 127.0.0.1:9464.")
    telemetry_otlp: str = _setting("", "OTLP/HTTP receiver of metrics and traces, like http://localhost:4318.")
    trace_ratio: float = _setting(
        0.01, "Share of messages whose cycles are traced, 0 to 1; sent to telemetry_otlp.", 0, at_most=1
    )
    spark_master: str = _setting("", "Where Spark runs; local[*] when left out, or what spark-submit says.")
    jdbc_user: str = _setting("", "User name for a database that Spark reads.")
    jdbc_password: Secret = _setting(NO_SECRET, "Password for it; never shown.")
    jdbc_password_file: str = _setting("", "File with the password alone, in place of jdbc_password.")
    log_level: str = _setting("info", "debug, info, warning or error.", one_of=("debug", "info", "warning", "error"))
    log_format: str = _setting(
        "plain", "plain for a person, json for one JSON object a line.", one_of=("plain", "json")
    )


_FIELDS = {f.name: f for f in fields(Settings)}


def load_settings(
    flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Build the settings, without `file` from `dormice.toml` in the working folder if any; raises InvalidSetting."""
    environ = environ or {}
    controller = {name: environ[given] for name, given in CONTROLLER_VARIABLES.items() if given in environ}
    variables = {name: environ[variable] for name in _FIELDS if (variable := _name_variable(name)) in environ}

    values: dict[str, Any] = {}
    sources = (
        ("Temporal's worker controller", controller),
        *_file_values(file),
        ("environment", variables),
        ("flag", flags or {}),
    )

    for source, given in sources:
        values |= {name: _read(name, value, source) for name, value in given.items()}
    return Settings(**values)


def add_handler_folder(file: Path | None = None) -> None:
    """Let modules beside the file that `load_settings` reads be imported, after all else, so that they hide nothing."""
    path = file or Path(DEFAULT_FILE)
    folder = str(path.resolve().parent)
    if path.exists() and folder not in sys.path:
        sys.path.append(folder)


def find_unknown_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give each variable with our prefix that is no setting, with the name of a similar setting, or "" for none."""
    known = list(map(str.upper, _FIELDS))
    for name in sorted(environ.keys() - set(CLIENT_VARIABLES)):
        rest = name.removeprefix(ENV_PREFIX)
        if rest != name and rest not in known:
            yield name, "".join(ENV_PREFIX + like for like in difflib.get_close_matches(rest, known, n=1))


def describe_settings() -> Iterator[tuple[str, str, str]]:
    """Give (environment name, default, note) of every setting, for help texts and docs."""
    for name, known in _FIELDS.items():
        yield _name_variable(name), write_setting(known.default), known.metadata["note"]


def write_settings(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Give settings as text that `load_settings` reads back, for a process of our own elsewhere."""
    values = {name: getattr(settings, name) for name in names}
    return {
        name: f"{value.total_seconds():.6f}s" if isinstance(value, timedelta) else write_setting(value)
        for name, value in values.items()
    }


def find_secret(settings: Settings, name: str) -> str:
    """Give what setting `name` says, or the file that `name`_file names, or nothing; raises InvalidSetting for both."""
    secret: Secret = getattr(settings, name)
    file: str = getattr(settings, f"{name}_file")
    if secret and file:
        raise InvalidSetting(f"{name}_file: is set beside {name}; leave one of them out")
    return read_secret(f"{name}_file", Path(file)) if file else secret.reveal()


def read_secret(name: str, path: Path) -> str:
    """Give the one text in a file, without the end of its line; raises InvalidSetting that names the setting."""
    try:
        text = path.read_text("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise InvalidSetting(f"{name}: {path} can't be read ({exc.strerror}); correct the path or its rights") from exc
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"{name}: {path} is no text in UTF-8; write the secret alone into it") from exc
    if not text:
        raise InvalidSetting(f"{name}: {path} is empty; write the secret alone into it")
    return text


def _name_variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _file_values(file: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.exists():
        return
    try:
        yield f"file {path}", tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as exc:
        raise InvalidSetting(f"config: there is no file {path}; give the path of a TOML file") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as exc:
        raise InvalidSetting(f"config: {path} can't be read as TOML ({exc}); correct it") from exc


def _read(name: str, value: Any, source: str) -> Any:
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "'dormice settings' lists them all"
        raise InvalidSetting(f"{name} (from {source}): no such setting; {hint}")

    known = _FIELDS[name]
    try:
        result = _convert(value, known.default)
    except ValueError as exc:
        raise InvalidSetting(f"{name} (from {source}): {exc}") from exc

    if flaw := _find_flaw(result, known):
        raise InvalidSetting(f"{name} (from {source}): {flaw}")
    return result


def _find_flaw(value: Any, known: "Field[Any]") -> str | None:
    minimum, maximum, choices = (known.metadata[key] for key in ("at_least", "at_most", "one_of"))
    size, unit = (value.total_seconds(), "s") if isinstance(value, timedelta) else (value, "")
    if isinstance(size, int | float) and size < minimum:
        return f"is {write_setting(value)}; give at least {minimum:g}{unit}"
    if isinstance(size, int | float) and size > maximum:
        return f"is {write_setting(value)}; give at most {maximum:g}{unit}"
    if choices and value not in choices:
        return f"is {value!r}; use one of {', '.join(choices)}"
    if value == "" and known.default != "":
        return "is empty; leave it out for its default"

    return None


def _convert(value: Any, default: Any) -> Any:
    match default:
        case bool():
            if (word := str(value).lower()) not in _TRUTH:
                raise ValueError(f"is {value!r}; write true or false")
            return _TRUTH[word]
        case timedelta():
            return parse_duration(str(value))
        case tuple():
            return _read_names(value)
        case int() | float():
            return _read_number(value, type(default))
        case _ if not isinstance(value, str):
            shown = "no text" if isinstance(default, Secret) else repr(value)
            raise ValueError(f"is {shown}; write text in quotes")
        case _:
            return Secret(value) if isinstance(default, Secret) else value


def _read_names(value: Any) -> tuple[str, ...]:
    parts = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"is {value!r}; write names, comma-separated or as a list")
    return tuple(name.strip() for part in parts for name in part.split(",") if name.strip())


def _read_number(value: Any, kind: type[int] | type[float]) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = kind(value)
            if math.isfinite(number) and (isinstance(value, str) or number == value):
                return number
    wanted = "a whole number" if kind is int else "a number"
    raise ValueError(f"is {value!r}; write {wanted}")


def write_setting(value: Any) -> str:
    """Write the value of a setting as it is typed."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, tuple):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] — any tuple
    return str(value).lower() if isinstance(value, bool) else str(value)
