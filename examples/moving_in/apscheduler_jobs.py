"""Exports the jobs of APScheduler 3 from the table of its SQLAlchemy job store, and puts messages back with its client.

Run it where the application's modules can be imported, and only on your own database: reading a pickled job runs code.
Jobs with a `date` or an `interval` trigger are carried over: the payload has args, kwargs and, of an interval,
every_seconds, after which the handler comes back. Not carried over: jitter, coalesce and misfire_grace_time.
"""

import argparse
import pickle
from collections.abc import Generator, Iterator
from typing import Any

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from examples.moving_in.exchange import (
    PAGE,
    LeftOut,
    Line,
    Program,
    due_of,
    find_member,
    name_of,
    read_pair,
    to_line,
)

QUERY = "SELECT id, next_run_time, job_state FROM {} WHERE id > :last ORDER BY id LIMIT :page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say where the table is, and what kinds its functions become."""
    parser.add_argument("url", help="the database as SQLAlchemy names it: postgresql+psycopg://USER@HOST/NAME")
    parser.add_argument("--table", default="apscheduler_jobs")
    parser.add_argument("--kind", action="append", type=read_pair, required=True, metavar="MODULE:FUNCTION=KIND")


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give a message for each job, by its id."""
    kinds = dict(args.kind)
    last = ""
    query = text(QUERY.format(args.table))
    with create_engine(args.url).connect() as connection:
        while page := connection.execute(query, {"last": last, "page": PAGE}).all():
            for last, due, state in page:
                yield _read(kinds, last, due, state)


def _read(kinds: dict[str, str], name: str, due: float | None, state: bytes) -> Line:
    try:
        job = pickle.loads(state)  # noqa: S301 — one's own jobs, as APScheduler itself reads them
        return _to_line(kinds, name, due, job)
    except Exception as exc:  # noqa: BLE001 — whatever a pickle raises
        return LeftOut(name, f"can't be read ({exc}); run this beside the application")


def _to_line(kinds: dict[str, str], name: str, due: float | None, job: dict[str, Any]) -> Line:
    trigger = job["trigger"]
    type_ = type(job["trigger"]).__name__
    payload: dict[str, Any] = {"args": list(job["args"]), "kwargs": dict(job["kwargs"])}
    more: dict[str, Any] = {}

    if type_ == "IntervalTrigger":
        payload["every_seconds"] = trigger.interval.total_seconds()
        more = {"expires_at": trigger.end_date.isoformat()} if trigger.end_date else {}
    elif type_ != "DateTrigger":
        return LeftOut(name, f"its trigger is {trigger}; give its handler a calendar: Again(at=cron(...))")

    if job["func"] not in kinds:
        return LeftOut(name, f"its function has no kind; add --kind {job['func']}=KIND")
    if due is None:
        return LeftOut(name, "is paused; resume or remove it")

    try:
        return to_line(kinds[job["func"]], name, due, payload, **more)
    except ValueError as exc:
        return LeftOut(name, str(exc))


class Writer(BaseScheduler):
    """A scheduler that only writes; a BackgroundScheduler removes due jobs at its shutdown, even if it is paused."""

    def shutdown(self, wait: bool = True) -> None:  # noqa: FBT001, FBT002 — as it is declared
        """Close the store."""
        super().shutdown(wait)

    def wakeup(self) -> None:
        """Run nothing."""


def put_back(args: argparse.Namespace, lines: Iterator[dict[str, Any]]) -> Iterator[LeftOut]:
    """Add a job for each message, in place of one with the same id."""
    functions = {kind: function for function, kind in args.kind}
    scheduler: Any = Writer()
    scheduler.add_jobstore(SQLAlchemyJobStore(args.url, tablename=args.table))
    scheduler.start(paused=True)

    try:
        for line in lines:
            payload = line["payload"]
            due = due_of(line)

            function = functions.get(line["kind"])
            if function is None:
                yield LeftOut(name_of(line), f"its kind has no function; add --kind MODULE:FUNCTION={line['kind']}")
                continue

            if find_member(payload, "args") is None or find_member(payload, "kwargs") is None:
                yield LeftOut(name_of(line), "its payload has no args and kwargs")
                continue

            every = payload.get("every_seconds")
            end = {"end_date": line["expires_at"]} if line.get("expires_at") else {}
            # late jobs run, too: without a grace time APScheduler skips what is late by more than a second
            options = {"id": line["id"], "replace_existing": True, "misfire_grace_time": None}

            try:
                trigger = IntervalTrigger(seconds=every, start_date=due, **end) if every else DateTrigger(due)
                scheduler.add_job(function, trigger, payload["args"], payload["kwargs"], next_run_time=due, **options)
            except (LookupError, TypeError, ValueError) as exc:  # of a function or an interval that there can't be
                yield LeftOut(name_of(line), f"can't be a job ({exc})")
    finally:
        scheduler.shutdown()


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, put_back, (SQLAlchemyError,)).main()
