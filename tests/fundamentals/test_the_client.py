"""The tutorial of applications: they start and steer messages over HTTP, and know nothing of Temporal."""

from datetime import timedelta

from temporalio.client import Client

import dormice
from activities import Again, Context, Done, Message, handler
from activities.registry import Registry
from shared.settings import Settings
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.local.supervised_process import find_free_port
from tests.conftest import Serve, wait_until


async def test_an_application_starts_a_message_changes_it_and_reads_its_result(
    serve: Serve, client: Client, settings: Settings
) -> None:
    """`dormice serve` answers at an address; `upsert` starts what is not there and changes what is."""

    @handler("letter")
    async def deliver(message: Message, ctx: Context) -> Again | Done:
        return Done(f"to {message.payload['to']}")

    port = find_free_port()
    installation = Installation(client=client, settings=settings, registry=Registry([("the test", deliver)]))
    application = make_application(installation, "1", None, {"127.0.0.1"})
    async with (
        serve(deliver, lanes=("short",)),
        serving(application, "127.0.0.1", port),
        dormice.connect(f"http://127.0.0.1:{port}") as herd,
    ):
        ada = await herd.upsert("letter", "ada", {"to": "Rome"}, after=timedelta(days=1))
        await herd.upsert("letter", "ada", {"to": "Paris"}, after=timedelta(seconds=0))

        async def is_done() -> bool:
            return (await ada.show()).state == "done"

        await wait_until(is_done, "it has been delivered")
        shown = await ada.show()

    assert shown.result == "to Paris"
