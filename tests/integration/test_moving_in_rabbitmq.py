"""Moving in from RabbitMQ: queues whose messages expire into others, and producers that write `x-delay`."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest

from starter.control import Control
from tests.conftest import Serve, wait_until
from tests.support.moving_in import CLOCK_SECONDS, Move, move_and_return, write_ledger
from tests.support.processes import run_to_end
from tests.support.rabbitmq import PROGRAM, run_rabbitmq

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.exists(), reason="no rabbitmq-server; ./run servers installs it"),
]


@pytest.fixture(scope="module")
async def rabbitmq() -> AsyncIterator[str]:
    """Where a RabbitMQ of this module's own is."""
    async with run_rabbitmq() as url:
        yield url


@contextlib.contextmanager
def open_channel(url: str) -> Generator[Any]:
    """Open a channel for a `with` block."""
    connection: Any = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


class OldConsumer:
    """A consumer of a queue, to which messages come from another queue when they have expired."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url = url
        self._ledger = ledger
        with open_channel(url) as channel:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
            channel.queue_declare("work", durable=True)
            channel.queue_declare("returned", durable=True, arguments=dead)
            channel.queue_declare("waiting", durable=True, arguments={**dead, "x-message-ttl": 86_400_000})

    def add(self, item: str, due: datetime) -> None:
        """Publish a message that expires when it is due; one that is due goes where it would come to."""
        left_ms = round((due.timestamp() - time.time()) * 1000)
        options: Any = {"message_id": item, "timestamp": int(time.time())}
        queue = "work"
        if left_ms > 0:
            queue = "waiting"
            options["expiration"] = str(left_ms)
        with open_channel(self._url) as channel:
            channel.basic_publish("", queue, json.dumps({"item": item}), pika.BasicProperties(**options))

    async def run_due(self, *, is_all: bool = False) -> None:
        """Consume what has come, or as if all had expired."""
        with open_channel(self._url) as channel:
            for queue in ("work", "waiting", "returned") if is_all else ("work",):
                while (found := channel.basic_get(queue))[0] is not None:
                    write_ledger(self._ledger, "old", json.loads(found[2])["item"])
                    channel.basic_ack(found[0].delivery_tag)

    def pending(self) -> dict[str, datetime]:
        """Give what waits in all queues."""
        due = dict[str, datetime]()
        with open_channel(self._url) as channel:  # whose end gives all back
            for queue in ("work", "waiting", "returned"):
                while (found := channel.basic_get(queue))[0] is not None:
                    moment = found[1].timestamp + float(found[1].expiration or 0) / 1000
                    due[json.loads(found[2])["item"]] = datetime.fromtimestamp(moment, UTC)
        return due


async def test_messages_that_wait_to_expire_move_in_and_back(
    move: Callable[..., Move], rabbitmq: str, control: Control, serve: Serve
) -> None:
    """While their consumer and producers go on; each runs once, by the one whose turn it is."""
    moving = move("From RabbitMQ", AMQP=rabbitmq)

    await move_and_return(moving, OldConsumer(rabbitmq, moving.ledger), control, serve, can_repeat=False)
    with open_channel(rabbitmq) as channel:
        channel.basic_publish("", "returned", "{}")
    code, _, err = await _run(
        moving, "put-back", rabbitmq, "--queue", "returned", "--from", "pending.jsonl", "--to", "b"
    )
    with open_channel(rabbitmq) as channel:
        channel.queue_purge("returned")

    assert (code, err.count("\n")) == (2, 1)
    assert "returned: holds messages already; give an empty queue, so that nothing comes twice" in err


async def test_an_export_changes_no_moment(move: Callable[..., Move], rabbitmq: str) -> None:
    """What it has held expires when it would have; what can't be carried over is listed and stays, also with --take."""
    moving = move("From RabbitMQ")
    with open_channel(rabbitmq) as channel:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "fallen"}
        channel.queue_declare("fallen")
        channel.queue_declare("falling", arguments={**dead, "x-message-ttl": 3000})
        for body in (b'{"id": 7}', b'{"id": 8}', b'"nameless"', b"\xff"):
            channel.basic_publish("", "falling", body)
        began = time.time()
        code, _, err = await _run(
            moving, "export", rabbitmq, "--queue", "falling=3", "--kind", "a", "--to", "out.jsonl"
        )
        lines = [json.loads(text) for text in (moving.folder / "out.jsonl").read_text().splitlines()]

        def count() -> int:
            return channel.queue_declare("fallen", passive=True).method.message_count

        await wait_until(lambda: count() == 4, "all have expired")
        took = time.time() - began
        taking = ("export", rabbitmq, "--queue", "fallen", "--kind", "a", "--take")
        taken, _, _ = await _run(moving, *taking, "--to", "taken.jsonl")
        again, _, is_there = await _run(moving, *taking, "--to", "taken.jsonl")
        refused, _, why = await _run(moving, *taking, "--to", "b", "--due-from", "2030-01-01T00:00:00Z")
        await wait_until(lambda: count() == 2, "what can't be carried over is back")
        channel.queue_delete("falling")
        channel.queue_delete("fallen")

    assert (code, taken, again, refused) == (1, 1, 2, 2)
    assert "left out: message 4 of falling: what it holds is no UTF-8 (byte 1)" in err
    assert "taken.jsonl: is there already, and may be the only copy of what it holds; give another name" in is_there
    assert "left out: message 3 of falling: has no property message_id and no id in its body" in err
    assert "leave --due-from out" in why
    assert [line["id"] for line in lines] == ["7", "8"]
    due = [datetime.fromisoformat(line["scheduled_at"]).timestamp() for line in lines]
    assert all(began + 3 <= moment <= began + took + 3 + CLOCK_SECONDS for moment in due)


async def test_producers_go_on_writing_x_delay(
    move: Callable[..., Move], rabbitmq: str, control: Control, serve: Serve, kind: str
) -> None:
    """Each message starts once, due after its delay; what can't be one lies in a queue beside, with the reason."""
    moving = move("From RabbitMQ", AMQP=rabbitmq)
    now = int(time.time())
    later = 3_600_000
    with open_channel(rabbitmq) as channel:
        channel.exchange_declare("delays", durable=True)
        channel.queue_declare("delayed", durable=True)
        channel.queue_bind("delayed", "delays", "remind")
        for item, headers in (("a", {"x-delay": later}), ("b", {}), ("a", {"x-delay": 1}), ("c", {"x-delay": "soon"})):
            options: Any = {"message_id": item, "timestamp": now, "headers": headers}
            channel.basic_publish("delays", "remind", json.dumps({"item": item}), pika.BasicProperties(**options))
        channel.basic_publish("delays", "remind", b"\xff", pika.BasicProperties(message_id="bytes"))
        of_no_number: Any = {"message_id": "table", "headers": {"x-delay": {"seconds": 1}}}
        channel.basic_publish("delays", "remind", b"1", pika.BasicProperties(**of_no_number))
    async with serve(moving.handler()):
        await moving.run_block(3)
        shown = await control.look_up(kind, "a")
        await wait_until(lambda: moving.runs == {"b": ["dormice"]}, "what is due has run")
    with open_channel(rabbitmq) as channel:
        left = channel.queue_declare("delayed", passive=True, durable=True).method.message_count
        _, properties, body = channel.basic_get("delayed.rejected")
        reasons = [channel.basic_get("delayed.rejected")[1].headers["x-reason"] for _ in range(2)]

    assert shown.due_at is not None
    assert abs(shown.due_at.timestamp() - now - later / 1000) <= CLOCK_SECONDS
    assert (left, json.loads(body)) == (0, {"item": "c"})
    assert "could not convert string to float: 'soon'" in properties.headers["x-reason"]
    assert reasons[0] == "what it holds is no UTF-8 (byte 1)"
    assert "argument must be a string or a real number, not 'dict'" in reasons[1]


@pytest.mark.parametrize(
    ("url", "queue", "sentence"),
    [
        ("amqp://guest:guest@127.0.0.1:1/%2F", "work", "refused"),
        ("{rabbitmq}", "nowhere", "no queue 'nowhere'"),
        ("{rabbitmq}", "work=soon", "invalid read_queue value: 'work=soon'"),
    ],
)
async def test_wrong_input_is_one_sentence(
    move: Callable[..., Move], rabbitmq: str, url: str, queue: str, sentence: str
) -> None:
    """No server, no such queue, no number: nothing is written."""
    moving = move("From RabbitMQ")
    place = url.format(rabbitmq=rabbitmq)
    code, out, err = await _run(moving, "export", place, "--queue", queue, "--kind", "a", "--to", "out.jsonl")

    assert (code, out) == (2, "")
    assert sentence in err.splitlines()[-1]
    assert not list(moving.folder.glob("out*"))


async def _run(moving: Move, *arguments: str) -> tuple[int, str, str]:
    command = ("-m", "examples.moving_in.rabbitmq_delays", *arguments)
    return await run_to_end("python", *command, cwd=moving.folder, env=moving.environment)
