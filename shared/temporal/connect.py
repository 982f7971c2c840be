"""The one way to connect to Temporal, and what a server must have before messages can live on it."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Generator, Iterable, Mapping
from datetime import timedelta
from typing import Any

from temporalio import runtime
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
)
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode

from shared.errors import Misconfigured, RetryLater, ServerBusy, ServerNotReady, ServerUnreachable
from shared.messages.json_value import encode_json
from shared.settings import Settings
from shared.telemetry.logs import CORE
from shared.temporal.compression import compress
from shared.temporal.connection_faults import check_address, explain_failure
from shared.temporal.encryption import build_converter
from shared.temporal.search_attributes import REQUIRED

DEFAULT_ADDRESS = "localhost:7233"
CALL_TIMEOUT = timedelta(seconds=10)  # limit of one small call to the server
CONNECT_TIMEOUT = timedelta(seconds=20)  # limit of the connection and its first call, for which the SDK has none

TRANSIENT = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.ABORTED,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.UNKNOWN,
        RPCStatusCode.CANCELLED,  # the answer when a connection breaks during a call
    }
)
"""Statuses after which the same call may succeed."""


def client_options(settings: Settings) -> dict[str, Any]:
    """Give the options of every client, for any server; raises Misconfigured as `build_converter` does."""
    # gzip is the SDK's default; for payloads under 100 bytes it costs CPU and saves nothing
    return {"grpc_compression": GrpcCompression.NONE, "data_converter": build_converter(settings)}


async def connect(
    settings: Settings,
    changes: Mapping[str, str] | None = None,
    heartbeat: timedelta | None = None,
    metrics: runtime.MetricBuffer | None = None,
) -> Client:
    """Connect as Temporal's environment configuration says (environment, then profile file, then localhost:7233).

    `changes` are variables (TEMPORAL_…) that override the environment. `heartbeat` is how often workers of this client
    report their slots; only with it, `metrics` receives what the SDK's core measures. Raises ServerUnreachable when
    nothing answers and Misconfigured when the configuration is unusable, certificates included.
    """
    options = client_options(settings)
    environ = {**os.environ, **(changes or {})}
    config = _read_config(environ)
    address = config.setdefault("target_host", DEFAULT_ADDRESS)
    # an empty TEMPORAL_ADDRESS is most likely a mistake; the default server would be used without notice
    check_address(environ.get("TEMPORAL_ADDRESS", address) and address)

    try:
        async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
            return await Client.connect(**config, **options, **_runtime_with(heartbeat, metrics))
    except (RuntimeError, ValueError, TimeoutError) as exc:
        said = str(exc) or "timed out"
        raise await asyncio.to_thread(explain_failure, address, said, tls=config.get("tls")) from exc


def find_address() -> str:
    """Give the HOST:PORT to which `connect` goes; raises Misconfigured as it does."""
    return _read_config(dict(os.environ)).get("target_host", DEFAULT_ADDRESS)


def _read_config(environ: dict[str, str]) -> ClientConnectConfig:
    try:
        return ClientConfig.load_client_connect_config(override_env_vars=environ)
    except (RuntimeError, ValueError, OSError) as exc:
        raise Misconfigured(
            f"Temporal's connection settings can't be read ({exc}); correct TEMPORAL_* or its file"
        ) from exc


async def check_server(client: Client) -> None:
    """Raise ServerNotReady when the namespace or one of the search attributes is missing or of another type."""
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
        found = await read_attribute_types(client)
    except RPCError as exc:
        if exc.status is RPCStatusCode.NOT_FOUND:
            raise ServerNotReady(
                f"the server has no namespace {client.namespace!r}; create it or set TEMPORAL_NAMESPACE"
            ) from exc
        raise translate_rpc_error(exc) from exc

    missing = [name for name, kind in REQUIRED.items() if found.get(name) != kind]
    if missing:
        raise ServerNotReady(
            f"search attribute {missing[0]} of type {REQUIRED[missing[0]]} is missing in namespace "
            f"{client.namespace!r}; run: {command_to_create(missing)}"
        )


async def read_attribute_types(client: Client) -> dict[str, str]:
    """Give the types of the namespace's own search attributes, as REQUIRED writes them. Raises RPCError."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    answer = await client.operator_service.list_search_attributes(request)
    types: dict[str, str] = {}
    for name, value in answer.custom_attributes.items():
        words = IndexedValueType.Name(value).removeprefix("INDEXED_VALUE_TYPE_").split("_")
        types[name] = "".join(map(str.capitalize, words))  # like KeywordList
    return types


def command_to_create(names: Iterable[str]) -> str:
    """Write the command that creates some of the required search attributes."""
    options = " ".join(f"--name {name} --type {REQUIRED[name]}" for name in names)
    return f"temporal operator search-attribute create {options}"


def lacks_namespace(exc: RPCError) -> bool:
    """Return whether the server does not know the namespace, as for a moment after its start; see `check_server`."""
    failure = NamespaceNotFoundFailure()
    return exc.status is RPCStatusCode.NOT_FOUND and any(d.Unpack(failure) for d in exc.grpc_status.details)


def lacks_attribute(exc: RPCError) -> bool:
    """Return whether the server does not know a search attribute; its services learn of a new one seconds later."""
    # the error has no detail
    return exc.status is RPCStatusCode.INVALID_ARGUMENT and "no mapping defined for search attribute" in exc.message


def lacks_signal_room(exc: RPCError) -> bool:
    """Return whether a workflow holds as many signals as the server allows; it takes more once a worker is back."""
    # ErrSignalsLimitExceeded in service/history/consts of the server, 10,000 a run by default; the error has no detail
    return exc.status is RPCStatusCode.INVALID_ARGUMENT and "limit for signal events" in exc.message


def is_transient(exc: RPCError) -> bool:
    """Return whether the same call may succeed later."""
    return exc.status in TRANSIENT or lacks_namespace(exc) or lacks_attribute(exc) or lacks_signal_room(exc)


def is_missing(exc: RPCError) -> bool:
    """Return whether the server knows no such workflow; false when it does not know the namespace either."""
    return exc.status is RPCStatusCode.NOT_FOUND and not lacks_namespace(exc)


def translate_rpc_error(exc: RPCError) -> RetryLater | Misconfigured:
    """Turn a failed call into the branch of the error tree that fits what the caller should do."""
    said = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    if exc.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        return ServerBusy(f"the server is at its limit ({said}); try again in a while")
    if exc.status in TRANSIENT:
        return ServerUnreachable(f"the server did not answer ({said}); check that it is up and try again")
    if exc.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        return Misconfigured(f"the server refuses this client ({said}); check the API key or certificate")

    refusal = f"the server refuses the call ({said})"
    if lacks_namespace(exc):
        return ServerNotReady(f"{refusal}; create the namespace or set TEMPORAL_NAMESPACE")

    if lacks_signal_room(exc):
        return ServerBusy(
            f"as many signals wait for the workflow as the server keeps ({said}); see that it has a worker"
        )

    if lacks_attribute(exc):
        return ServerNotReady(f"{refusal}; create it, or give the server time to learn of it")
    return Misconfigured(f"{refusal}; correct the request")


@contextlib.contextmanager
def translate_rpc_errors() -> Generator[None]:
    """Raise the RPCError of a failed call as what `translate_rpc_error` makes of it."""
    try:
        yield
    except RPCError as exc:
        raise translate_rpc_error(exc) from exc


async def describe_queue(
    client: Client,
    name: str,
    kind: TaskQueueType.ValueType = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    *,
    report_stats: bool = False,
    report_config: bool = False,
) -> DescribeTaskQueueResponse:
    """Describe a task queue: who polls it and, if asked for, its backlog or its configuration. Raises RPCError."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=name),
        task_queue_type=kind,
        report_stats=report_stats,
        report_config=report_config,
    )
    return await client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)


def to_raw(value: Any) -> RawValue:
    """Encode a value as JSON in UTF-8; the SDK's own encoder escapes non-ASCII text, up to three times as long."""
    return to_raw_bytes(encode_json(value))


def to_raw_bytes(encoded: bytes) -> RawValue:
    """Wrap JSON that is encoded already, compressed where it is large."""
    return RawValue(compress(Payload(metadata={"encoding": b"json/plain"}, data=encoded)))


def _runtime_with(heartbeat: timedelta | None, metrics: runtime.MetricBuffer | None) -> dict[str, Any]:
    if heartbeat is None:
        return {}

    # otherwise the core writes to standard output, in a format of its own
    forwarding = runtime.LogForwardingConfig(
        logging.getLogger(CORE),
        append_target_to_name=False,
        prepend_target_on_message=False,
        append_log_fields_to_message=False,
    )
    log_config = runtime.LoggingConfig(
        runtime.TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding
    )
    telemetry = runtime.TelemetryConfig(logging=log_config, metrics=metrics)
    return {"runtime": runtime.Runtime(telemetry=telemetry, worker_heartbeat_interval=heartbeat)}
