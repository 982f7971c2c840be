"""The `celery` handler: sends a task that an application holds here to Celery's own broker when it is due."""

import asyncio
import base64
import binascii
import contextlib
import importlib
import time
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Done, Message, Reject, RetryAfter
from shared.errors import GiveUp, InvalidSetting, Misconfigured, RetryLater, check_extra
from shared.settings import Settings, find_secret

PATIENCE_SECONDS = 8.0  # for one task; less than the ten seconds that a handler has on the short lane
SOCKET_SECONDS = 4.0  # until a broker that says nothing counts as gone
CONNECTIONS = 8  # of one process to the broker, each with a thread, because kombu blocks
RETRIES = {"max_retries": 1, "interval_start": 0}  # a connection may have been closed while nothing was due
TROUBLE_DELAY = timedelta(seconds=30)  # until a task tries again while the broker is in trouble
GATE = "celery:broker"

FIELDS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "headers": (dict,),
    "body": (str, dict),
    "content_type": (str,),
    "content_encoding": (str,),
    "queue": (str,),
    "exchange": (str,),
    "routing_key": (str,),
    "declare": (list,),
    "properties": (dict,),
    "expires_at": (int, float),
}
NO_PROPERTIES = {
    *("body", "headers", "exchange", "routing_key", "content_type", "content_encoding", "declare", "expiration"),
    *("serializer", "compression", "retry", "retry_policy", "timeout", "confirm_timeout"),
}
"""Arguments of kombu's `publish` that are not for `payload.properties`."""


class TaskRefused(GiveUp):
    """A payload that no task can be made of."""


@dataclass(frozen=True, slots=True)
class HeldTask:
    """What goes to the broker; `declare` describes the queues and exchanges that must be there."""

    body: str | bytes
    headers: dict[str, Any]
    place: dict[str, str]
    declare: list[Any]
    properties: dict[str, Any]


class BrokerConnections:
    """Sends tasks to a broker, without blocking the event loop."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        kombu = _import("kombu")
        pools = _import("kombu.pools")
        limits = {"socket_connect_timeout": SOCKET_SECONDS, "socket_timeout": SOCKET_SECONDS}  # of Redis
        limits |= {"read_timeout": SOCKET_SECONDS, "write_timeout": SOCKET_SECONDS}  # of AMQP
        connection = _open(kombu, url, {**limits, "confirm_publish": True, **options})
        self._kombu = kombu
        self._errors: tuple[type[Exception], ...] = (*connection.connection_errors, OSError)
        self._producers = pools.ProducerPool(connection.Pool(limit=CONNECTIONS), limit=CONNECTIONS)
        self._threads = ThreadPoolExecutor(CONNECTIONS, "celery")

    async def send(self, task: HeldTask) -> None:
        """Send a task, and return when the broker has it; raises RetryLater where it does not take tasks now."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._publish, task)
        except TimeoutError as exc:
            raise RetryLater(f"Celery's broker has not taken the task within {PATIENCE_SECONDS:g} s") from exc
        except (self._kombu.exceptions.OperationalError, *self._errors) as exc:
            raise RetryLater(f"Celery's broker takes no task ({type(exc).__name__}: {exc})") from exc

    def _publish(self, task: HeldTask) -> None:
        with self._producers.acquire(block=True) as producer:
            producer.publish(
                task.body,
                headers=task.headers,
                declare=[self._make(entity) for entity in task.declare],
                retry=True,
                retry_policy=RETRIES,
                confirm_timeout=SOCKET_SECONDS,
                **task.place,
                **task.properties,
            )

    def _make(self, entity: Any) -> Any:
        """Make a queue or an exchange of its description."""
        kombu = self._kombu
        if isinstance(entity, str):
            return kombu.Queue(entity, kombu.Exchange(entity), entity)
        if "exchange" in entity:
            return kombu.Exchange(**entity["exchange"])
        given = entity["queue"]
        exchange = kombu.Exchange(**{"name": given["name"], **given.get("exchange", {})})
        return kombu.Queue(**{"routing_key": given["name"], **given, "exchange": exchange})

    async def close(self) -> None:
        """Close all connections, once what is under way has been sent."""
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._producers.connections.force_close_all)


@asynccontextmanager
async def open_broker(settings: Settings) -> AsyncGenerator[BrokerConnections]:
    """Open the connections of the process; they connect when they are needed. Raises Misconfigured."""
    if not (url := find_secret(settings, "celery_broker_url")):
        raise InvalidSetting("celery_broker_url: is not set; give the address that Celery has as broker_url")
    pairs = [option.partition("=") for option in settings.celery_broker_options]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise InvalidSetting(f"celery_broker_options: {wrong[0]!r} is no NAME=VALUE; correct it")

    connections = BrokerConnections(url, {name: value for name, _, value in pairs})
    try:
        yield connections
    finally:
        await connections.close()


@handler("celery", lane="short", gate=GATE)
async def celery(message: Message, ctx: Context) -> Done | Reject:
    """Send the task that the payload holds to Celery's broker, as Celery would send it at this moment.

    docs/handlers.md has the fields of its payload, and what becomes of a task that the broker does not take.
    """
    try:
        task = read_task(message, time.time())
    except TaskRefused as exc:
        return Reject(str(exc))
    try:
        broker = await ctx.shared(open_broker)
        await broker.send(task)
    except (Misconfigured, RetryLater) as exc:
        raise RetryAfter(TROUBLE_DELAY, str(exc), gate=GATE) from exc
    return Done()


def read_task(message: Message, now: float) -> HeldTask:
    """Read a payload, with what it leaves out; raises TaskRefused."""
    if not isinstance(message.payload, Mapping):
        raise TaskRefused('payload: is no object; write {"task": …, "queue": …, "body": …}')

    given = cast("Mapping[str, Any]", message.payload)
    for name, value in given.items():
        if not isinstance(value, FIELDS.get(name, ())):
            problem = f"is no field of a task; use {', '.join(FIELDS)}" if name not in FIELDS else "has another type"
            raise TaskRefused(f"payload.{name[:40]}: {problem}")

    headers = given.get("headers", {})
    properties = {"correlation_id": message.id, **given.get("properties", {})}
    if "task" in given:
        headers = {**_default_headers(given["task"], message.id), **headers}
    if _is_after(headers.get("eta"), now):  # as when a person runs it now: no worker is to wait
        headers = {**headers, "eta": datetime.fromtimestamp(now, UTC).isoformat()}
    if wrong := sorted(NO_PROPERTIES & properties.keys()):
        raise TaskRefused(f"payload.properties.{wrong[0]}: is no property of a message; leave it out")

    left = given.get("expires_at", now) - now
    if left > 0:  # after that, a worker that gets it records that it has expired
        properties["expiration"] = left

    place = {
        "exchange": given.get("exchange", ""),
        "routing_key": given.get("routing_key", given.get("queue", "")),
        "content_type": given.get("content_type", "application/json"),
        "content_encoding": given.get("content_encoding", "utf-8"),
    }
    default = [given["queue"]] if "queue" in given else []
    declare = given.get("declare", default)
    return HeldTask(_read_body(given.get("body")), headers, place, declare, {"delivery_mode": 2, **properties})


def _default_headers(task: str, task_id: str) -> dict[str, Any]:
    """Give the headers of Celery's second protocol, as most tasks have them."""
    return {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }


def _is_after(eta: Any, now: float) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(eta)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() > now
    return False  # what can't be read is for Celery to refuse


def _read_body(body: Any) -> str | bytes:
    if isinstance(body, str):
        return body
    try:
        return base64.b64decode(body["base64"], validate=True)
    except (KeyError, TypeError, binascii.Error, ValueError) as exc:
        raise TaskRefused('payload.body: is neither text nor bytes; write a string or {"base64": "…"}') from exc


def _import(module: str) -> Any:
    check_extra("celery", "Celery's broker", "kombu")
    return importlib.import_module(module)


def _open(kombu: Any, url: str, options: dict[str, Any]) -> Any:
    try:
        connection = kombu.Connection(url, connect_timeout=SOCKET_SECONDS, transport_options=options)
        connection.transport_cls  # noqa: B018 — finds the transport, whose library may be missing
    except (KeyError, ValueError, ImportError) as exc:
        # without the error's own text, which may have the password
        raise InvalidSetting(
            f"celery_broker_url: is no address of a broker that can be used here ({type(exc).__name__}); "
            "write it like redis://HOST:6379/0 or amqp://USER:PASSWORD@HOST/VHOST"
        ) from None
    return connection
