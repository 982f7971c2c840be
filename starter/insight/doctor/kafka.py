"""The doctor's checks of Kafka: the broker, the topics of bridges, their dead letters, and the outcomes topic."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.kafka.connection import check_broker, kafka_options
from shared.kafka.safe_producer import BrokerError, open_admin
from shared.settings import Settings
from starter.insight.doctor.checks import NOT_LOOKED_AT, Check, Finding, Found, Severity, fine, unknown, warning, wrong
from starter.local.terminal import plural
from starter.records.dead_letters import SUFFIX, make_topic

IN_SYNC = "min.insync.replicas"
REPLICAS_WANTED = 3
NOT_ASKED = unknown(f"{NOT_LOOKED_AT}, no topic is named", "name what bridges consume with --topic")
BRING_BACK = "bring back the brokers that hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the broker describes it; `replicas` and `in_sync` are the smallest numbers of any partition."""

    name: str
    partitions: int
    leaderless: int
    replicas: int
    in_sync: int
    min_in_sync: int
    """How many replicas must have a record before it counts as sent."""


class Kafka:
    """Looks at Kafka if it is used: if topics are named, or an outcomes topic is set."""

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self._settings = settings
        self._sources = topics
        self._known: Mapping[str, Topic] = {}

    def checks(self) -> list[Check]:
        """Give the checks, in order."""
        return [
            Check("broker", self._check_broker),
            Check("topic", self._check_topics, ("broker",)),
            Check("dead letters", self._check_dead_letters, ("broker",)),
            Check("outcomes", self._check_outcomes, ("broker",)),
        ]

    async def _check_broker(self) -> Finding:
        outcomes = self._settings.outcomes_topic
        if not self._sources and not outcomes and self._settings.kafka_servers == Settings().kafka_servers:
            return NOT_ASKED

        # the finding says in one sentence what the client logs about a missing broker
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        options = kafka_options(self._settings)
        await check_broker(self._settings)
        wanted = {*self._sources, *(source + SUFFIX for source in self._sources), *filter(None, [outcomes])}

        async with open_admin(options) as admin:
            self._known = await _describe(admin, wanted)

        return fine(f"a broker answers at {self._settings.kafka_servers}")

    async def _check_topics(self) -> Found:
        return [self._check(name, "bridges wait for it") for name in self._sources] or NOT_ASKED

    async def _check_dead_letters(self) -> Found:
        findings: list[Finding] = []
        for source in self._sources:
            if source + SUFFIX in self._known:
                findings.append(check_topic(self._known[source + SUFFIX]))
            elif source in self._known:
                findings.append(await self._try_to_make(source))
        return findings or NOT_ASKED

    async def _check_outcomes(self) -> Finding:
        if not self._settings.outcomes_topic:
            return fine("nobody is told outcomes: outcomes_topic is not set")
        return self._check(self._settings.outcomes_topic, "workers hold events in memory, and lose them in the end")

    def _check(self, name: str, lost: str) -> Finding:
        if name in self._known:
            return check_topic(self._known[name])
        command = (
            f"kafka-topics.sh --bootstrap-server {self._settings.kafka_servers} --create --topic {name} "
            f"--partitions 6 --replication-factor {REPLICAS_WANTED} --config {IN_SYNC}=2"
        )
        return wrong(f"there is no such topic, or this user may not see it: {lost}", f"allow it, or: {command}", name)

    async def _try_to_make(self, source: str) -> Finding:
        topic = source + SUFFIX
        try:
            async with open_admin(kafka_options(self._settings), topic) as admin:
                await make_topic(admin, topic, self._known[source].partitions, is_trial=True)
        except BrokerError as exc:
            return replace(Finding.of(exc, topic), level=Severity.WRONG)
        return fine("can be made, with the first dead letter", about=topic)


def check_topic(topic: Topic) -> Finding:
    """Find out whether a topic takes records, and whether it survives the loss of a broker."""
    name = topic.name
    copies = f"{plural(topic.replicas, 'replica')}, {topic.in_sync} in sync, {IN_SYNC} {topic.min_in_sync}"
    seen = f"{plural(topic.partitions, 'partition')}, {copies}"
    if topic.leaderless:
        return wrong(f"{seen}: {plural(topic.leaderless, 'partition')} without a leader", f"{BRING_BACK} them", name)

    if topic.in_sync < topic.min_in_sync:
        remedy = f"{BRING_BACK} the others"
        if topic.replicas < topic.min_in_sync:
            remedy = f"set {IN_SYNC} to {max(topic.replicas - 1, 1)}, or give it more replicas"
        return wrong(f"{seen}: takes no record that has to be safe", remedy, name)

    if topic.replicas == 1:
        remedy = f"give it {REPLICAS_WANTED} replicas and {IN_SYNC} 2 (kafka-reassign-partitions.sh), "
        remedy += "unless one machine is all there is"
        return warning(f"{seen}: a disk that is lost takes its records along", remedy, name)

    if topic.in_sync < topic.replicas:
        return warning(f"{seen}: not all replicas are there", f"{BRING_BACK} the others", name)
    if topic.min_in_sync == 1:
        return warning(f"{seen}: a record counts as sent when one broker has it", f"set {IN_SYNC} to 2", name)
    return fine(seen, about=name)


async def _describe(admin: Any, wanted: set[str]) -> dict[str, Topic]:
    """Describe the wanted topics that exist; asking for a topic by its name would create it on some brokers."""
    described = [topic for topic in await admin.describe_topics() if topic["topic"] in wanted]
    minimum = await _read_min_in_sync(admin, [topic["topic"] for topic in described])
    return {
        topic["topic"]: Topic(
            name=topic["topic"],
            partitions=len(topic["partitions"]),
            leaderless=sum(partition["leader"] < 0 for partition in topic["partitions"]),
            replicas=min(len(partition["replicas"]) for partition in topic["partitions"]),
            in_sync=min(len(partition["isr"]) for partition in topic["partitions"]),
            min_in_sync=minimum.get(topic["topic"], 1),
        )
        for topic in described
    }


async def _read_min_in_sync(admin: Any, names: Sequence[str]) -> dict[str, int]:
    """Give min.insync.replicas of topics; those whose configuration this user may not see are left out."""
    resource: Any = importlib.import_module("aiokafka.admin.config_resource").ConfigResource
    if not names:
        return {}

    answers = await admin.describe_configs([resource("topic", name, {IN_SYNC: None}) for name in names])
    return {
        name: int(entry[1])
        for answer in answers
        for code, _, _, name, entries in answer.resources
        if not code
        for entry in entries
        if entry[0] == IN_SYNC
    }
