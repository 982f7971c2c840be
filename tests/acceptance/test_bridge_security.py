"""`dormice bridge` and a broker that wants TLS and a password: right ones are let in, wrong ones get advice."""

import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.settings import Settings
from starter.local.kafka.broker import BrokerOptions, run_broker
from starter.local.supervised_process import find_free_port
from starter.records.dead_letter_topic import LetterSelection, open_box
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import wait_until
from tests.support.certificates import PASSWORD, make_certificate, secure
from tests.support.records import producing
from tests.support.topics import committed_lag, create_topic

pytestmark = pytest.mark.xdist_group("bridge_security")  # what they share is made once


@dataclass(frozen=True, slots=True)
class Guarded:
    """The broker's address without and with protection, and the folder of the files that go with it."""

    plain: str
    secure: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What lets a bridge in."""
        return {
            "DORMICE_KAFKA_SERVERS": self.secure,
            "DORMICE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "DORMICE_KAFKA_CA_FILE": str(self.folder / "broker.pem"),
            "DORMICE_KAFKA_USERNAME": "alice",
            "DORMICE_KAFKA_PASSWORD_FILE": str(self.folder / "password"),
        }


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    """A broker with a listener of either sort."""
    folder = tmp_path_factory.mktemp("guarded")
    port = find_free_port()
    for name in ("broker", "stranger"):
        await make_certificate(folder, name)
    (folder / "password").write_text(PASSWORD + "\n", "utf-8")
    (folder / "wrong").write_text("wrong\n", "utf-8")
    properties = secure(port, folder / "broker.both")
    options = BrokerOptions(data=folder / "kafka", port=find_free_port(), extra_properties=properties)
    async with run_broker(options) as broker:
        yield Guarded(broker.address, f"127.0.0.1:{port}", folder)


async def test_a_bridge_with_the_right_password_works_over_tls(
    spawn: Spawn, environment: dict[str, str], guarded: Guarded, settings: Settings
) -> None:
    """Its consumer, its commits and its dead letters all go through the same door."""
    topic = settings.task_queue_prefix
    await create_topic(guarded.plain, topic)
    async with producing(guarded.plain) as producer:
        for value in (b"1", b"{", b"2"):
            await producer.send_and_wait(topic, value, key=b"a")
    bridge = await spawn(
        *("bridge", topic, "--group", topic, "--kind", "noted", "--id-from", "key"),
        env={**environment, **guarded.environment},
    )

    async def is_committed() -> bool:
        return await committed_lag(guarded.plain, topic, topic) == 0

    await wait_until(is_committed, "all records are dealt with")
    bridge.send_signal(signal.SIGTERM)
    _, talk = await bridge.communicate()
    async with open_box({"bootstrap_servers": guarded.plain}, topic) as box:
        letters = [letter async for letter, _ in box.find(LetterSelection())]

    assert bridge.returncode == 0, talk
    assert PASSWORD.encode() not in talk
    assert [letter.record.value for letter in letters] == [b"{"]


@pytest.mark.parametrize(
    ("setting", "file", "phrase"),
    [
        ("kafka_password_file", "wrong", "refuses user 'alice' ("),
        ("kafka_ca_file", "stranger.pem", "shows a certificate of an unknown CA ("),
    ],
)
async def test_a_wrong_password_and_an_unknown_ca_are_told_in_one_sentence(
    run: Run, guarded: Guarded, setting: str, file: str, phrase: str
) -> None:
    """Exit code 2, and the sentence names the setting to correct."""
    changed = {f"DORMICE_{setting.upper()}": str(guarded.folder / file)}
    ran = await run("bridge", "any", **{**guarded.environment, **changed})

    assert (ran.code, ran.out) == (2, "")
    (told,) = ran.err.splitlines()
    assert told.startswith("dormice: the Kafka broker at ")
    assert phrase in told
    assert setting in told
