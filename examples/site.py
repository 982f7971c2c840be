"""A web site on loopback whose pages change at different rhythms, for the demonstration to visit."""

import contextlib
import email.utils
import sys
import threading
import time
from collections.abc import Generator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shared.messages.placement import unit_hash

RHYTHMS_SECONDS = (3, 8, 20, 60, 600)
SLOW_SECONDS = {"medium": 0.8, "long": 2.5}


class Page(BaseHTTPRequestHandler):
    """Answers /LANE/NAME: the name's hash decides how often the page changes, its validators, and whether it fails."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer one visit."""
        _, lane, name = self.path.split("/", 2)
        time.sleep(SLOW_SECONDS.get(lane, 0))

        chance = unit_hash(f"order {name}")
        if chance < 0.01:
            self._answer(HTTPStatus.FORBIDDEN)
        elif chance < 0.03 and int(time.time()) % 3 == 0:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR)
        else:
            self._answer_page(name)

    def _answer_page(self, name: str) -> None:
        rhythm = RHYTHMS_SECONDS[int(unit_hash(f"rhythm {name}") * len(RHYTHMS_SECONDS))]
        edition = int((time.time() + unit_hash(name) * rhythm) // rhythm)
        changed_at = edition * rhythm

        headers = [
            {"ETag": f'"{edition}"'},
            {"Last-Modified": email.utils.formatdate(changed_at, usegmt=True)},
            {},
        ][int(unit_hash(f"validators {name}") * 3)]
        if "ETag" in headers and headers["ETag"] == self.headers["If-None-Match"]:
            self._answer(HTTPStatus.NOT_MODIFIED, headers=headers)
        else:
            self._answer(HTTPStatus.OK, f"edition {edition} of {name}\n".encode(), headers)

    def _answer(self, status: HTTPStatus, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the base class names it so
        """Log nothing, because the board is on the terminal."""


class Site(ThreadingHTTPServer):
    """Accepts a burst of connections without refusing any."""

    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing of a visitor that has hung up; the base class prints its trace across the board."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def run_site() -> Generator[str]:
    """Serve the pages from a thread for a `with` block, and give the site's address."""
    site = Site(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{site.server_address[1]}"
    finally:
        site.shutdown()
        site.server_close()
