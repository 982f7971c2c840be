"""A real broker with TLS, logins and access rules lets right clients in; wrong ones learn what to change."""

import asyncio
import base64
import dataclasses
import importlib
import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.errors import Misconfigured, RetryLater
from shared.exit import UNREACHABLE, WRONG, code_of
from shared.kafka.connection import check_broker, kafka_options, translate_kafka_error
from shared.settings import Secret, Settings
from starter.local.kafka.broker import BrokerOptions, run_broker
from starter.local.supervised_process import find_free_port
from tests.support.certificates import PASSWORD, login_module, make_certificate
from tests.support.topics import create_topic

pytestmark = [pytest.mark.xdist_group("kafka_connection"), pytest.mark.timeout(120)]  # what they share is made once

_kafka: Any = importlib.import_module("aiokafka")
_admin: Any = importlib.import_module("aiokafka.admin")
_errors: Any = importlib.import_module("aiokafka.errors")

TOPIC = "guarded"
SECURITY = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Guarded:
    """The address of each listener, and the files that go with them."""

    plain: str
    secure: str
    tokens: str
    mutual: str
    folder: Path

    def login(self, **changes: Any) -> Settings:
        """Give the settings of a user who is let in, or with these changes is not."""
        right: dict[str, Any] = {
            "kafka_servers": self.secure,
            "kafka_security_protocol": "SASL_SSL",
            "kafka_ca_file": str(self.folder / "broker.pem"),
            "kafka_username": "alice",
            "kafka_password": Secret(PASSWORD),
        }
        return Settings(**{**right, **changes})


def guard(ports: dict[str, int], folder: Path) -> dict[str, str]:
    """Give the properties of the guarded listeners: nobody but the plain one's clients may use a topic."""
    keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "broker.both")}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "client.pem")}
    listeners: dict[str, dict[str, str]] = {
        "secure": {
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": login_module(),
            **keys,
        },
        "tokens": {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "oauthbearer.sasl.jaas.config": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        },
        "mutual": {"ssl.client.auth": "required", **keys, **trust},
    }
    return {
        "listeners": ",".join(f"{name.upper()}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "SECURE:SASL_SSL,TOKENS:SASL_PLAINTEXT,MUTUAL:SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **{f"listener.name.{name}.{key}": value for name, given in listeners.items() for key, value in given.items()},
    }


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    """One broker with a listener of each sort."""
    folder = tmp_path_factory.mktemp("guarded")
    for name in ("broker", "client", "stranger"):
        await make_certificate(folder, name)
    ports = {name: find_free_port() for name in ("secure", "tokens", "mutual")}
    options = BrokerOptions(data=folder / "kafka", port=find_free_port(), extra_properties=guard(ports, folder))
    async with run_broker(options) as broker:
        await create_topic(broker.address, TOPIC)
        addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        yield Guarded(plain=broker.address, folder=folder, **addresses)


async def refuse(settings: Settings) -> Misconfigured | RetryLater:
    """Give the error that a check ends with."""
    with pytest.raises((Misconfigured, RetryLater)) as told:
        await check_broker(settings)
    assert len(str(told.value).splitlines()) == 1
    return told.value


def token(lifetime_seconds: int) -> str:
    """Make a token without a signature, which a broker without an issuer takes."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "alice", "iat": now - 60, "exp": now + lifetime_seconds})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@asynccontextmanager
async def started(client: Any) -> AsyncGenerator[Any]:
    """Use a client and leave it closed, also when it could not start."""
    try:
        await client.start()
        yield client
    finally:
        await (client.close() if hasattr(client, "close") else client.stop())


async def test_who_knows_the_password_is_let_in(guarded: Guarded) -> None:
    """By the check, and by every sort of client with the same options; the password may come from a file.

    What its user may not use is not listed to anybody.
    """
    file = guarded.folder / "password"
    file.write_text(PASSWORD + "\n")
    from_file = guarded.login(kafka_password=Secret(), kafka_password_file=str(file))

    await check_broker(guarded.login())
    await check_broker(from_file)
    options = kafka_options(from_file)
    async with (
        started(_kafka.AIOKafkaConsumer(**options)) as consumer,
        started(_kafka.AIOKafkaProducer(**options)),
        started(_admin.AIOKafkaAdminClient(**options)) as admin,
    ):
        assert await consumer.topics() == set(await admin.list_topics()) == set()


async def test_one_broker_that_answers_is_enough(guarded: Guarded) -> None:
    """A cluster with a dead broker is a cluster."""
    await check_broker(guarded.login(kafka_servers=f"127.0.0.1:{find_free_port()},{guarded.secure}"))


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        (
            {"kafka_password": Secret("wrong")},
            "refuses user 'alice' (Authentication failed: Invalid username or password);",
        ),
        ({"kafka_username": "bob"}, "refuses user 'bob' ("),
        ({"kafka_sasl_mechanism": "SCRAM-SHA-256"}, "does not take SCRAM-SHA-256; set kafka_sasl_mechanism"),
        ({"kafka_ca_file": ""}, "shows a certificate of an unknown CA (self-signed certificate); set kafka_ca_file"),
        ({"kafka_ca_file": "{folder}/stranger.pem"}, "shows a certificate of an unknown CA ("),
        ({"kafka_servers": "localhost:{port}"}, "shows a certificate for another name ("),
    ],
)
async def test_who_is_wrong_is_told_what_to_change(guarded: Guarded, changes: dict[str, Any], phrase: str) -> None:
    """A person must act: exit code 2; no sentence has a password."""
    port = guarded.secure.rpartition(":")[2]
    filled: dict[str, Any] = {
        k: v.format(folder=guarded.folder, port=port) if isinstance(v, str) else v for k, v in changes.items()
    }
    told = await refuse(guarded.login(**filled))

    assert phrase in str(told)
    assert code_of(told) == WRONG
    assert PASSWORD not in str(told)


async def test_a_wrong_password_counts_more_than_a_dead_broker(guarded: Guarded) -> None:
    """Waiting would not help."""
    servers = f"127.0.0.1:{find_free_port()},{guarded.secure}"
    told = await refuse(guarded.login(kafka_servers=servers, kafka_password=Secret("wrong")))

    assert code_of(told) == WRONG


async def test_nobody_there_is_told_as_such() -> None:
    """The same command may succeed later: exit code 3."""
    server = f"127.0.0.1:{find_free_port()}"
    told = await refuse(Settings(kafka_servers=server))

    assert str(told).startswith(f"no Kafka broker answers at {server} (")
    assert str(told).endswith("; start one, for a trial with 'dormice dev --kafka', or set kafka_servers")
    assert code_of(told) == UNREACHABLE


async def test_a_program_that_hangs_up_is_no_broker_of_this_sort() -> None:
    """The sentence leads to the protocol, which is what most often differs."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, family=socket.AF_INET) as server:
        port = server.sockets[0].getsockname()[1]
        told = await refuse(Settings(kafka_servers=f"127.0.0.1:{port}"))

    assert (
        "closes the connection; try again, and if it goes on doing so check that its listener speaks PLAINTEXT"
        in str(told)
    )
    assert code_of(told) == UNREACHABLE


PROTOCOLS: list[tuple[str, dict[str, Any], str]] = [
    ("secure", {}, "closes the connection"),
    ("tokens", {}, "closes the connection"),
    ("plain", {"kafka_security_protocol": "SSL"}, "closes the connection"),
    (
        "plain",
        {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_username": "alice", "kafka_password": Secret("x")},
        "takes no login on this port",
    ),
]


@pytest.mark.parametrize(("listener", "changes", "phrase"), PROTOCOLS)
async def test_a_protocol_that_the_listener_does_not_speak_is_told(
    guarded: Guarded, listener: str, changes: dict[str, Any], phrase: str
) -> None:
    """Also where a listener answers the first question of anybody."""
    told = await refuse(Settings(kafka_servers=getattr(guarded, listener), **changes))

    assert phrase in str(told)
    assert "kafka_security_protocol" in str(told)


async def test_a_token_is_read_anew_at_each_login(guarded: Guarded) -> None:
    """Whoever renews the token writes it into the file; an expired one is reported."""
    file = guarded.folder / "token"
    file.write_text(token(-30))
    settings = Settings(
        kafka_servers=guarded.tokens,
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="OAUTHBEARER",
        kafka_token_file=str(file),
    )
    options = kafka_options(settings)
    told = await refuse(settings)
    file.write_text(token(3600))

    assert "renew the token in kafka_token_file" in str(told)
    assert code_of(told) == WRONG
    await check_broker(settings)
    async with started(_kafka.AIOKafkaProducer(**options)):
        pass


async def test_a_certificate_of_ours_lets_us_in(guarded: Guarded) -> None:
    """Where the listener asks for one; without it, and with a stranger's, the sentence says so."""
    trusting = Settings(
        kafka_servers=guarded.mutual,
        kafka_security_protocol="SSL",
        kafka_ca_file=str(guarded.folder / "broker.pem"),
    )

    def show(name: str) -> Settings:
        files = {
            f"kafka_{what}_file": str(guarded.folder / f"{name}.{end}")
            for what, end in (("certificate", "pem"), ("key", "key"))
        }
        return dataclasses.replace(trusting, **files)

    nothing = await refuse(trusting)
    stranger = await refuse(show("stranger"))

    await check_broker(show("client"))
    assert "asks for a certificate of ours (" in str(nothing)
    assert "refuses our certificate (" in str(stranger)
    assert (code_of(nothing), code_of(stranger)) == (WRONG, WRONG)


async def test_what_a_user_may_not_use_is_named(guarded: Guarded) -> None:
    """The topic or the group, and the user."""
    settings = guarded.login()
    options = kafka_options(settings)

    async with started(_kafka.AIOKafkaProducer(**options)) as producer:
        with pytest.raises(_errors.TopicAuthorizationFailedError) as topic:
            await producer.send_and_wait(TOPIC, b"x")
    async with started(_kafka.AIOKafkaConsumer(group_id="ours", **options)) as consumer:
        consumer.assign([_kafka.TopicPartition(TOPIC, 0)])
        with pytest.raises(_errors.GroupAuthorizationFailedError) as group:
            await consumer.committed(_kafka.TopicPartition(TOPIC, 0))
    told = [translate_kafka_error(found.value, settings) for found in (topic, group)]

    assert f"does not let user 'alice' use the topic {TOPIC}; have an ACL added" in str(told[0])
    assert "does not let user 'alice' use the consumer group ours; have an ACL added" in str(told[1])
    assert [code_of(each) for each in told] == [WRONG, WRONG]
