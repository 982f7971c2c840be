"""`dormice serve`: it says where it listens, is open to nobody by accident, and may be killed in mid-bulk."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import dormice
from examples.ledger import LEDGER_VARIABLE, Ledger
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import wait_until

pytestmark = pytest.mark.timeout(300)  # workers begin and end in it, each of them seconds of processor time

RETURN_SECONDS = 200.0
"""A task whose delivery to a worker got lost comes again after 60 seconds, its timeout; a message has two or three."""

LINES = {"solo": 600, "pack": 6000}

HANDLER = """
from datetime import timedelta

from activities import Done, Pack, handler
from examples.ledger import ledgered


@handler("{kind}", encoding={encoding})
@ledgered
async def end(message, ctx):
    return Done()
"""
ENCODINGS = {"solo": "None", "pack": "Pack(packs=3, size=5000, coalesce=timedelta(0))"}


@pytest.fixture
def serving_environment(environment: dict[str, str], tmp_path: Path, kind: str, encoding: str) -> dict[str, str]:
    """The environment of a server and a worker with a handler of this test's own, which is done at once."""
    (tmp_path / "ending.py").write_text(HANDLER.format(kind=kind, encoding=ENCODINGS[encoding]))
    return {
        **environment,
        "DORMICE_HANDLERS": "ending",
        "PYTHONPATH": f"{tmp_path}:{environment['PYTHONPATH']}",
    }


async def begin(spawn: Spawn, environment: dict[str, str], port: str = "0") -> tuple[asyncio.subprocess.Process, str]:
    """Start the program; gives it and its address."""
    process = await spawn("serve", "--port", port, env=environment)
    assert process.stderr is not None
    told = (await process.stderr.readline()).decode()
    found = re.search(r"http://127\.0\.0\.1:\d+", told)
    assert found, told
    return process, found[0]


async def receipts(url: str, body: bytes | AsyncIterator[bytes]) -> AsyncIterator[dict[str, str]]:
    """Send a bulk and give its receipts as they come."""
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "the first of May"}
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as api,
        api.stream("POST", "/v1/messages:bulk", content=body, headers=headers) as response,
    ):
        async for line in response.aiter_lines():
            yield json.loads(line)


@pytest.mark.long
async def test_killed_in_the_middle_of_a_bulk_and_repeated_nothing_is_doubled_or_missing(
    spawn: Spawn, serving_environment: dict[str, str], kind: str, encoding: str, ledger: Ledger
) -> None:
    """By the ledger of the handlers: each message ran exactly once, though most had finished when they came again."""
    lines = LINES[encoding]
    worker_environment = {**serving_environment, LEDGER_VARIABLE: os.environ[LEDGER_VARIABLE]}
    worker = await spawn("worker", env=worker_environment, stderr=asyncio.subprocess.DEVNULL)
    body = b"".join(b'{"kind":"%b","id":"%d"}\n' % (kind.encode(), n) for n in range(lines))
    process, url = await begin(spawn, serving_environment)
    with pytest.raises(httpx.HTTPError):  # the connection breaks
        [_ async for _ in receipts(url, _kill_halfway(process, body, ledger))]
    _, url = await begin(spawn, serving_environment)

    outcomes = Counter([(each["outcome"], each.get("reason", "")) async for each in receipts(url, body)])
    assert set(outcomes) <= {("started", ""), ("already running", "")}
    await wait_until(lambda: _count_done(ledger) >= lines, "all have finished", RETURN_SECONDS)
    worker.send_signal(signal.SIGTERM)
    await worker.wait()

    assert outcomes.total() == lines
    assert Counter(entry.id for entry in ledger.entries if entry.what == "began") == {f"{n}": 1 for n in range(lines)}


@pytest.mark.fault
@pytest.mark.long
async def test_killed_in_the_middle_of_a_clients_bulk_it_may_come_back_and_nobody_notices(
    spawn: Spawn, serving_environment: dict[str, str], kind: str, encoding: str, ledger: Ledger
) -> None:
    """The client sends again what has no receipt: each item gets one, and each message runs exactly once."""
    lines = LINES[encoding]
    worker_environment = {**serving_environment, LEDGER_VARIABLE: os.environ[LEDGER_VARIABLE]}
    worker = await spawn("worker", env=worker_environment, stderr=asyncio.subprocess.DEVNULL)
    process, url = await begin(spawn, serving_environment)
    outcomes = Counter[str]()
    seen = Counter[str]()
    async with dormice.connect(url) as herd:
        async for receipt in herd.start_many(dormice.Envelope(kind, f"{n}") for n in range(lines)):
            outcomes[receipt.outcome] += 1
            seen[receipt.item.id] += 1
            if process.returncode is None:
                process.kill()
                await process.wait()
                await begin(spawn, serving_environment, url.rpartition(":")[2])
    await wait_until(lambda: _count_done(ledger) >= lines, "all have finished", RETURN_SECONDS)
    worker.send_signal(signal.SIGTERM)
    await worker.wait()

    assert set(outcomes) <= {"started", "already running"}
    assert seen == {f"{n}": 1 for n in range(lines)}
    assert Counter(entry.id for entry in ledger.entries if entry.what == "began") == seen


async def _kill_halfway(process: asyncio.subprocess.Process, body: bytes, ledger: Ledger) -> AsyncIterator[bytes]:
    """Give half of a body, kill the process once some of its messages have finished, and give the rest."""
    half = len(body) // 2
    yield body[:half]
    await wait_until(lambda: _count_done(ledger), "some have finished")
    process.kill()
    await process.wait()
    yield body[half:]


def _count_done(ledger: Ledger) -> int:
    return sum(entry.what == "done" for entry in ledger.entries)


@pytest.mark.parametrize("encoding", ["solo"], indirect=True)
async def test_it_ends_in_order_and_tells_no_secret(
    spawn: Spawn, serving_environment: dict[str, str], tmp_path: Path
) -> None:
    """SIGTERM ends it with code 0; tokens and payloads are in no line that it has written."""
    token = "0123456789abcdef-token"  # noqa: S105 — of this test alone
    payload = "a payload nobody may read"
    (tmp_path / "tokens.toml").write_text(f'[all]\ntoken = "{token}"\nwrite = true\n')
    process, url = await begin(spawn, {**serving_environment, "DORMICE_API_TOKENS_FILE": "tokens.toml"})
    async with httpx.AsyncClient(base_url=url, timeout=30) as api:
        refused = await api.post("/v1/messages/nothing/x", json={"payload": payload})
        headers = {"Authorization": f"Bearer {token}"}
        wrong = await api.post("/v1/messages/nothing/x", json={"payload": payload}, headers=headers)
    process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()

    assert (refused.status_code, wrong.status_code) == (401, 422)
    assert (process.returncode, out) == (0, b"")
    assert not any(secret in err.decode() for secret in (token, payload))


async def test_without_tokens_it_does_not_listen_to_other_machines(run: Run) -> None:
    """A person has to say who may call it."""
    ran = await run("serve", "--host", "0.0.0.0")  # noqa: S104 — it is refused

    assert ran.code == 2
    assert "--host: 0.0.0.0 can be reached from other machines; set api_tokens_file first" in ran.err
