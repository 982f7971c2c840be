"""The doctor's checks of Kafka: the broker, the topics of bridges, their dead letters, and the outcomes topic."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.kafka.connection import check_broker, kafka_options
from shared.kafka.safe_producer import BrokerError, open_admin, translate_errors
from shared.settings import Settings
from starter.insight.doctor.checks import NOT_LOOKED_AT, Check
from starter.insight.doctor.finding import Finding, Severity
from starter.records.dead_letters import SUFFIX, make_topic
from starter.screen import plural

IN_SYNC = "min.insync.replicas"
REPLICAS_WANTED = 3
NOT_ASKED = [Finding(Severity.UNKNOWN, f"{NOT_LOOKED_AT}, no topic is named", "name what bridges consume with --topic")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the broker describes it; `replicas` and `in_sync` are the smallest numbers of any partition."""

    name: str
    partitions: int
    leaderless: int
    replicas: int
    in_sync: int
    least_in_sync: int
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
            Check("broker", self._look_at_broker),
            Check("topic", self._look_at_topics, ("broker",)),
            Check("dead letters", self._look_at_dead_letters, ("broker",)),
            Check("outcomes", self._look_at_outcomes, ("broker",)),
        ]

    async def _look_at_broker(self) -> Sequence[Finding]:
        outcomes = self._settings.outcomes_topic
        if not self._sources and not outcomes and self._settings.kafka_servers == Settings().kafka_servers:
            return NOT_ASKED
        # the finding says in one sentence what the client logs about a missing broker
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        options = kafka_options(self._settings)
        await check_broker(self._settings)
        wanted = {*self._sources, *(source + SUFFIX for source in self._sources), *filter(None, [outcomes])}
        async with translate_errors(""), open_admin(options) as admin:
            self._known = await _describe(admin, wanted)
        return [Finding(Severity.FINE, f"a broker answers at {self._settings.kafka_servers}")]

    async def _look_at_topics(self) -> Sequence[Finding]:
        return [finding for name in self._sources for finding in self._judge(name, "bridges wait for it")] or NOT_ASKED

    async def _look_at_dead_letters(self) -> Sequence[Finding]:
        findings: list[Finding] = []
        for source in self._sources:
            if source + SUFFIX in self._known:
                findings += self._judge(source + SUFFIX)
            elif source in self._known:
                findings.append(await self._try_to_make(source))
        return findings or NOT_ASKED

    async def _look_at_outcomes(self) -> Sequence[Finding]:
        if not self._settings.outcomes_topic:
            return [Finding(Severity.FINE, "nobody is told outcomes: outcomes_topic is not set")]
        return self._judge(self._settings.outcomes_topic, "workers hold events in memory, and lose them in the end")

    def _judge(self, name: str, lost: str = "") -> list[Finding]:
        if name not in self._known:
            command = (
                f"kafka-topics.sh --bootstrap-server {self._settings.kafka_servers} --create --topic {name} "
                f"--partitions 6 --replication-factor {REPLICAS_WANTED} --config {IN_SYNC}=2"
            )
            seen = f"there is no such topic, or this user may not see it: {lost}"
            return [Finding(Severity.WRONG, seen, f"allow it, or: {command}", name)]
        return judge_topic(self._known[name])

    async def _try_to_make(self, source: str) -> Finding:
        topic = source + SUFFIX
        try:
            async with translate_errors(topic), open_admin(kafka_options(self._settings)) as admin:
                await make_topic(admin, topic, self._known[source].partitions, is_trial=True)
        except BrokerError as exc:
            return replace(Finding.of(exc, topic), level=Severity.WRONG)
        return Finding(Severity.FINE, "can be made, with the first dead letter", about=topic)


def judge_topic(topic: Topic) -> list[Finding]:
    """Find out whether a topic takes records, and whether it survives the loss of a broker."""
    copies = f"{plural(topic.replicas, 'replica')}, {topic.in_sync} in sync, {IN_SYNC} {topic.least_in_sync}"
    seen = f"{plural(topic.partitions, 'partition')}, {copies}"

    def find(level: Severity, what: str, remedy: str) -> Finding:
        return Finding(level, f"{seen}: {what}", remedy, topic.name)

    if topic.leaderless:
        return [
            find(
                Severity.WRONG,
                f"{plural(topic.leaderless, 'partition')} without a leader",
                "bring back the brokers that hold them",
            )
        ]
    if topic.in_sync < topic.least_in_sync:
        if topic.replicas < topic.least_in_sync:
            remedy = f"set {IN_SYNC} to {max(topic.replicas - 1, 1)}, or give it more replicas"
        else:
            remedy = "bring back the brokers that hold the others"
        return [find(Severity.WRONG, "takes no record that has to be safe", remedy)]
    if topic.replicas == 1:
        remedy = (
            f"give it {REPLICAS_WANTED} replicas and {IN_SYNC} 2 (kafka-reassign-partitions.sh), "
            "unless one machine is all there is"
        )
        return [find(Severity.WARNING, "a disk that is lost takes its records along", remedy)]
    if topic.in_sync < topic.replicas:
        return [find(Severity.WARNING, "not all replicas are there", "bring back the brokers that hold the others")]
    if topic.least_in_sync == 1:
        return [find(Severity.WARNING, "a record counts as sent when one broker has it", f"set {IN_SYNC} to 2")]
    return [Finding(Severity.FINE, seen, about=topic.name)]


async def _describe(admin: Any, wanted: set[str]) -> dict[str, Topic]:
    """Describe the wanted topics that exist; asking for a topic by its name would create it on some brokers."""
    described = [topic for topic in await admin.describe_topics() if topic["topic"] in wanted]
    least = await _read_least_in_sync(admin, [topic["topic"] for topic in described])
    found: dict[str, Topic] = {}
    for topic in described:
        name, partitions = topic["topic"], topic["partitions"]
        found[name] = Topic(
            name=name,
            partitions=len(partitions),
            leaderless=sum(partition["leader"] < 0 for partition in partitions),
            replicas=min(len(partition["replicas"]) for partition in partitions),
            in_sync=min(len(partition["isr"]) for partition in partitions),
            least_in_sync=least.get(name, 1),
        )
    return found


async def _read_least_in_sync(admin: Any, names: Sequence[str]) -> dict[str, int]:
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
