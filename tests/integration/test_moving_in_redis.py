"""Moving in from a sorted set of Redis, by the page's own commands."""

import importlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.peers.servers import RedisServer
from starter.control import Control
from starter.local.supervised_process import find_free_port
from tests.conftest import Serve, wait_until
from tests.support.moving_in import Move, move_and_return, write_ledger
from tests.support.processes import run_to_end

_redis: Any = importlib.import_module("redis")  # its types are not complete

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server; ./run servers installs it")


@pytest.fixture(scope="module")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where a Redis of this module's own is."""
    async with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield f"redis://{server.address}/0"


class OldPoller:
    """The usual poller: members scored by the moment at which they are due, claimed by their removal."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._client = _redis.Redis.from_url(url, decode_responses=True)
        self._client.flushdb()
        self._ledger = ledger

    def add(self, item: str, due: datetime) -> None:
        """Add a member and its payload."""
        self._client.hset("payloads", item, json.dumps({"item": item}))
        self._client.zadd("due", {item: due.timestamp()})

    async def run_due(self, *, is_all: bool = False) -> None:
        """Run each member that this process has removed."""
        until = "+inf" if is_all else datetime.now(UTC).timestamp()
        for member in self._client.zrange("due", "-inf", until, byscore=True):
            if self._client.zrem("due", member):
                write_ledger(self._ledger, "old", json.loads(self._client.hget("payloads", member))["item"])

    def pending(self) -> dict[str, datetime]:
        """Give members and scores."""
        pairs = self._client.zrange("due", 0, -1, withscores=True)
        return {member: datetime.fromtimestamp(score, UTC) for member, score in pairs}


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_sorted_set_moves_in_and_back(
    move: Callable[..., Move], redis: str, control: Control, serve: Serve
) -> None:
    """While its poller and producers go on; each member runs once, by the one whose turn it is."""
    moving = move("From a Redis sorted set", REDIS=redis)

    await move_and_return(moving, OldPoller(redis, moving.ledger), control, serve)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_what_has_changed_over_there_is_changed_here(
    move: Callable[..., Move], redis: str, control: Control, serve: Serve
) -> None:
    """A poller that was stopped too late, a member that is gone, another moment and payload: the last export counts."""
    moving = move("From a Redis sorted set", REDIS=redis)
    turn = datetime.now(UTC) + timedelta(hours=1)
    old = OldPoller(redis, moving.ledger)
    client = _redis.Redis.from_url(redis)
    close, (load, reconcile, stop, open_again) = moving.find_blocks("The moment between the two")
    moving.environment["H"] = turn.isoformat()
    for item in ("a", "b", "c", "d"):
        old.add(item, turn)
    async with serve(moving.handler()):
        await moving.run(*close)
        await moving.run_block(0)
        old.add("a", turn + timedelta(hours=1))
        client.hset("payloads", "b", '{"item": "b", "is_new": true}')
        client.zrem("due", "c")
        old.add("d", datetime.now(UTC))
        await old.run_due()
        rename, export, *_ = moving.find_blocks()[1]
        await moving.run(rename, export, load)
        said = await moving.run(reconcile)
        await moving.run(stop, open_again)

        async def have_ended() -> bool:
            return {(await control.look_up(moving.kind, item)).state for item in ("c", "d")} == {"stopped"}

        await wait_until(have_ended, "what has run there or is gone has ended here")
        moved = await control.look_up(moving.kind, "a")
        changed = await control.show(moving.kind, "b")

    assert "alive and not in the file: 2 messages, named in last.jsonl.others.txt" in said
    assert moved.due_at is not None
    assert abs((moved.due_at - turn).total_seconds() - 3600) < 1
    assert changed.status is not None
    assert changed.status["payload"] == {"item": "b", "is_new": True}
    assert moving.runs == {"d": ["old"]}


@pytest.mark.parametrize(
    ("url", "key", "sentence"),
    [
        ("redis://127.0.0.1:{port}/0", "due", "Connection refused"),
        ("nowhere", "due", "Redis URL must specify one of the following schemes"),
        ("{redis}", "nothing", "nothing: is no sorted set but none; correct the key or the database's number"),
        ("{redis}", "other", "other: is no sorted set but string"),
    ],
)
async def test_wrong_input_is_one_sentence(
    move: Callable[..., Move], redis: str, url: str, key: str, sentence: str
) -> None:
    """Nothing is written."""
    _redis.Redis.from_url(redis).set("other", "text")
    moving = move("From a Redis sorted set")
    place = url.format(port=find_free_port(), redis=redis)
    command = ("-m", "examples.moving_in.redis_zset", "export", place, key, "--kind", "a", "--to", "out.jsonl")
    code, out, err = await run_to_end("python", *command, cwd=moving.folder, env=moving.environment)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("redis_zset: ")
    assert sentence in err
    assert not list(moving.folder.glob("out*"))


async def test_a_member_that_cant_be_carried_over_ends_no_export(move: Callable[..., Move], redis: str) -> None:
    """A member or payload that is no UTF-8, a score that is no moment: each is listed by name, the rest is written."""
    client = _redis.Redis.from_url(redis)
    client.zadd("wrong", {b"\xffa": 1, "late": 1e18, "endless": "inf", "bytes": 1, "number": 1, "good": 1})
    client.hset("contents", mapping={"bytes": b"\xfe", "number": "1e999", "good": "[1]"})
    moving = move("From a Redis sorted set")
    options = ("--payloads", "contents", "--kind", "a", "--to", "out.jsonl")
    command = ("-m", "examples.moving_in.redis_zset", "export", redis, "wrong", *options)
    code, _, err = await run_to_end("python", *command, cwd=moving.folder, env=moving.environment)
    (line,) = [json.loads(text) for text in (moving.folder / "out.jsonl").read_text().splitlines()]

    *left_out, summary = err.splitlines()
    assert (code, summary) == (1, "1 written, 5 left out")
    assert [text.partition(" (Out")[0] for text in sorted(left_out)] == [
        r"left out: \xffa: is no UTF-8 (byte 1), as an id has to be",
        "left out: bytes: what it holds is no UTF-8 (byte 1)",
        "left out: endless: its score inf is no moment; is it in milliseconds?",
        "left out: late: its score 1e+18 is no moment; is it in milliseconds?",
        "left out: number: what it holds is no JSON",
    ]
    assert (line["id"], line["payload"]) == ("good", [1])
