"""The connection to Kafka: options for every client, a check before work begins, and what its errors mean."""

import contextlib
import importlib
import importlib.util
import socket
import ssl
from typing import Any

from shared.errors import InvalidSetting, Misconfigured, RetryLater, check_extra
from shared.kafka.security import TokenUnreadable, security_options
from shared.settings import Settings

CHECK_SECONDS = 10.0  # time that one broker gets for each answer during a check

# numbers of OpenSSL's x509_vfy.h
NOT_IN_TIME = (9, 10)
OTHER_NAME = (62, 64)

ACCESS_ERRORS = {
    "TopicAuthorizationFailedError": "topic",
    "GroupAuthorizationFailedError": "consumer group",
    "TransactionalIdAuthorizationFailed": "transactional id",
    "ClusterAuthorizationFailedError": "cluster",
}
"""What a client may not use, by the name of aiokafka's error."""

HUNG_UP = (EOFError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
TLS_HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def kafka_options(settings: Settings) -> dict[str, Any]:
    """Give the arguments that aiokafka's clients share; reads all files but the token's. Raises Misconfigured."""
    check_extra("kafka", "Kafka", "aiokafka")
    for server in settings.kafka_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise InvalidSetting(f"kafka_servers: {server.strip()!r} is no address; write HOST:PORT, comma-separated")
    return {"bootstrap_servers": settings.kafka_servers, **security_options(settings)}


async def check_broker(settings: Settings) -> None:
    """Log in to a broker and ask it for the cluster; raises Misconfigured, or RetryLater if nobody answers."""
    # so faults are known before work begins; the clients' own start says only that they could not connect
    options = kafka_options(settings)
    conn: Any = importlib.import_module("aiokafka.conn")
    refusals: list[RetryLater | Misconfigured] = []
    for host, port, _ in conn.collect_hosts(options.pop("bootstrap_servers")):
        try:
            return await _request_metadata(host, port, options, settings)
        except _failures() as exc:
            refusals.append(refusal := translate_kafka_error(exc, settings))
            refusal.__cause__ = exc if exc is not refusal else None

    raise next((refusal for refusal in refusals if isinstance(refusal, Misconfigured)), refusals[0])


def translate_kafka_error(exc: BaseException, settings: Settings) -> RetryLater | Misconfigured:
    """Turn a failure of aiokafka into the branch of the error tree that fits what the caller should do."""
    chain = [exc]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)

    for link in chain:
        if isinstance(link, RetryLater | Misconfigured):
            return link
        if isinstance(link, TokenUnreadable):
            return InvalidSetting(str(link))
        if isinstance(link, socket.gaierror):
            return _explain_name(link, settings)
        for explain in (_explain_login, _explain_tls, _explain_refusal):
            if sentence := explain(link, settings):
                return Misconfigured(sentence)

    if any(isinstance(link, HUNG_UP + TLS_HUNG_UP) for link in chain):
        return RetryLater(
            f"{_broker(settings)} closes the connection; try again, and if it goes on doing so check "
            f"that its listener speaks {settings.kafka_security_protocol}, as kafka_security_protocol says"
        )

    return _explain_rest(exc, settings)


async def _request_metadata(host: str, port: int, options: dict[str, Any], settings: Settings) -> None:
    conn: Any = importlib.import_module("aiokafka.conn")
    request: Any = importlib.import_module("aiokafka.protocol.metadata").MetadataRequest

    connection = await conn.create_conn(host, port, request_timeout_ms=int(CHECK_SECONDS * 1000), **options)
    try:
        # before a login a listener answers this request alone: which API versions it speaks
        answer = await connection.send(request([]))
    finally:
        if closed := connection.close():
            with contextlib.suppress(OSError):
                await closed

    if answer.brokers:
        return
    if settings.kafka_sasl_mechanism == "OAUTHBEARER":  # the answer to a bad token, which aiokafka takes for a login
        raise Misconfigured(f"{_broker(settings)} refuses {_who(settings)}; renew the token in kafka_token_file")
    raise RetryLater(f"{_broker(settings)} knows of no brokers yet; try again in a while")


def _failures() -> tuple[type[Exception], ...]:
    errors: Any = importlib.import_module("aiokafka.errors")
    found: tuple[type[Exception], ...] = (RetryLater, Misconfigured, errors.KafkaError, OSError)
    if importlib.util.find_spec("gssapi") is not None:
        gssapi: Any = importlib.import_module("gssapi.exceptions")
        found += (gssapi.GSSError,)
    return found


def _explain_login(exc: BaseException, settings: Settings) -> str | None:
    mechanism = settings.kafka_sasl_mechanism
    if _is(exc, "SaslAuthenticationFailed", "AuthenticationFailedError"):
        password = "kafka_password_file" if settings.kafka_password_file else "kafka_password"
        remedies = {"OAUTHBEARER": "renew the token in kafka_token_file", "GSSAPI": "get a ticket with kinit"}
        remedy = remedies.get(mechanism, f"correct kafka_username or {password}")
        return f"{_broker(settings)} refuses {_who(settings)} ({_said(exc)}); {remedy}"

    if _is(exc, "UnsupportedSaslMechanismError"):
        return f"{_broker(settings)} does not take {mechanism}; set kafka_sasl_mechanism to one of its listener"

    if _is(exc, "IllegalSaslStateError"):
        return (
            f"{_broker(settings)} takes no login on this port; "
            "set kafka_security_protocol to PLAINTEXT or SSL, or kafka_servers to a port that does"
        )

    if type(exc).__module__.partition(".")[0] == "gssapi":
        principal = f"{settings.kafka_kerberos_service_name} at {settings.kafka_servers}"
        return (
            f"Kerberos gives no ticket for {principal} ({_said(exc)}); "
            "run kinit, or correct kafka_kerberos_service_name or kafka_kerberos_domain_name"
        )

    return None


def _explain_tls(exc: BaseException, settings: Settings) -> str | None:
    if not isinstance(exc, ssl.SSLError) or isinstance(exc, TLS_HUNG_UP):
        return None

    broker = _broker(settings)
    if isinstance(exc, ssl.SSLCertVerificationError):
        flaw = exc.verify_message
        if exc.verify_code in OTHER_NAME:
            return f"{broker} shows a certificate for another name ({flaw}); use its name in kafka_servers"
        if exc.verify_code in NOT_IN_TIME:
            return f"{broker} shows a certificate out of its time ({flaw}); have it renewed, or set the clock"
        return f"{broker} shows a certificate of an unknown CA ({flaw}); set kafka_ca_file to its CA"

    reason = exc.reason or str(exc)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"{broker} does not speak TLS on this port; correct kafka_security_protocol or kafka_servers"

    # a listener that wants our certificate reports this differently in each version of TLS
    if any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")):
        if settings.kafka_certificate_file:
            return f"{broker} refuses our certificate ({reason}); correct kafka_certificate_file"
        return f"{broker} asks for a certificate of ours ({reason}); set kafka_certificate_file"

    return f"{broker} and we do not agree on TLS ({reason}); have its listener's TLS settings checked"


def _explain_name(exc: socket.gaierror, settings: Settings) -> RetryLater | Misconfigured:
    servers = settings.kafka_servers
    said = exc.strerror
    if exc.errno == socket.EAI_AGAIN:
        return RetryLater(f"the name server does not say where {servers} is ({said}); try again, or set kafka_servers")
    return Misconfigured(f"kafka_servers: {servers} has an unknown host ({said}); correct it")


def _explain_refusal(exc: BaseException, settings: Settings) -> str | None:
    what = next((what for name, what in ACCESS_ERRORS.items() if _is(exc, name)), None)
    if what is None:
        return None
    given: Any = exc.args[0] if exc.args else ""  # the name of the topic or group, or a set of names
    which = " ".join(filter(None, (what, given if isinstance(given, str) else ", ".join(sorted(map(str, given))))))
    return (
        f"{_broker(settings)} does not let {_who(settings)} use the {which}; "
        "have an ACL added, or log in as somebody else"
    )


def _explain_rest(exc: BaseException, settings: Settings) -> RetryLater | Misconfigured:
    servers = settings.kafka_servers
    said = _said(exc)
    if _is(exc, "BrokerResponseError") and not getattr(exc, "retriable", False) and not _is(exc, "UnknownError"):
        return Misconfigured(f"{_broker(settings)} refuses a request ({said}); correct what was asked")
    if _is(exc, "BrokerResponseError"):
        return RetryLater(f"{_broker(settings)} can't do it now ({said}); try again in a while")

    if _is(exc, "NodeNotReadyError"):
        return RetryLater(
            f"a Kafka broker behind {servers} can't be reached ({said}); "
            "try again, and if it stays so check the addresses that the brokers advertise"
        )

    if isinstance(exc, TimeoutError) and not str(exc):
        said = f"nothing came within {CHECK_SECONDS:g} s"

    return RetryLater(
        f"no Kafka broker answers at {servers} ({said}); "
        "start one, for a trial with 'dormice dev --kafka', or set kafka_servers"
    )


def _is(exc: BaseException, *names: str) -> bool:
    errors: Any = importlib.import_module("aiokafka.errors")
    return any(isinstance(exc, getattr(errors, name)) for name in names)


def _said(exc: BaseException) -> str:
    said = exc.args[0] if len(exc.args) == 1 else exc
    text = " ".join(str(said).split())
    return text[:200] or type(exc).__name__


def _broker(settings: Settings) -> str:
    return f"the Kafka broker at {settings.kafka_servers}"


def _who(settings: Settings) -> str:
    if not settings.kafka_security_protocol.startswith("SASL_"):
        return "the owner of our certificate" if settings.kafka_certificate_file else "clients without a login"
    if settings.kafka_sasl_mechanism == "OAUTHBEARER":
        return f"the token in {settings.kafka_token_file}"
    return "our Kerberos ticket" if settings.kafka_sasl_mechanism == "GSSAPI" else f"user {settings.kafka_username!r}"
