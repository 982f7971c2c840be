"""The command `bridge status`."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from click import argument, option

from shared.exit import FINE, UNREACHABLE
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import Arguments
from starter.cli.connection import check_kafka
from starter.cli.program import program
from starter.local.terminal import echo_err, plural, print_fields, print_json, print_table

if TYPE_CHECKING:
    from starter.bridge.group_lag import GroupLag, PartitionLag
    from starter.bridge.status_document import BridgeStatus, PartitionStatus

_HEADER = ("PARTITION", "COMMITTED", "END", "LAG", "TIME LAG", "MEMBER")
_HEADER_OF_BRIDGES = ("IN FLIGHT", "WAITING", "OLDEST", "STATE")

BRIDGE_STATUS_HELP = """\
Lag is counted from what the group has committed. The time lag is the age of the record there, by its own timestamp.
A topic that is really called "status" is bridged with 'dormice bridge -- status'."""


Answers = dict[str, "BridgeStatus | str"]
"""The answers of the bridges named with `--bridge`, by address; a sentence where no bridge answers."""


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"is {text!r}; write HOST:PORT, for example localhost:8080")
    return text


@program.command("bridge status", epilog=BRIDGE_STATUS_HELP)
@argument("topics", metavar="TOPIC...", nargs=-1, required=True, help="what the group consumes")
@option("--group", default="dormice", help="consumer group (dormice)")
@option(
    "bridges",
    "--bridge",
    metavar="HOST:PORT",
    type=_address,
    multiple=True,
    help="ask a bridge that runs with --health-port, too; may be repeated",
)
async def run(args: Arguments, settings: Settings) -> int:
    """Show how far a group is behind, and what its bridges are about."""
    options = await check_kafka(settings)
    # needs aiokafka, of which one sentence says that it is missing
    from starter.bridge.group_lag import read_group_lag
    from starter.bridge.status_document import fetch_status

    lag = await read_group_lag(options, args.group, args.topics)
    statuses = await asyncio.gather(*map(fetch_status, args.bridges))
    answered = (f"--bridge: {status}" if isinstance(status, str) else status for status in statuses)
    answers: Answers = dict(zip(args.bridges, answered, strict=True))
    if args.json:
        print_json(_to_document(lag, answers))
    else:
        _print(lag, answers)
    away = [answer for answer in answers.values() if isinstance(answer, str)]
    for answer in away:
        echo_err(f"dormice: {answer}")
    return UNREACHABLE if away else FINE


def _to_document(lag: "GroupLag", answers: Answers) -> dict[str, Any]:
    return {
        **asdict(lag),
        "lag": lag.lag,
        "time_lag_seconds": lag.time_lag_seconds,
        "bridges": [
            {"address": address, **({"error": answer} if isinstance(answer, str) else asdict(answer))}
            for address, answer in answers.items()
        ],
    }


def _print(lag: "GroupLag", answers: Answers) -> None:
    answered = {address: answer for address, answer in answers.items() if not isinstance(answer, str)}
    held = {(each.topic, each.number): each for status in answered.values() for each in status.partitions}
    header = (*_HEADER, *_HEADER_OF_BRIDGES) if answered else _HEADER
    rows = ((*_to_cells(each), *_to_more_cells(held.get((each.topic, each.number)))) for each in lag.partitions)
    print_table(header, (row[: len(header)] for row in rows))
    late = f", the oldest for {format_seconds(lag.time_lag_seconds)}" if lag.lag else ""
    echo_err(f"group {lag.group} ({lag.state}): {plural(lag.lag, 'record')} to go{late}")

    for partition in lag.partitions:
        if partition.flaw:
            echo_err(f"dormice: {partition.flaw}")

    for address, status in answered.items():
        print_fields(_to_fields(address, status))


def _to_cells(lag: "PartitionLag") -> Sequence[str]:
    committed = "-" if lag.committed is None else str(lag.committed)
    age = format_seconds(lag.time_lag_seconds) if lag.lag else "-"
    return f"{lag.topic}/{lag.number}", committed, str(lag.end), str(lag.lag), age, lag.member or "-"


def _to_more_cells(status: "PartitionStatus | None") -> Sequence[str]:
    if status is None:
        return ("-",) * len(_HEADER_OF_BRIDGES)
    oldest = status.oldest_unacknowledged_seconds
    state = "blocked" if status.blocked else "paused" if status.is_paused else "open"
    return str(status.in_flight), str(status.waiting), format_seconds(oldest) if oldest else "-", state


def _to_fields(address: str, status: "BridgeStatus") -> Iterator[tuple[str, str]]:
    outcomes = ", ".join(f"{name} {count:,}" for name, count in status.outcomes.items() if count)
    yield "bridge", f"{address}, {plural(len(status.partitions), 'partition')}"
    yield "received", f"{status.received:,}"
    yield "outcomes", outcomes or "-"
    yield "calls", f"throttled {status.throttled:,}, retried {status.retried:,}"
    yield "group", f"rebalances {status.rebalances:,}, commit failures {status.commit_failures:,}"
    for partition in status.partitions:
        if partition.blocked:
            yield "blocked", f"{partition.topic}/{partition.number}: {partition.blocked}"
