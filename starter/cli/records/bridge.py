"""The command `bridge`."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from click import Choice, argument, option

from shared.errors import InvalidSetting, check_extra
from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import (
    DURATION,
    MOMENT,
    SECONDS,
    Arguments,
    complete_second_word,
    field_ref_options,
    read_format,
    read_mapping,
    read_seconds,
)
from starter.cli.interruption import drain_at_signal
from starter.cli.program import program
from starter.local.terminal import echo_err
from worker.options import health_options

if TYPE_CHECKING:
    from starter.bridge.bridge import Bridge, BridgeOptions
    from starter.records.dead_letters import DeadLetterWriter
    from starter.records.mapping import FormatOptions

BRIDGE_HELP = """\
A record is an envelope as JSON, or a CloudEvent, or with --id-from any JSON: its parts fill the envelope. A part is
header:NAME or a JSON pointer like /user/id; --id-from takes key too, and key:/id for a part of it. A record with a
null value stops its message. With --format debezium a record is a change of a table: its row is the payload, its key
the id, and a deleted row stops its message. With --format scheduler-headers a record is a schedule of
kafka-message-scheduler, and becomes a message of kind topic.

Offsets are committed when the server has what their records asked for. A record that can't become a message goes to
TOPIC.dead-letters, see 'dormice dead-letters'. SIGTERM and Ctrl-C drain, a second one leaves at once."""

COLLECT_AFTER = (100_000, 10, 2)
"""Thresholds of Python's cycle collector: the window has several times more objects, none of them in a cycle."""


@program.command("bridge", epilog=BRIDGE_HELP, prints_data=False)
@argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_second_word, help="what to consume"
)
@option("--group", default="dormice", help="consumer group; its bridges share the partitions (dormice)")
@option("--member", metavar="NAME", help="static member: keeps its partitions over a short restart")
@option("--kind", help="kind of all records, or where it is")
@option("--id-from", metavar="key|key:/PART|PART", help="where a message's id is; makes records any JSON")
@field_ref_options("Options")
@option("--format", type=Choice(("debezium", "scheduler-headers")), help="what all records are, other than the above")
@option("--history-topic", metavar="TOPIC", help="gets a copy of each record that a schedule sends")
@option(
    "--grace",
    **DURATION,
    help="delete schedules whose moment is further before their record, instead of sending them at once",
)
@option("--due-since", **MOMENT, help="leave out schedules whose moment is before then: others have sent them")
@option("--drain-seconds", **SECONDS, default=30.0, help="what is under way gets to finish (30)")
@option("--session-seconds", **SECONDS, default=30.0, help="silent for so long, a bridge is dead (30)")
@health_options("/healthz, /readyz and /status")
def run(args: Arguments, settings: Settings) -> int:
    """Turn the records of Kafka topics into messages until SIGTERM or Ctrl-C."""
    from shared.telemetry.logs import set_up_logs
    from worker.process import new_event_loop

    set_up_logs(settings)
    check_extra("kafka", "the bridge", "aiokafka")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_consume(args, settings))


async def _consume(args: Arguments, settings: Settings) -> int:
    from activities.registry import declared_packs, envelope_rules, load_registry
    from shared.kafka.connection import check_broker
    from shared.telemetry.sdk import start_telemetry
    from shared.temporal.connect import check_server, connect
    from starter.bridge.bridge import Bridge
    from starter.bridge.status import BridgeReadiness, publish_regularly
    from starter.bridge.window import PACK_ROOM
    from starter.records.dead_letters import DeadLetterWriter
    from starter.records.formats import Formats
    from starter.starting.bulk import BulkStarter
    from worker.health import open_endpoint, watch_server
    from worker.main import alongside
    from worker.process import tune_memory

    registry = load_registry(settings)
    options = _to_options(args, settings)
    formats = Formats(_read_format(args), envelope_rules(settings, registry))
    stopping = asyncio.Event()
    readiness = BridgeReadiness(stopping.is_set)
    address = None if args.health_port is None else (args.health_host, args.health_port)
    with start_telemetry(settings, "dormice-bridge") as telemetry:
        async with open_endpoint(address, readiness.report, {"/status": readiness.report_status}):
            client = await connect(settings)
            await check_server(client)
            await check_broker(settings)
            await _check_topics(options, args.history_topic)
            room = replace(settings, pack_room=min(settings.pack_room, PACK_ROOM))
            starter = BulkStarter(client, room, encodings=declared_packs(registry), revises=True)
            writer = DeadLetterWriter(dict(options.client))
            bridge = Bridge(options, formats, starter, writer.write, telemetry)
            readiness.bridge = bridge
            tune_memory(COLLECT_AFTER)
            async with alongside(watch_server(client, readiness, telemetry), publish_regularly(bridge, telemetry)):
                await _serve(bridge, writer, stopping, settings)
    echo_err("drained; everything that was received and accepted is committed")
    return FINE


async def _serve(bridge: "Bridge", writer: "DeadLetterWriter", stopping: asyncio.Event, settings: Settings) -> None:
    from aiokafka.errors import KafkaError

    from shared.kafka.connection import translate_kafka_error

    try:
        await writer.start()
        drain_at_signal(stopping)
        await bridge.run(stopping)
    except KafkaError as exc:
        raise translate_kafka_error(exc, settings) from exc
    finally:
        await writer.stop()


def _read_format(args: Arguments) -> "FormatOptions":
    from starter.records.mapping import FormatOptions
    from starter.records.producers.schedules import FORMAT, ScheduleOptions

    if args.format != FORMAT:
        for name in ("history-topic", "grace", "due-since"):
            if getattr(args, name.replace("-", "_")) is not None:
                raise InvalidSetting(f"--{name}: is about schedules; add --format {FORMAT}, or leave it out")
        if args.format is None:
            return read_format(args)
        return FormatOptions.of_changes(kind=args.kind, **read_mapping(args))

    if args.history_topic in args.topics:
        flaw = f"is {args.history_topic}, where each copy would be a schedule again; name another topic"
        raise InvalidSetting(f"--history-topic: {flaw}")
    schedules = ScheduleOptions(history_topic=args.history_topic or "", grace=args.grace, due_since=args.due_since)
    return FormatOptions.of_schedules(args.kind or "topic", schedules, **read_mapping(args))


async def _check_topics(options: "BridgeOptions", history_topic: str | None) -> None:
    """Refuse topics that do not exist: a consumer would wait for them silently, and copies would be late."""
    from shared.kafka.safe_producer import list_topics, open_admin

    async with open_admin(options.client) as admin:
        await list_topics(admin, *options.topics)
        if history_topic is not None:
            await list_topics(admin, history_topic, named_by="--history-topic")


def _to_options(args: Arguments, settings: Settings) -> "BridgeOptions":
    from shared.kafka.connection import kafka_options
    from starter.bridge.bridge import BridgeOptions

    return BridgeOptions(
        topics=args.topics,
        group=args.group,
        member=args.member,
        client=kafka_options(settings),
        drain=read_seconds("drain-seconds", args.drain_seconds),
        session=read_seconds("session-seconds", args.session_seconds),
    )
