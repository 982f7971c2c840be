"""Celery's tasks: what is due later waits in dormice, which sends it to Celery's own broker when it is due."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# — neither Celery nor kombu says its types

import contextlib
import functools
import logging
import os
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery import Task
from celery.app.control import Control
from celery.exceptions import ImproperlyConfigured
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.messaging import Producer
from kombu.utils.functional import retry_over_time

from dormice.celery_payload import read_payload, write_published, write_received
from dormice.client import AnyClient, connect_sync
from dormice.errors import DormiceError, InvalidEnvelope, MessageNotFound, RetryLater

THRESHOLD = timedelta(minutes=1)
KIND = "celery"
CALL_SECONDS = 10.0  # for one request; Celery's own retry policy says how often it is repeated
RETRY_KEYS = ("max_retries", "interval_start", "interval_step", "interval_max", "timeout")

logger = logging.getLogger(__name__)
_opened = contextlib.ExitStack()


class DormiceTask(Task[..., Any]):
    """A task that dormice holds from `apply_async` until its `eta`, or `countdown`, if that is beyond the threshold.

    docs/celery.md has its settings, and what becomes of a task that dormice can't hold.
    """

    abstract = True
    dormice_threshold: timedelta | float | None = None  # the configuration's `dormice_threshold` where it is None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Refuse an app whose `revoke` would not reach what dormice holds."""
        if not isinstance(app.control, DormiceControl):
            raise ImproperlyConfigured(
                "control: can't revoke what dormice holds; make the app with "
                "Celery(…, control='dormice.celery:DormiceControl'), or derive its class from that one"
            )

    def apply_async(  # noqa: PLR0917 — as Celery has it
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Send the task as Celery does, or hold it until it is due; returns once that is durable.

        Raises kombu's OperationalError where dormice does not answer within Celery's retry policy.
        """
        app: Any = self.app
        task_id = task_id or str(uuid.uuid4())

        eta = _find_eta(app, options)
        if eta and not app.conf.task_always_eager:
            due_at = _to_moment(app, eta)
            if due_at - app.now() > self._read_threshold():
                # without the eta, by which Celery would choose a delayed queue of RabbitMQ; workers read the header
                header = eta if isinstance(eta, str) else eta.isoformat()
                headers = {**(options.pop("headers", None) or {}), "eta": header}
                options |= {"countdown": None, "eta": None, "headers": headers}
                connection = options.pop("connection", None)
                broker = app.amqp.Producer(connection, auto_declare=False) if connection else producer
                producer = _HoldingProducer(app, task_id, due_at, broker)

        return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """Let a worker hand a task over that reached it before it is due, and acknowledge it once dormice has it."""
        from celery.worker.state import revoked  # noqa: PLC0415 — only workers need all that comes with it

        handle: Any = super().start_strategy(app, consumer, **options)

        def take(message: Any, body: Any, ack: Any, *rest: Any, **more: Any) -> Any:
            if message.headers.get("id") not in revoked and self._is_handed_over(app, message):
                return ack(logger, consumer.connection_errors)
            return handle(message, body, ack, *rest, **more)

        return take

    def _is_handed_over(self, app: Any, message: Any) -> bool:
        task_id = message.headers.get("id")
        eta = message.headers.get("eta")
        if not (task_id and eta):
            return False

        try:
            due_at = _to_moment(app, eta)
            if due_at - app.now() <= self._read_threshold():
                return False
            _hold(app, task_id, due_at, write_received(task_id, message, app.amqp.queues))
        except (DormiceError, ValueError) as exc:  # an eta that can't be read is for Celery to refuse
            logger.warning("task %s waits in this worker, not in dormice: %s", task_id, exc)
            return False

        return True

    def _read_threshold(self) -> timedelta:
        given = self.dormice_threshold
        given = self.app.conf.get("dormice_threshold", THRESHOLD) if given is None else given
        if isinstance(given, timedelta):
            return given
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise ImproperlyConfigured(f"dormice_threshold: is {given!r}; give seconds or a timedelta")
        return timedelta.max if given * 1000 > timedelta.max.total_seconds() else timedelta(seconds=given)


class DormiceControl(Control):
    """Celery's remote control, whose `revoke` also stops what dormice holds."""

    def broadcast(self, command: str, arguments: Any = None, *args: Any, **options: Any) -> Any:
        """Stop what is revoked before the workers hear of it; raises OperationalError where dormice is silent."""
        if command == "revoke":
            ids: Any = (arguments or options)["task_id"]
            for task_id in [ids] if isinstance(ids, str) else ids:
                self._stop(task_id)
        return super().broadcast(command, arguments, *args, **options)

    def _stop(self, task_id: str) -> None:
        app: Any = self.app
        try:
            client = _find_client(app)
            message = client.message(_find_kind(app), task_id)
            client.call("POST", f"{message.path}/stop", body={"reason": "revoked"}, seconds=CALL_SECONDS)
        except MessageNotFound:
            return  # it has gone to the broker, or was never held
        except DormiceError as exc:
            raise OperationalError(f"task {task_id} was not revoked: {exc}") from exc
        app.backend.mark_as_revoked(task_id, "revoked")


class _HoldingProducer(Producer):
    """Gives dormice the first message that Celery publishes, the task; what follows are events, for the broker."""

    def __init__(self, app: Any, task_id: str, due_at: datetime, broker: Any) -> None:
        super().__init__(app.connection_for_write(), auto_declare=False)  # connects to nothing
        self._app = app
        self._task_id = task_id
        self._due_at = due_at
        self._broker = broker
        self._is_taken = False

    def publish(  # pyright: ignore[reportIncompatibleMethodOverride] — Celery names all but the body
        self, body: Any, **options: Any
    ) -> Any:
        """Hold a task, as `kombu.Producer.publish` would send it."""
        if not self._is_taken:
            self._is_taken = True
            try:
                return self._hold(write_published(self._task_id, body, options), options)
            except DormiceError as exc:
                is_unfit = isinstance(exc, InvalidEnvelope) and exc.field.startswith("payload")
                if not is_unfit and not self._app.current_worker_task:
                    raise OperationalError(f"task {self._task_id} was not sent: {exc}") from exc
                # in a worker, Celery would drop the task that is to be retried, or what was to follow it
                logger.warning("task %s waits in a worker of Celery, not in dormice: %s", self._task_id, exc)

        with self._app.producer_or_acquire(self._broker) as broker:
            return broker.publish(body, **options)

    def _hold(self, payload: dict[str, Any], options: Mapping[str, Any]) -> None:
        hold = functools.partial(_hold, self._app, self._task_id, self._due_at, payload)
        if not options.get("retry"):
            hold()
            return
        policy = {name: value for name, value in options["retry_policy"].items() if name in RETRY_KEYS}
        retry_over_time(hold, RetryLater, **policy)


def give_back(app: Any) -> int:
    """Send what dormice holds for an app to its broker, each task with its eta, and stop it here; gives their number.

    Needs dormice's workers; what is paused or parked stays. Call it again if it was cut off: at worst a task is sent
    twice, under the same id. Raises DormiceError.
    """
    client = _find_client(app)
    kind = _find_kind(app)
    count = 0

    cursor = ""
    while cursor is not None:
        query = {"kind": kind, "cursor": cursor, "state": "active"}
        page = client.call("GET", "/v1/messages", query)
        for listed in page["messages"]:
            message = client.message(kind, listed["id"])
            view = message.show()
            if view.state != "active":
                continue  # the list lags behind: it is on its way to the broker, or has been sent
            if view.payload is None:
                raise RetryLater(f"{kind}:{listed['id']} can't be read; start dormice's workers, and call this again")

            with app.producer_or_acquire() as producer:
                producer.publish(retry=True, **read_payload(listed["id"], view.payload, app.amqp.queues))

            with contextlib.suppress(MessageNotFound):
                message.stop("given back")

            count += 1

        cursor = page["cursor"]

    return count


def _hold(app: Any, task_id: str, due_at: datetime, payload: dict[str, Any]) -> None:
    client = _find_client(app)
    body = {"payload": payload, "scheduled_at": due_at, "idempotency_key": uuid.uuid4().hex}
    path = client.message(_find_kind(app), task_id).path
    client.call("PUT", path, body=body, seconds=CALL_SECONDS, is_repeated=False)


def _find_eta(app: Any, options: Mapping[str, Any]) -> datetime | str | None:
    """Give what Celery would write into the header `eta`."""
    if countdown := options.get("countdown"):
        return app.now() + timedelta(seconds=countdown)
    return options.get("eta")


def _to_moment(app: Any, eta: datetime | str) -> datetime:
    """Give the moment at which a worker would begin."""
    moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    return maybe_make_aware(moment, app.timezone)


def _find_kind(app: Any) -> str:
    return app.conf.get("dormice_kind", KIND)


def _find_client(app: Any) -> AnyClient[Any]:
    return _connect(app.conf.get("dormice_url", ""), app.conf.get("dormice_token", ""))


@functools.cache
def _connect(url: str, token: str) -> Any:
    return _opened.enter_context(connect_sync(url, token))


os.register_at_fork(after_in_child=_connect.cache_clear)  # a connection serves one process alone
