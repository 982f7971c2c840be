"""A receiver of OTLP over HTTP, as real as any: it takes what processes send and gives it back decoded."""

import contextlib
import http.server
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as it was received, with ids as W3C writes them."""

    service: str
    span: Span
    attributes: dict[str, Any]

    @property
    def context(self) -> tuple[str, str]:
        """Its trace id and span id."""
        return self.span.trace_id.hex(), self.span.span_id.hex()

    @property
    def links(self) -> dict[str, tuple[str, str]]:
        """What it is linked to, by what the link says that is."""
        return {_read(link.attributes)["link"]: (link.trace_id.hex(), link.span_id.hex()) for link in self.span.links}


class Receiver(http.server.ThreadingHTTPServer):
    """Takes metrics and traces on loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.metrics: list[ResourceMetrics] = []
        self.spans: list[Seen] = []
        self.refused: list[str] = []
        """Paths that nobody serves, and which were asked for."""

    @property
    def url(self) -> str:
        """Where it receives."""
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, body: bytes) -> HTTPStatus:
        """Take what was sent to a path."""
        if path == "/v1/metrics":
            self.metrics += ExportMetricsServiceRequest.FromString(body).resource_metrics
        elif path == "/v1/traces":
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _read(sent.resource.attributes)["service.name"]
                for scope in sent.scope_spans:
                    self.spans += [Seen(service, span, _read(span.attributes)) for span in scope.spans]
        else:
            self.refused.append(path)
            return HTTPStatus.NOT_FOUND

        return HTTPStatus.OK


class _Taking(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.take(self.path, body))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the overridden one's own word
        """Nobody reads it."""


def _read(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "") for item in attributes}


@contextlib.contextmanager
def receiving() -> Generator[Receiver]:
    """Receive for the length of a `with` block."""
    with Receiver() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
