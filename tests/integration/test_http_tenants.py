"""The HTTP API for a token of one tenant: of a message of another it learns as little as of one that there is not."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from activities.api.handler import Handler
from shared.messages.signals import VERBS
from shared.settings import Settings
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.extras.web.tokens import Tokens
from tests.conftest import Serve
from tests.integration.test_control import registry_of

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

AT = (datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)).isoformat()
TOKENS = """
[owner]
token = "owner-0123456789ab"
write = true

[acme]
token = "acme-0123456789abc"
write = true
tenants = ["acme"]
"""
OWNER, ACME = ({"Authorization": f"Bearer {token}"} for token in ("owner-0123456789ab", "acme-0123456789abc"))
# the first two are of one pack
TAKEN = "taken"
FREE = "nobody"
OWN = "own"
"""Ids: of a message of another tenant, of none, and of one of the token's own tenant."""
SECONDS = 30.0
"""Most that an answer may take: less than the `wait` asked for, as waiting would tell that there is something."""
BODIES: dict[str, dict[str, Any]] = {
    "run_now": {},
    "reschedule": {"due_at": AT},
    "reprioritize": {"priority": 1},
    "revise": {"payload": "theirs"},
    "pause": {},
    "resume": {},
    "stop": {},
    "pull_forward": {"expected_due_at": AT},
}
MINE = {"tenant": "acme", "scheduled_at": AT, "payload": "theirs"}
Look = tuple[str, str, dict[str, Any] | None]
LOOKS: list[Look] = [
    ("GET", "", None),
    ("GET", "?payload=false", None),
    ("GET", "?wait=40", None),
    ("DELETE", "", None),
    ("PUT", "?if_version=0", MINE),
    ("PUT", f"?if_due_before={AT.replace('+', '%2B')}", MINE),
    *(("POST", f"/{verb}", body) for verb, body in BODIES.items()),
]
"""Requests that only make sense for a message that there is."""


@pytest.fixture
def sleeper(kind: str) -> Handler:
    """A handler whose messages come back tomorrow."""

    @handler(kind)
    async def sleep(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(days=1))

    return sleep


@pytest.fixture
async def api(
    client: Client, settings: Settings, sleeper: Handler, encoding: str, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """The API with tokens."""
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS, "utf-8")
    installation = Installation(client=client, settings=settings, registry=registry_of(sleeper, encoding))
    application = make_application(installation, "1", Tokens.load(file), set())
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(application, "127.0.0.1", 0))
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=SECONDS))


async def start(api: httpx.AsyncClient, kind: str) -> None:
    """Start the message of another tenant, and one of the token's."""
    for message_id, tenant in ((TAKEN, "other"), (OWN, "acme")):
        body = {"tenant": tenant, "scheduled_at": AT, "payload": tenant}
        assert (await api.post(f"/v1/messages/{kind}/{message_id}", json=body, headers=OWNER)).status_code in (201, 202)


async def ask(
    api: httpx.AsyncClient, kind: str, message_id: str, looks: Sequence[Look] = LOOKS
) -> list[tuple[str, str, int, str]]:
    """Give what acme's token gets for each request about a message, without its id."""
    answers = list[tuple[str, str, int, str]]()
    for method, rest, body in looks:
        response = await api.request(method, f"/v1/messages/{kind}/{message_id}{rest}", json=body, headers=ACME)
        answers.append((method, rest, response.status_code, response.text.replace(message_id, "ID")))
    return answers


async def test_a_message_of_another_tenant_is_answered_like_none(
    api: httpx.AsyncClient, serve: Serve, sleeper: Handler, kind: str
) -> None:
    """Every request about it gets the 404 of a message that there is not, and the message stays as it is."""
    async with serve(sleeper, lanes=("short",)):
        await start(api, kind)
        before = (await api.get(f"/v1/messages/{kind}/{TAKEN}", headers=OWNER)).json()
        taken = await ask(api, kind, TAKEN)
        free = await ask(api, kind, FREE)
        after = (await api.get(f"/v1/messages/{kind}/{TAKEN}", headers=OWNER)).json()
        own = await api.get(f"/v1/messages/{kind}/{OWN}", headers=ACME)

    assert set(BODIES) == set(VERBS)
    assert taken == free
    assert {status for _, _, status, _ in taken} == {404}
    assert (after["payload"], after["version"], after["decisions"]) == ("other", 0, before["decisions"])
    assert (own.status_code, own.json()["tenant"]) == (200, "acme")


async def test_an_id_that_another_tenant_has_cant_be_started_or_changed(
    api: httpx.AsyncClient, serve: Serve, sleeper: Handler, kind: str
) -> None:
    """By itself or in a bulk: it is refused in the words for a message that there is not; the token's own are taken."""

    async def send_bulk(query: str) -> dict[str, tuple[str, str]]:
        lines = "\n".join(json.dumps({**MINE, "kind": kind, "id": each}) for each in (TAKEN, OWN, f"new{query}"))
        headers = {**ACME, "Content-Type": "application/x-ndjson"}
        response = await api.post(f"/v1/messages:bulk{query}", content=lines, headers=headers)
        receipts = map(json.loads, response.text.splitlines())
        return {each["id"]: (each["outcome"], each.get("reason", "")) for each in receipts}

    async with serve(sleeper, lanes=("short",)):
        await start(api, kind)
        path = f"/v1/messages/{kind}/{TAKEN}"
        unknown = (await api.get(path, headers=ACME)).json()
        refused = [(await api.request(method, path, json=MINE, headers=ACME)).json() for method in ("POST", "PUT")]
        started = await send_bulk("")
        changed = await send_bulk("?upsert=true")
        after = (await api.get(path, headers=OWNER)).json()

    assert unknown["status"] == 404
    assert refused == [unknown, unknown]
    assert started[TAKEN] == changed[TAKEN] == ("rejected", unknown["detail"])
    assert (started[OWN][0], started["new"][0]) == ("already running", "started")
    assert (changed[OWN][0], changed["new?upsert=true"][0]) == ("revised", "started")
    assert (after["payload"], after["tenant"], after["version"]) == ("other", "other", 0)


async def test_without_a_worker_a_message_of_another_tenant_is_no_more_than_none(
    api: httpx.AsyncClient, kind: str, encoding: str
) -> None:
    """What only a worker could tell is told of neither; what the server tells is told of the tenant's own alone."""
    await start(api, kind)
    looks = [LOOKS[0], LOOKS[3]]  # each of them waits for a worker in vain
    taken = await ask(api, kind, TAKEN, looks)
    free = await ask(api, kind, FREE, looks)
    own = await api.get(f"/v1/messages/{kind}/{OWN}", headers=ACME)

    assert taken == free
    assert {status for _, _, status, _ in taken} == {404 if encoding == "solo" else 503}
    assert own.status_code == (200 if encoding == "solo" else 503)


async def test_a_message_keeps_its_tenant_whatever_is_done_to_it(
    api: httpx.AsyncClient, serve: Serve, sleeper: Handler, kind: str
) -> None:
    """After another priority, a cycle and its end it is still its tenant's alone; then its id is free."""
    async with serve(sleeper, lanes=("short",)):
        await start(api, kind)
        for verb in ("reprioritize", "run_now", "stop"):
            sent = await api.post(f"/v1/messages/{kind}/{TAKEN}/{verb}", json=BODIES[verb], headers=OWNER)
            assert sent.status_code == 200
            assert (await api.get(f"/v1/messages/{kind}/{TAKEN}", headers=ACME)).status_code == 404
            own = await api.post(f"/v1/messages/{kind}/{OWN}/{verb}", json=BODIES[verb], headers=ACME)
            assert own.status_code == 200
            assert (await api.get(f"/v1/messages/{kind}/{OWN}", headers=ACME)).status_code == 200
        ended = await api.get(f"/v1/messages/{kind}/{TAKEN}?wait=20", headers=OWNER)
        begun = await api.post(f"/v1/messages/{kind}/{TAKEN}", json=MINE, headers=ACME)

    assert ended.json()["state"] == "stopped"
    assert begun.status_code == 201
