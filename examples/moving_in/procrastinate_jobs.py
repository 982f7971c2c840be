"""Exports the jobs of procrastinate that wait in its table, and puts messages back with its own client.

Not carried over: the queue's name, attempts that were used up, and locks, which dormice has nothing like
(--ignore-locks exports such jobs all the same). Jobs at work are left out: export again once the workers have stopped.
"""

import argparse
from collections.abc import Generator, Iterator
from typing import Any

import psycopg
from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ProcrastinateException

from examples.moving_in.exchange import PAGE, LeftOut, Line, Program, due_of, name_of, read_json, read_pair, to_line

# as text and as seconds: the client can't read infinity, dates after the year 9999, or every number, and ends at them
QUERY = """SELECT id, task_name, args::text, priority, extract(epoch FROM scheduled_at)::float8, status = 'doing', lock
FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND id > %s ORDER BY id LIMIT %s"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say where the table is, and what kinds its tasks become."""
    parser.add_argument("url", help="the database: postgresql://USER@HOST/NAME")
    parser.add_argument("--kind", action="append", type=read_pair, required=True, metavar="TASK=KIND")
    parser.add_argument("--ignore-locks", action="store_true")


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give a message for each job, by its number."""
    kinds = dict(args.kind)
    last = 0

    with psycopg.connect(args.url, autocommit=True) as connection:
        while page := connection.execute(QUERY, (last, PAGE)).fetchall():
            for number, task, arguments, priority, due, is_at_work, lock in page:
                name = f"job {number}"
                last = number
                if task not in kinds:
                    yield LeftOut(name, f"its task {task} has no kind; add --kind {task}=KIND")
                elif is_at_work:
                    yield LeftOut(name, "is at work, or its worker was killed at it")
                elif lock and not args.ignore_locks:
                    yield LeftOut(name, f"has the lock {lock}; --ignore-locks exports it without that")
                else:
                    yield _to_line(kinds[task], number, due, arguments, min(5, max(1, 3 - priority)))


def _to_line(kind: str, number: int, due: float | None, arguments: str, priority: int) -> Line:
    try:
        return to_line(kind, number, due, read_json(arguments), priority=priority)
    except ValueError as exc:
        return LeftOut(f"job {number}", str(exc))


def put_back(args: argparse.Namespace, lines: Iterator[dict[str, Any]]) -> Iterator[LeftOut]:
    """Defer a job for each message; its queueing lock keeps a second one out while the first one waits."""
    tasks = {kind: task for task, kind in args.kind}
    with App(connector=SyncPsycopgConnector(conninfo=args.url)).open() as app:
        for line in lines:
            name = name_of(line)
            payload: dict[str, Any] | Any = line["payload"] or {}
            if (task := tasks.get(line["kind"])) is None or type(payload) is not dict:
                yield LeftOut(name, f"its kind has no task (add --kind TASK={line['kind']}), or its payload no members")
                continue
            options: dict[str, Any] = {"queueing_lock": f"dormice {name}", "priority": 3 - line.get("priority", 3)}
            try:
                app.configure_task(task, schedule_at=due_of(line), **options).defer(**payload)
            except AlreadyEnqueued:
                continue


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, put_back, (psycopg.Error, ProcrastinateException)).main()
