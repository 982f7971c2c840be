"""Celery with a real broker and worker: later tasks wait in dormice, and reach the broker as Celery sends them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# — Celery and redis have no types

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import redis
from celery import Celery, Task, chain, chord, group
from celery.exceptions import ImproperlyConfigured, TaskRevokedError
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from temporalio.client import Client

import dormice
from activities import RetryAfter
from activities.api.resources import Resources
from activities.handlers.celery import TaskRefused, celery, read_task
from activities.testing import make_context, make_message
from dormice.celery import DormiceTask, give_back
from shared.settings import Secret, Settings
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port
from tests.conftest import Serve, wait_until
from tests.support.celery_app import Place, celery_worker, make_app, read_notes
from tests.support.celery_places import running_place, running_redis, sending, serving_api
from tests.support.processes import kill, worker_process

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:Call to deprecated setex")]  # by Celery

COUNT = 200
NO_RESULTS: dict[str, Any] = {"result_backend": "disabled://"}

TOPIC = Queue("orders", Exchange("events", "topic", durable=False), "order.#", queue_arguments={"x-max-priority": 5})


@pytest.fixture
async def place(client: Client, settings: Settings, tmp_path: Path, kind: str, encoding: str) -> AsyncIterator[Place]:
    """A broker, and the HTTP API of dormice for a kind of this test's own."""
    async with running_place(client, settings, tmp_path, kind, encoding) as running:
        yield running


async def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call Celery, which blocks, on a thread."""
    return await asyncio.to_thread(function, *args, **options)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (7, "payload: is no object"),
        ({"body": "[]", "queues": "a"}, "payload.queues: is no field of a task"),
        ({"body": "[]", "queue": 5}, "payload.queue: has another type"),
        ({"queue": "a"}, "payload.body: is neither text nor bytes"),
        ({"body": {"base64": "%%"}}, "payload.body: is neither text nor bytes"),
        ({"body": {"base64": 5}}, "payload.body: is neither text nor bytes"),
        ({"body": "[]", "properties": {"retry": True}}, "payload.properties.retry: is no property"),
    ],
)
def test_a_payload_that_is_no_task_is_refused_with_its_field(payload: Any, problem: str) -> None:
    """In a sentence that says what to do."""
    with pytest.raises(TaskRefused) as caught:
        read_task(make_message(celery, payload), 0.0)

    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "celery_broker_url: is not set; give the address that Celery has as broker_url"),
        ({"celery_broker_url": Secret("redis://:hush@host:port/0")}, "celery_broker_url: is no address of a broker"),
        ({"celery_broker_url": Secret("foo://:hush@host/0")}, "celery_broker_url: is no address of a broker"),
        (
            {"celery_broker_url": Secret("redis://h"), "celery_broker_options": ("a",)},
            "celery_broker_options: 'a' is no NAME=VALUE",
        ),
        ({"celery_broker_url": Secret("redis://:hush@127.0.0.1:1/0")}, "Celery's broker takes no task"),
        ({"celery_broker_url": Secret("amqp://me:hush@127.0.0.1:1/")}, "Celery's broker takes no task"),
    ],
)
async def test_a_broker_that_cannot_be_used_is_named_without_its_password(settings: Any, problem: str) -> None:
    """And tasks wait until it can be, at a gate."""
    message = make_message(celery, {"task": "add", "body": "[]", "queue": "a"})
    async with Resources() as resources:
        with pytest.raises(RetryAfter) as caught:
            await celery(message, make_context(message, settings=Settings(**settings), resources=resources))

    assert str(caught.value).startswith(problem)
    assert "hush" not in str(caught.value)
    assert caught.value.gate == celery.gate


async def test_a_held_task_reaches_the_broker_as_celery_sends_it(serve: Serve, place: Place) -> None:
    """Byte for byte, whatever its options; only its expiry in the broker counts from then on."""
    eta = datetime.now(UTC) + timedelta(seconds=2)
    note = make_app(place).tasks["note"]
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "text": {"eta": eta.isoformat()},
        "options": {"priority": 5, "shadow": "other", "headers": {"mine": "ä"}, "time_limit": 9, "retries": 2},
        "expires": {"expires": eta + timedelta(hours=1)},
        "zipped": {"compression": "zlib", "serializer": "pickle"},
        "canvas": {
            "link": note.s("done"),
            "link_error": note.s("bad"),
            "root_id": "r",
            "parent_id": "p",
            "group_id": "g",
            "group_index": 1,
        },
        "elsewhere": {"queue": TOPIC, "routing_key": "order.1"},
        "ignored": {"ignore_result": True, "delivery_mode": 1},
    }
    usual = Queues(place)
    held = Queues(place)
    for base, goes in ((Task, usual), (DormiceTask, held)):
        add = make_app(place, base, **NO_RESULTS).tasks["add"]
        for task_id, options in cases.items():
            await call(add.apply_async, (1, 2), **{"eta": eta, "reply_to": "me", **options, "task_id": task_id})
        assert goes.read(len(cases)) == (goes is usual)
    async with sending(serve, place):
        await wait_until(lambda: held.read(len(cases)), "all are sent")

    assert all(goes.expiry > 3_500_000 for goes in (usual, held))
    assert held.messages == usual.messages
    assert not held.doubled


class Queues:
    """What was put into the queues of a broker, by the ids of the tasks."""

    def __init__(self, place: Place) -> None:
        self._redis: Any = redis.Redis.from_url(place.broker)
        self.messages: dict[str, Any] = {}
        self.expiry = self.doubled = 0

    def read(self, count: int) -> bool:
        """Take out what is there, and say whether that makes so many messages."""
        for key in self._redis.scan_iter(_type="list"):
            while taken := self._redis.lpop(key):
                message: dict[str, Any] = json.loads(taken)
                properties = message["properties"]
                del properties["delivery_tag"]  # of the connection
                self.expiry = max(self.expiry, int(properties.pop("expiration", 0)))
                task_id = message["headers"]["id"]
                self.doubled += task_id in self.messages
                self.messages[task_id] = (key, message)
        return len(self.messages) == count


@pytest.mark.long
async def test_tasks_wait_here_and_are_done_by_celerys_workers(serve: Serve, place: Place, tmp_path: Path) -> None:
    """With their results, retries and canvas; a task that is revoked before it is due is never sent."""
    place = replace(place, threshold=0.5)
    app = make_app(place)
    add, note, again = (app.tasks[name] for name in ("add", "note", "try_again"))

    async with celery_worker(place, tmp_path / "celery.log"), sending(serve, place):
        revoked = await call(note.apply_async, ("revoked",), countdown=4)
        part = await call(chord([add.s(1, 1).set(countdown=4), add.s(2, 2)], add.s(0)).apply_async)
        at_once = await call(add.apply_async, (1, 1), countdown=0.2)
        assert not await is_known(place, at_once.id)
        results = [
            await call(add.apply_async, (1, 2), countdown=1, link=note.s("linked")),
            await call(again.apply_async, (1, 2), countdown=1),
            await call(chain(add.s(1, 1), add.s(1).set(countdown=1), add.s(1)).apply_async, countdown=1),
            await call(group(add.s(n, n) for n in range(3)).apply_async, countdown=1),
            await call(chord([add.s(1, 1), add.s(2, 2)], app.tasks["total"].s()).apply_async, countdown=1),
        ]
        assert [result.state for result in results[:2]] == ["PENDING"] * 2
        await call(revoked.revoke)
        await call(part.parent.results[0].revoke)
        assert [await find_result(result) for result in (at_once, *results)] == [2, 3, 2, 4, [0, 2, 4], 6]

        for lost in (revoked, part.parent.results[0]):
            with pytest.raises(TaskRevokedError):
                await find_result(lost)

        await wait_until(lambda: read_notes(place) == ["3 linked"], "the link was called")


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["solo"])
async def test_tasks_that_wait_in_workers_move_in_and_back(serve: Serve, place: Place, tmp_path: Path) -> None:
    """As docs/moving-in.md says: with what follows them, under their ids, and while workers go on."""
    usual = make_app(place, Task)
    app = make_app(place)
    add = usual.tasks["add"]
    note = usual.tasks["note"]
    eta = datetime.now(UTC) + timedelta(hours=1)
    async with celery_worker(place, tmp_path / "old.log", base="Task") as old:
        chained = await call(chain(add.s(1, 2), add.s(3)).apply_async, eta=eta)
        ids = {chained.parent.id, *[(await call(note.apply_async, (n,), eta=eta)).id for n in range(9)]}
        await wait_until(lambda: call(is_scheduled, usual, ids), "the worker has them in its memory")
        async with celery_worker(place, tmp_path / "new.log"):
            old.terminate()
            await old.wait()
            await wait_until(lambda: call(holds, app, ids), "they have moved in")
            async with sending(serve, place):
                await run_now(place, chained.parent.id)
                assert await find_result(chained) == 6

    async with sending(serve, place):
        assert await call(give_back, app) == 9
        assert await call(give_back, app) == 0
    async with celery_worker(place, tmp_path / "again.log", base="Task"):
        await wait_until(lambda: call(is_scheduled, usual, ids - {chained.parent.id}), "they are back")


def is_scheduled(app: Any, ids: set[str]) -> bool:
    """Whether the workers of Celery, and none other, wait for tasks."""
    found = app.control.inspect().scheduled() or {}
    return {task["request"]["id"] for tasks in found.values() for task in tasks} == ids


def holds(app: Any, ids: set[str]) -> bool:
    """Whether dormice holds tasks, as a move is proven."""
    with dormice.connect_sync(app.conf.dormice_url) as herd:
        page = herd.call("GET", "/v1/messages", {"kind": app.conf.dormice_kind, "state": "active"})
    return {message["id"] for message in page["messages"]} == ids


async def run_now(place: Place, task_id: str) -> None:
    """Run a task ahead of its eta."""
    async with dormice.connect(place.api) as herd:
        await herd.message(place.kind, task_id).run_now()


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["solo"])
async def test_a_worker_that_cannot_reach_dormice_holds_what_it_retries_itself(place: Place, tmp_path: Path) -> None:
    """Because Celery drops a task that it can't send again; so nothing is lost while dormice is away."""
    away = replace(place, api=f"http://127.0.0.1:{find_free_port()}")
    log = tmp_path / "celery.log"
    async with celery_worker(away, log):
        task = await call(make_app(place, Task).tasks["try_again"].delay, 1, 1)
        assert await find_result(task) == 1

    assert f"task {task.id} waits in a worker of Celery, not in dormice: the HTTP API at" in log.read_text("utf-8")


async def find_result(result: Any) -> Any:
    """Wait for a task's end, and give its result or raise its error."""
    await wait_until(lambda: call(result.ready), f"{result!r} has ended")
    return await call(result.get)


async def is_known(place: Place, task_id: str) -> bool:
    """Whether dormice has ever had a task."""
    async with httpx.AsyncClient(base_url=place.api, timeout=30) as api:
        return (await api.get(f"/v1/messages/{place.kind}/{task_id}")).is_success


@pytest.mark.parametrize("encoding", ["solo"])
async def test_what_dormice_cannot_hold_goes_to_the_workers(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A payload that is too large or no JSON; so does all of an application that runs its tasks eagerly."""
    app = make_app(place, **NO_RESULTS)
    queues = Queues(place)
    await call(app.tasks["note"].apply_async, ("x" * 5000,), countdown=60, task_id="large")
    await call(app.tasks["note"].apply_async, countdown=60, task_id="odd", headers={"bytes": UUID(int=1)})

    assert queues.read(2)
    assert not await is_known(place, "large")
    assert queues.messages["large"][1]["headers"]["eta"]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"task {name} waits in a worker of Celery, not in dormice" for name in ("large", "odd")
    ]
    assert (
        make_app(place, **NO_RESULTS, task_always_eager=True).tasks["add"].apply_async((1, 2), countdown=60).get() == 3
    )


async def test_an_application_learns_that_dormice_does_not_answer(tmp_path: Path) -> None:
    """As it learns that of its broker, after the repeats that Celery's configuration has; also when it revokes."""
    place = Place("redis://127.0.0.1:1/0", f"http://127.0.0.1:{find_free_port()}", "celery")
    app = make_app(place, task_publish_retry_policy={"max_retries": 2, "interval_start": 0, "interval_step": 0})
    with pytest.raises(OperationalError, match=r"^task a was not sent: the HTTP API at http://127.* does not answer"):
        await call(app.tasks["note"].apply_async, countdown=60, task_id="a", ignore_result=True)
    app.conf.dormice_url = "nonsense"
    with pytest.raises(OperationalError, match=r"^task a was not sent: url: is 'nonsense', which is no address"):
        await call(app.tasks["note"].apply_async, countdown=60, task_id="a", ignore_result=True)
    with pytest.raises(OperationalError, match=r"^task a was not revoked: url: is 'nonsense'"):
        await call(app.control.revoke, "a")


def test_a_wrong_configuration_is_refused_in_one_sentence() -> None:
    """Celery's own control, and a threshold that is no time."""
    app = make_app(Place("redis://127.0.0.1:1/0", "", "celery"), dormice_threshold="soon")
    with pytest.raises(ImproperlyConfigured, match=r"^dormice_threshold: is 'soon'; give seconds or a timedelta$"):
        app.tasks["note"].apply_async(countdown=60)
    app: Any = Celery("tests", task_cls=DormiceTask)
    with pytest.raises(ImproperlyConfigured, match=r"^control: can't revoke what dormice holds; make the app with"):
        app.task(shared=False)(read_notes).delay()


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("encoding", ["pack"])
async def test_a_broker_that_restarts_gets_every_task(
    client: Client, serve: Serve, settings: Settings, tmp_path: Path, kind: str, *, encoding: str
) -> None:
    """What is due while it is away waits at the gate, and uses up no attempts."""
    async with running_redis(tmp_path) as server, serving_api(client, settings, kind, encoding) as url:
        place = Place(f"redis://{server.address}/0", url, kind)
        async with sending(serve, place):
            await hold_notes(place)
            queues = Queues(place)
            await wait_until(lambda: queues.read(COUNT) or queues.messages, "some are sent")
            await kill(server)
            await asyncio.sleep(1)
            await server.start()
            await wait_until(lambda: queues.read(COUNT), "all are sent", 100.0)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "encoding"), [("celery", "solo")])
async def test_a_worker_that_is_killed_loses_no_task(
    server: EmbeddedServer, settings: Settings, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was sending; what it had sent, but not yet recorded, is sent again under the same id."""
    monkeypatch.setenv("DORMICE_CELERY_BROKER_URL", place.broker)
    await hold_notes(place)
    queues = Queues(place)
    for _ in range(2):
        async with worker_process(server, settings, "--lane", "short", handlers="activities.handlers.celery"):
            known = len(queues.messages)
            await wait_until(lambda known=known: queues.read(COUNT) or len(queues.messages) > known + 20, "some go on")
    async with worker_process(server, settings, "--lane", "short", handlers="activities.handlers.celery"):
        await wait_until(lambda: queues.read(COUNT), "all are sent", 100.0)


async def hold_notes(place: Place) -> None:
    """Hold many tasks that are due soon."""
    note = make_app(place, **NO_RESULTS).tasks["note"]
    prefix = uuid4().hex
    for number in range(COUNT):
        await call(note.apply_async, (number,), countdown=3, task_id=f"{prefix}-{number}")
