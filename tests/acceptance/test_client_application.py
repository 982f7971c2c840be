"""An application that has packages named like those of dormice uses the client, and needs nothing else of dormice."""

import asyncio
import json
import os
import re
import site
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from temporalio.client import Client

from activities import Context, Done, Message, handler
from shared.settings import Settings
from starter.control import Control
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.integration.test_control import registry_of

ROOT = Path(__file__).parents[2]
LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)

FILES = {
    "main.py": """
from contextlib import asynccontextmanager

import dormice
from fastapi import FastAPI
from pydantic import BaseModel

from shared.texts import GREETING
from workers.jobs import FIRST


class Reminder(BaseModel):
    to: str
    text: str = GREETING


@asynccontextmanager
async def lifespan(app):
    async with dormice.connect() as app.state.herd:
        yield


app = FastAPI(lifespan=lifespan)


@app.put("/people/{name}/reminder")
async def remind(name: str, at: str, reminder: Reminder):
    message = await app.state.herd.upsert(KIND, f"{FIRST}{name}", reminder, at=datetime.fromisoformat(at))
    return {"outcome": message.receipt.outcome}
""",
    "shared/__init__.py": "",
    "shared/texts.py": 'GREETING = "good morning"\n',
    "workers/__init__.py": "",
    "workers/jobs.py": 'FIRST = "reminder-"\n',
}

RUN = """
import importlib.util, json, sys
names = ["activities", "workflows", "worker", "starter", "spark", "shared", "workers"]
found = {name: spec and spec.origin for name in names for spec in [importlib.util.find_spec(name)]}
print(json.dumps(found), flush=True)
import uvicorn
uvicorn.run("main:app", port=int(sys.argv[1]), log_level="warning")
"""


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    """The application's own folder."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        head = f"from datetime import datetime\n\nKIND = {kind!r}\n" if name == "main.py" else ""
        path.write_text(head + text, "utf-8")
    return tmp_path


@pytest.fixture
async def control(client: Client, settings: Settings, kind: str) -> AsyncIterator[tuple[Control, str]]:
    """The verbs, and the address of the HTTP API."""

    @handler(kind)
    async def remind(message: Message, ctx: Context) -> Done:
        return Done()

    installation = Installation(client=client, settings=settings, registry=registry_of(remind, "solo"))
    application = make_application(installation, "1", None, {"127.0.0.1"})
    async with serving(application, "127.0.0.1", 0) as url:
        yield installation.control, url


async def test_a_fastapi_application_with_packages_of_the_same_names_starts_messages(
    folder: Path, control: tuple[Control, str], kind: str
) -> None:
    """Its own packages are imported, none of dormice's is there, and its message is in the server."""
    verbs, url = control
    # -S and -P: neither what is installed as editable, which is dormice itself, nor this checkout is to be found
    path = os.pathsep.join([str(folder), str(ROOT / "client"), *site.getsitepackages()])
    environment = {**os.environ, "PYTHONPATH": path, "DORMICE_API_URL": url}
    port = find_free_port()
    arguments = ["-S", "-P", "-c", RUN, str(port)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        found = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as people:
            await wait_until(lambda: _answers(people), "the application runs")
            path = "/people/ada/reminder"
            answers = [await people.put(path, params={"at": LATER.isoformat()}, json={"to": "x"}) for _ in range(2)]
    finally:
        process.terminate()
        await process.wait()
    listed = await verbs.look_up(kind, "reminder-ada")

    assert [name for name, origin in found.items() if origin] == ["shared", "workers"]
    assert all(re.match(re.escape(str(folder)), origin) for origin in found.values() if origin)
    assert [answer.json() for answer in answers] == [{"outcome": "started"}, {"outcome": "revised"}]
    assert (listed.state, listed.due_at) == ("active", LATER)


async def _answers(people: httpx.AsyncClient) -> bool:
    try:
        return (await people.get("/openapi.json")).is_success
    except httpx.TransportError:
        return False
