"""Exports a sorted set of Redis whose members wait until the moment that is their score, and puts messages back.

A member is an id; what belongs to it is in a hash (--payloads KEY), if anywhere, under the same name. An export may run
at any time: it changes nothing, and sees every member that is there from its beginning to its end.
"""

import argparse
import json
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from typing import Any

import redis

from examples.moving_in.exchange import LeftOut, Line, Program, WrongInput, due_of, pages, read_json, to_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say where the set is."""
    parser.add_argument("url", help="such as redis://localhost:6379/0")
    parser.add_argument("key", help="the sorted set")
    parser.add_argument("--payloads", help="the hash with payloads by member, if there is one")
    parser.add_argument("--kind", default="", help="kind of the messages")
    parser.add_argument("--milliseconds", action="store_true", help="scores are milliseconds, not seconds")


def _open(url: str) -> Any:
    make: Any = redis.Redis  # its types are not complete
    return make.from_url(url)


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give a message for each member; some may come twice, of which dormice takes one."""
    client = _open(args.url)
    if (found := client.type(args.key)) != b"zset":
        raise WrongInput(f"{args.key}: is no sorted set but {found.decode()}; correct the key or the database's number")
    for page in pages(client.zscan_iter(args.key, count=500)):
        texts = client.hmget(args.payloads, [member for member, _ in page]) if args.payloads else [None] * len(page)
        for (member, score), text in zip(page, texts, strict=True):
            yield _to_line(args, member, score, text)


def _to_line(args: argparse.Namespace, member: bytes, score: float, text: bytes | None) -> Line:
    name = member.decode(errors="backslashreplace")
    seconds = score / 1000 if args.milliseconds else score
    try:
        datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return LeftOut(name, f"its score {score} is no moment; is it in milliseconds?")

    try:
        payload = None if text is None else read_json(text)
        return to_line(args.kind, member.decode(), seconds, payload)
    except UnicodeDecodeError as exc:
        return LeftOut(name, f"is no UTF-8 (byte {exc.start + 1}), as an id has to be")
    except ValueError as exc:
        return LeftOut(name, str(exc))


def put_back(args: argparse.Namespace, lines: Iterator[dict[str, Any]]) -> Iterator[LeftOut]:
    """Add members with their payloads; those that are there already get the same values again."""
    client = _open(args.url)
    factor = 1000 if args.milliseconds else 1
    for page in pages(lines):
        pipeline = client.pipeline(transaction=True)
        if args.payloads:
            pipeline.hset(args.payloads, mapping={line["id"]: json.dumps(line["payload"]) for line in page})
        pipeline.zadd(args.key, {line["id"]: due_of(line).timestamp() * factor for line in page})
        pipeline.execute()

    yield from ()


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, put_back, (redis.RedisError, ValueError)).main()
