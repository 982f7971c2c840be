"""Kafka's connection settings: what they become, which exclude each other, and what a client's errors ask for."""

import importlib
import json
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidSetting, Misconfigured, RetryLater
from shared.exit import FINE, UNREACHABLE, WRONG, code_of
from shared.kafka.connection import kafka_options, translate_kafka_error
from shared.kafka.security import TokenFile, TokenUnreadable
from shared.settings import Secret, Settings
from starter.cli.main import run

pytestmark = pytest.mark.xdist_group("kafka_options")  # what they share is made once

_errors: Any = importlib.import_module("aiokafka.errors")
_abc: Any = importlib.import_module("aiokafka.abc")

SECRET = Secret("hush")
LOGIN: dict[str, Any] = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_username": "alice",
    "kafka_password": SECRET,
}
TOKEN: dict[str, Any] = {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "OAUTHBEARER"}
TLS: dict[str, Any] = {"kafka_security_protocol": "SSL"}
SERVERS = "one:9092,two:9093"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates, keys and secrets, good and bad."""
    folder = tmp_path_factory.mktemp("files")
    for name, protection in (("ours", ["-nodes"]), ("other", ["-nodes"]), ("locked", ["-passout", "pass:open sesame"])):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", f"/CN={name}", *protection]
        command += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        subprocess.run(command, check=True, capture_output=True)

    (folder / "both.pem").write_text((folder / "ours.key").read_text() + (folder / "ours.pem").read_text())
    (folder / "hashed").mkdir()

    texts = {"password": "hush\r\n", "token": "a.b.c\n", "sesame": "open sesame\n", "empty": "\n", "junk": "no PEM"}
    for name, text in texts.items():
        (folder / name).write_text(text)

    (folder / "binary").write_bytes(b"\xff\xfe")
    return folder


def configure(folder: Path, given: dict[str, Any]) -> Settings:
    """Make settings; names of files are completed."""
    completed: dict[str, Any] = {k: str(folder / v) if k.endswith("_file") else v for k, v in given.items()}
    return Settings(**completed)


def test_without_settings_a_broker_on_this_machine_is_asked() -> None:
    """In the clear and without a login, as `dormice dev --kafka` runs it."""
    assert kafka_options(Settings()) == {"bootstrap_servers": "localhost:9092", "security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("password", [{"kafka_password": SECRET}, {"kafka_password_file": "password"}])
def test_a_login_becomes_options(folder: Path, mechanism: str, password: dict[str, Any]) -> None:
    """The password may stand in a file, where the end of its line is no part of it."""
    given = {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_sasl_mechanism": mechanism, "kafka_username": "alice"}

    assert kafka_options(configure(folder, given | password)) == {
        "bootstrap_servers": "localhost:9092",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "hush",
    }


@pytest.mark.parametrize(
    ("given", "authorities"),
    [
        ({"kafka_ca_file": "ours.pem"}, ["ours"]),
        ({"kafka_ca_file": "hashed"}, []),
        ({"kafka_ca_file": "ours.pem", "kafka_certificate_file": "both.pem"}, ["ours"]),
        ({"kafka_ca_file": "ours.pem", "kafka_certificate_file": "other.pem", "kafka_key_file": "other.key"}, ["ours"]),
        (
            {
                "kafka_ca_file": "other.pem",
                "kafka_certificate_file": "locked.pem",
                "kafka_key_file": "locked.key",
                "kafka_key_password_file": "sesame",
            },
            ["other"],
        ),
    ],
)
def test_tls_trusts_whom_the_settings_name(folder: Path, given: dict[str, Any], authorities: list[str]) -> None:
    """And nobody else; a broker's name is always checked."""
    context: Any = kafka_options(configure(folder, TLS | given))["ssl_context"]

    assert [dict(part[0] for part in ca["subject"])["commonName"] for ca in context.get_ca_certs()] == authorities
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


async def test_a_token_is_what_its_file_has_now(tmp_path: Path) -> None:
    """Its extensions stay; a file that is gone at that moment is an error that a client outlives."""
    file = tmp_path / "token"
    file.write_text("first\n")
    settings = configure(tmp_path, TOKEN | {"kafka_token_file": "token", "kafka_token_extensions": ("a=1", "b=x=y")})
    provider = kafka_options(settings)["sasl_oauth_token_provider"]

    assert isinstance(provider, TokenFile)
    assert isinstance(provider, _abc.AbstractTokenProvider)
    assert provider.extensions() == {"a": "1", "b": "x=y"}
    assert await provider.token() == "first"
    file.write_text("second")
    assert await provider.token() == "second"
    file.unlink()
    with pytest.raises(TokenUnreadable, match=r"^kafka_token_file: .*token can't be read"):
        await provider.token()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kafka_servers": "one"}, "kafka_servers: 'one' is no address; write HOST:PORT"),
    ({"kafka_servers": "one:9092,"}, "kafka_servers: '' is no address; write HOST:PORT"),
    ({"kafka_servers": "one:99999"}, "kafka_servers: 'one:99999' is no address"),
    ({"kafka_servers": ":9092"}, "kafka_servers: ':9092' is no address"),
    ({"kafka_username": "alice"}, "kafka_username: is set, but PLAINTEXT has no login; set kafka_security_protocol"),
    ({"kafka_password": SECRET}, "kafka_password: is set, but PLAINTEXT has no login; set kafka_security_protocol"),
    ({"kafka_sasl_mechanism": "GSSAPI"}, "kafka_sasl_mechanism: is set, but PLAINTEXT has no login"),
    (TLS | {"kafka_token_file": "token"}, "kafka_token_file: is set, but SSL has no login"),
    (
        {"kafka_ca_file": "ours.pem"},
        "kafka_ca_file: is set, but PLAINTEXT has no TLS; set kafka_security_protocol to SSL",
    ),
    (TLS | {"kafka_key_file": "ours.key"}, "kafka_key_file: is set without a certificate; set kafka_certificate_file"),
    (TLS | {"kafka_key_password_file": "sesame"}, "kafka_key_password_file: is set without a certificate"),
    (LOGIN | {"kafka_username": ""}, "kafka_username: is missing, PLAIN needs it"),
    (LOGIN | {"kafka_password": Secret()}, "kafka_password: is missing, PLAIN needs it; set DORMICE_KAFKA_PASSWORD or"),
    (LOGIN | {"kafka_password_file": "password"}, "kafka_password_file: is set beside kafka_password; leave one"),
    (
        LOGIN | {"kafka_token_file": "token"},
        "kafka_token_file: is not used by PLAIN; set kafka_sasl_mechanism to OAUTHB",
    ),
    (
        LOGIN | {"kafka_kerberos_domain_name": "x"},
        "kafka_kerberos_domain_name: is not used by PLAIN; set kafka_sasl_mech",
    ),
    (
        TOKEN | {"kafka_username": "alice"},
        "kafka_username: is not used by OAUTHBEARER; set kafka_sasl_mechanism to PLAIN",
    ),
    (TOKEN, "kafka_token_file: is missing, OAUTHBEARER needs it"),
    (
        TOKEN | {"kafka_token_file": "none"},
        "kafka_token_file: {folder}/none can't be read (No such file or directory);",
    ),
    (TOKEN | {"kafka_token_file": "empty"}, "kafka_token_file: {folder}/empty is empty; write"),
    (
        TOKEN | {"kafka_token_file": "token", "kafka_token_extensions": ("a",)},
        "kafka_token_extensions: 'a' is no extension",
    ),
    (
        LOGIN | {"kafka_password": Secret(), "kafka_password_file": "binary"},
        "kafka_password_file: {folder}/binary is no text in UTF-8",
    ),
    (
        TLS | {"kafka_ca_file": "none"},
        "kafka_ca_file: {folder}/none can't be read (No such file or directory); correct",
    ),
    (
        TLS | {"kafka_ca_file": "junk"},
        "kafka_ca_file: {folder}/junk has no certificate that can be read; give a file in PEM",
    ),
    (TLS | {"kafka_certificate_file": "none"}, "kafka_certificate_file: {folder}/none can't be read"),
    (
        TLS | {"kafka_certificate_file": "ours.pem"},
        "kafka_certificate_file: {folder}/ours.pem is no certificate with its key",
    ),
    (
        TLS | {"kafka_certificate_file": "ours.pem", "kafka_key_file": "other.key"},
        "kafka_key_file: the key in {folder}/other.key is not that of the certificate in {folder}/ours.pem",
    ),
    (
        TLS | {"kafka_certificate_file": "ours.pem", "kafka_key_file": "junk"},
        "kafka_key_file: {folder}/ours.pem and {folder}/junk are no certificate with its key",
    ),
    (
        TLS | {"kafka_certificate_file": "locked.pem", "kafka_key_file": "locked.key"},
        "kafka_key_password_file: is missing, the key in {folder}/locked.key is encrypted",
    ),
    (
        TLS
        | {"kafka_certificate_file": "locked.pem", "kafka_key_file": "locked.key", "kafka_key_password_file": "token"},
        "kafka_key_password_file: the key in {folder}/locked.key does not open with this password",
    ),
]


@pytest.mark.parametrize(("given", "start"), REFUSED)
def test_settings_that_do_not_go_together_are_refused_in_one_sentence(
    folder: Path, given: dict[str, Any], start: str
) -> None:
    """The sentence names the setting, its problem and the next step, and has no password."""
    with pytest.raises(InvalidSetting) as told:
        kafka_options(configure(folder, given))

    assert str(told.value).startswith(start.format(folder=folder))
    assert "; " in str(told.value)
    assert "hush" not in str(told.value)


def caused(exc: Exception, cause: BaseException) -> Exception:
    """Give an error as a client raises it when a connection breaks."""
    exc.__cause__ = cause
    return exc


def unverified(code: int, message: str) -> ssl.SSLCertVerificationError:
    """Give the error of a certificate that was not accepted."""
    exc = ssl.SSLCertVerificationError(1, "certificate verify failed")
    exc.verify_code = code
    exc.verify_message = message
    return exc


def alert(reason: str) -> ssl.SSLError:
    """Give the error of a TLS conversation that the other side ended."""
    exc = ssl.SSLError(1, reason)
    exc.reason = reason
    return exc


CLOSED = "Connection at one:9092 closed"
ERRORS: list[tuple[Exception, int, str]] = [
    (
        _errors.SaslAuthenticationFailed("Authentication failed"),
        WRONG,
        "refuses user 'alice' (Authentication failed); correct",
    ),
    (_errors.UnsupportedSaslMechanismError("x"), WRONG, "does not take PLAIN; set kafka_sasl_mechanism to one"),
    (_errors.IllegalSaslStateError("x"), WRONG, "takes no login on this port; set kafka_security_protocol"),
    (
        unverified(19, "self-signed certificate in chain"),
        WRONG,
        "of an unknown CA (self-signed certificate in chain); set",
    ),
    (
        unverified(10, "certificate has expired"),
        WRONG,
        "a certificate out of its time (certificate has expired); have it",
    ),
    (unverified(62, "Hostname mismatch"), WRONG, "a certificate for another name (Hostname mismatch); use its name"),
    (alert("WRONG_VERSION_NUMBER"), WRONG, "does not speak TLS on this port; correct kafka_security_protocol"),
    (alert("NO_PROTOCOLS_AVAILABLE"), WRONG, "do not agree on TLS (NO_PROTOCOLS_AVAILABLE)"),
    (
        caused(_errors.KafkaConnectionError(CLOSED), alert("TLSV13_ALERT_CERTIFICATE_REQUIRED")),
        WRONG,
        "asks for a certificate of ours (TLSV13_ALERT_CERTIFICATE_REQUIRED); set kafka_certificate_file",
    ),
    (
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        WRONG,
        "has an unknown host (Name or service not",
    ),
    (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), UNREACHABLE, "the name server does not say where"),
    (_errors.TopicAuthorizationFailedError("feed"), WRONG, "does not let user 'alice' use the topic feed; have an ACL"),
    (_errors.TopicAuthorizationFailedError({"b", "a"}), WRONG, "does not let user 'alice' use the topic a, b;"),
    (_errors.GroupAuthorizationFailedError("ours"), WRONG, "does not let user 'alice' use the consumer group ours;"),
    (_errors.GroupAuthorizationFailedError(), WRONG, "does not let user 'alice' use the consumer group;"),
    (_errors.TransactionalIdAuthorizationFailed("id"), WRONG, "use the transactional id id;"),
    (_errors.ClusterAuthorizationFailedError(), WRONG, "use the cluster;"),
    (TokenUnreadable("kafka_token_file: f is empty; write"), WRONG, "kafka_token_file: f is empty; write"),
    (InvalidSetting("a setting"), WRONG, "a setting"),
    (ConnectionRefusedError(111, "Connect call failed"), UNREACHABLE, "no Kafka broker answers at"),
    (TimeoutError(), UNREACHABLE, "no Kafka broker answers at one:9092,two:9093 (nothing came within 10 s); start one"),
    (_errors.KafkaConnectionError("Unable to bootstrap"), UNREACHABLE, "no Kafka broker answers at"),
    (caused(_errors.KafkaConnectionError(CLOSED), EOFError()), UNREACHABLE, "closes the connection; try again"),
    (ConnectionResetError(104, "Connection reset by peer"), UNREACHABLE, "closes the connection; try again"),
    (ssl.SSLEOFError(8, "EOF occurred"), UNREACHABLE, "closes the connection; try again"),
    (_errors.NodeNotReadyError("node 1"), UNREACHABLE, "check the addresses that the brokers advertise"),
    (_errors.NotEnoughReplicasError(), UNREACHABLE, "can't do it now ("),
    (_errors.PolicyViolationError("too small"), WRONG, "refuses a request (too small); correct what was asked"),
]


@pytest.mark.parametrize(
    ("exc", "code", "phrase"), ERRORS, ids=[f"{type(e).__name__}-{n}" for n, (e, _, _) in enumerate(ERRORS)]
)
def test_a_failure_says_what_to_do_next(exc: Exception, code: int, phrase: str) -> None:
    """A person must act, or waiting may help; in one sentence, without the password."""
    told = translate_kafka_error(exc, Settings(kafka_servers=SERVERS, **LOGIN))

    assert phrase in str(told)
    assert code_of(told) == code
    assert isinstance(told, Misconfigured if code == WRONG else RetryLater)
    assert len(str(told).splitlines()) == 1
    assert "hush" not in str(told)


@pytest.mark.parametrize(
    ("given", "who", "remedy"),
    [
        (LOGIN, "user 'alice'", "correct kafka_username or kafka_password"),
        (LOGIN | {"kafka_password": Secret(), "kafka_password_file": "f"}, "user 'alice'", "or kafka_password_file"),
        (TOKEN | {"kafka_token_file": "f"}, "the token in f", "renew the token in kafka_token_file"),
        (TOKEN | {"kafka_sasl_mechanism": "GSSAPI"}, "our Kerberos ticket", "get a ticket with kinit"),
    ],
)
def test_a_refused_login_leads_to_the_settings_that_it_came_from(given: dict[str, Any], who: str, remedy: str) -> None:
    """Each way to log in has settings of its own."""
    told = str(translate_kafka_error(_errors.SaslAuthenticationFailed("no"), Settings(**given)))

    assert f" refuses {who} (no); " in told
    assert told.endswith(remedy)


def test_a_refused_certificate_of_ours_leads_to_it() -> None:
    """The same alert asks for one where none is set."""
    settings = replace(Settings(**TLS), kafka_certificate_file="c.pem")

    assert "refuses our certificate (X_ALERT_UNKNOWN_CA); correct kafka_certificate_file" in str(
        translate_kafka_error(alert("X_ALERT_UNKNOWN_CA"), settings)
    )


@pytest.mark.parametrize(
    ("package", "given", "sentence"),
    [
        (
            "aiokafka",
            {},
            "Kafka needs the package aiokafka, which is not installed; install dormice with its extra 'kafka'",
        ),
        (
            "gssapi",
            {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_sasl_mechanism": "GSSAPI"},
            "kafka_sasl_mechanism: GSSAPI needs the package gssapi, which is missing; install it",
        ),
    ],
)
def test_a_missing_package_is_named(package: str, given: dict[str, Any], sentence: str) -> None:
    """In an interpreter that finds none of this name."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from shared.settings import Settings; from shared.kafka.connection import kafka_options\n"
        f"try: kafka_options(Settings(**{given!r}))\n"
        "except Exception as exc: print(type(exc).__name__, exc, sep='|')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == f"Misconfigured|{sentence}"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_command_that_lists_settings_hides_the_password(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows that there is one."""
    assert run(["settings", *flags, "--set", "kafka_password=hush"]) == FINE
    printed = capsys.readouterr()
    shown = next(line for line in printed.out.splitlines() if "kafka_password" in line)

    assert "hush" not in printed.out + printed.err
    assert json.loads(shown)["value"] == "***" if flags else shown.split()[1] == "***"
