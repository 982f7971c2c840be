"""Starts a message for each one of a queue of RabbitMQ, for producers that go on writing `x-delay` or `expiration`.

A message is acknowledged once the server has stored it. What can't be one goes to the queue NAME.rejected.
"""

import argparse
import asyncio
import os
import sys
import time
from typing import Any

import pika
from pika.exceptions import AMQPError

from examples.moving_in.exchange import find_member, read_json, to_line
from examples.moving_in.rabbitmq_delays import find_id
from shared.errors import DormiceError, GiveUp, IdempotencyKeyReused, MessageAlive
from shared.settings import load_settings
from starter.cli.connection import open_control
from starter.control import Control

IDLE_SECONDS = 1.0
UNACKNOWLEDGED_MAX = 100


def main() -> int:
    """Forward until Ctrl-C, or with --once until the queue is empty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="such as amqp://USER:PASSWORD@localhost:5672/%%2F")
    parser.add_argument("queue")
    parser.add_argument("--kind", required=True)
    parser.add_argument("--once", action="store_true", help="end when the queue is empty")

    args = parser.parse_args()
    try:
        with asyncio.Runner() as runner:
            forward(args, runner, runner.run(open_control(load_settings(environ=os.environ))))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what is not acknowledged is still in the queue\n")
        return 130
    except (AMQPError, DormiceError, ValueError) as exc:
        sys.stderr.write(f"rabbitmq_forward: {str(exc) or repr(exc)}\n")
        return 2

    return 0


def forward(args: argparse.Namespace, runner: asyncio.Runner, control: Control) -> None:
    """Forward; what is not acknowledged when this ends comes again, and starts nothing twice."""
    connection: Any = pika.BlockingConnection(pika.URLParameters(args.url))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=UNACKNOWLEDGED_MAX)
        channel.queue_declare(f"{args.queue}.rejected", durable=True)

        for method, properties, body in channel.consume(args.queue, inactivity_timeout=IDLE_SECONDS):
            if method is None and args.once:
                return
            if method is not None:
                if reason := runner.run(start(control, args.kind, properties, body)):
                    properties.headers = {**(properties.headers or {}), "x-reason": reason}
                    channel.basic_publish("", f"{args.queue}.rejected", body, properties)
                channel.basic_ack(method.delivery_tag)
    finally:
        connection.close()


async def start(control: Control, kind: str, properties: Any, body: bytes) -> str:
    """Start one message, which its id names; gives why it can't be one, or ""."""
    try:
        payload = read_json(body)
        delay = find_member(properties.headers, "x-delay")
        message_id = find_id(properties, payload)
        due = (properties.timestamp or time.time()) + float(delay or properties.expiration or 0) / 1000
        await control.start(to_line(kind, message_id or "", due, payload, idempotency_key=message_id))
    except (MessageAlive, IdempotencyKeyReused):
        # it has come again; without a timestamp of its own it has another moment then
        return ""
    except (GiveUp, ValueError, OverflowError, TypeError) as exc:
        return str(exc)

    return ""


if __name__ == "__main__":
    os._exit(main())  # a Temporal client that has lived shortly may crash at the interpreter's own exit
