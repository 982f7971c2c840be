"""`python -m bench.visits.celery_tasks visit ORDER`: Celery visits one page again and again; ORDER is JSON.

Each task visits the page and sends itself again through Redis, acknowledged late, as who may lose none sets it.
"""

import http.client
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import psutil
from celery import Celery

from bench.visits.order import Order, Seen

AT_ONCE = 50
BEGUN = 4 * AT_ONCE
LOOK_SECONDS = 0.1


class Visits:
    """Visits the page, with a connection a thread, and counts what is seen in the time that counts."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._url = urlsplit(order.find_url(0))
        self._connections = threading.local()
        self._lock = threading.Lock()
        self._seen = Seen()
        self._is_watched = False

    def visit(self) -> None:
        """Ask for the page once."""
        connection = getattr(self._connections, "own", None)
        if connection is None:
            connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port)
            self._connections.own = connection

        connection.request("GET", self._url.path)
        answer = connection.getresponse()
        answer.read()

        with self._lock:
            self._seen.visits += self._is_watched
            self._seen.failed += self._is_watched and answer.status != 200

    def watch(self) -> None:
        """Watch for as long as ordered, print what was seen and end the process."""
        time.sleep(self._order.warmup)
        begun_at = time.monotonic()
        cpu = time.process_time()
        self._is_watched = True

        while (passed := time.monotonic() - begun_at) < self._order.seconds:
            time.sleep(LOOK_SECONDS)

        seen = self._seen
        seen.seconds = passed
        seen.cpu = time.process_time() - cpu
        seen.rss = psutil.Process().memory_info().rss
        print(json.dumps(asdict(seen)), flush=True)
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Visit as the order says; ends by itself."""
    order = Order(**json.loads(arguments[1]))
    visits = Visits(order)
    app: Any = Celery("visits", broker=order.server)
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_redirect_stdouts=False)

    def visit_again() -> None:
        visits.visit()
        task.delay()

    task: Any = app.task(visit_again, name="visit")
    for _ in range(BEGUN):
        task.delay()

    threading.Thread(target=visits.watch, daemon=True).start()
    quiet = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True, "loglevel": "ERROR"}
    app.Worker(pool="threads", concurrency=AT_ONCE, quiet=True, **quiet).start()


if __name__ == "__main__":
    main(sys.argv[1:])
