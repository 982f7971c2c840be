"""Exports messages that wait in RabbitMQ's queues for their time to live, and puts messages back.

An export takes the messages of a queue without acknowledging them, and gives all back when it ends or dies; RabbitMQ
keeps their places and moments. They can't become due meanwhile, so do it when seconds don't matter. With --take, those
that are in the file are acknowledged once it is on disk: then they are in the file alone.
"""

import argparse
import json
import time
from collections.abc import Generator, Iterator
from typing import Any

import pika
from pika.exceptions import AMQPError

from examples.moving_in.exchange import (
    ALWAYS,
    Complete,
    LeftOut,
    Line,
    Program,
    WrongInput,
    due_of,
    find_member,
    name_of,
    read_json,
    to_line,
)

EXPIRATION_MAX_MS = 2**32 - 1  # 49.7 days


def read_queue(text: str) -> tuple[str, float | None]:
    """Read QUEUE or QUEUE=SECONDS."""
    name, _, seconds = text.partition("=")
    return name, float(seconds) if seconds else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say where the queues are; clients can't read how long messages live in one."""
    parser.add_argument("url", help="such as amqp://USER:PASSWORD@localhost:5672/%%2F")
    help_text = "a queue, with its x-message-ttl in seconds if it has one; may be repeated"
    parser.add_argument(
        "--queue", action="append", type=read_queue, required=True, metavar="NAME[=TTL]", help=help_text
    )
    parser.add_argument("--kind", default="", help="kind of the messages")
    parser.add_argument("--take", action="store_true", help="remove what is exported from its queue")


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give a message for each one that has an id of its own."""
    if args.take and args.due_from != ALWAYS:
        raise WrongInput("--take: is for the last export, of all there is; leave --due-from out")
    if args.take and args.to.exists():
        raise WrongInput(f"{args.to}: is there already, and may be the only copy of what it holds; give another name")

    connection: Any = pika.BlockingConnection(pika.URLParameters(args.url))
    try:
        channel = connection.channel()
        taken = list[int]()

        for queue, ttl in args.queue:
            for number in range(channel.queue_declare(queue, passive=True).method.message_count):
                method, properties, body = channel.basic_get(queue)
                if method is None:  # due meanwhile: it is in another queue
                    break

                name = f"message {number + 1} of {queue}"
                try:
                    line = _to_line(args, name, ttl, properties, body)
                except (ValueError, OverflowError, TypeError) as exc:
                    line = LeftOut(name, str(exc))

                if line is not None:
                    taken += [method.delivery_tag] if isinstance(line, dict) else []
                    yield line

        if args.take:
            yield Complete()
            for tag in taken:
                channel.basic_ack(tag)
    finally:
        connection.close()


def find_id(properties: Any, payload: Any) -> Any:
    """Give what names a message: its property message_id, else the member `id` of its body; None without a name."""
    message_id = properties.message_id or find_member(payload, "id")
    return message_id if isinstance(message_id, str) or type(message_id) is int else None


def _to_line(args: argparse.Namespace, name: str, ttl: float | None, properties: Any, body: bytes) -> Line | None:
    payload = read_json(body)
    message_id = find_id(properties, payload)
    lives = [seconds for seconds in (ttl, float(properties.expiration or "nan") / 1000) if seconds and seconds >= 0]
    if message_id is None:
        return LeftOut(name, "has no property message_id and no id in its body; nothing tells it from others")
    if not lives:
        return to_line(args.kind, message_id, None, payload)
    if properties.timestamp is not None:
        return to_line(args.kind, message_id, properties.timestamp + min(lives), payload)
    if args.due_from == ALWAYS:  # late rather than early, and not while the old system runs
        return to_line(args.kind, message_id, time.time() + min(lives), payload)

    return None


def put_back(args: argparse.Namespace, lines: Iterator[dict[str, Any]]) -> Iterator[LeftOut]:
    """Publish all in one transaction to one empty queue, the earliest first: RabbitMQ looks at the first one alone."""
    connection: Any = pika.BlockingConnection(pika.URLParameters(args.url))
    (queue, _), *_ = args.queue

    try:
        channel = connection.channel()
        if channel.queue_declare(queue, passive=True).method.message_count:
            raise WrongInput(f"{queue}: holds messages already; give an empty queue, so that nothing comes twice")

        channel.tx_select()
        for line in sorted(lines, key=due_of):
            left_ms = max(0, round((due_of(line).timestamp() - time.time()) * 1000))
            if left_ms > EXPIRATION_MAX_MS:
                yield LeftOut(name_of(line), "is due in more than 49 days, for which RabbitMQ keeps nothing")
                continue
            persistent: Any = {"delivery_mode": 2, "message_id": line["id"], "timestamp": int(time.time())}
            properties = pika.BasicProperties(expiration=str(left_ms), **persistent)
            channel.basic_publish("", queue, json.dumps(line["payload"]), properties)

        channel.tx_commit()
    finally:
        connection.close()


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, put_back, (AMQPError, ValueError)).main()
