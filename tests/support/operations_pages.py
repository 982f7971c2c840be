"""Operations pages under test: served in this process, on a server of their own that holds nobody else's messages."""

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from temporalio.client import Client

from activities import Again, Context, Message, Pack, Reject, handler
from activities.api.handler import Handler
from activities.registry import Registry
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.connect import connect
from starter.control import Control
from starter.extras.web.documents import Installation
from starter.extras.web.page.operations_page import OperationsPage
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.extras.web.tokens import Tokens
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from worker.main import HEARTBEAT

HOSTS = {"127.0.0.1"}
MARKUP = "<b>bold</b><script>document.title = 'pwned'</script>"
"""What must show as it is written."""


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page that is served: where, and what it is the page of."""

    address: str
    page: OperationsPage
    installation: Installation

    @property
    def control(self) -> Control:
        """What the command line uses."""
        return self.installation.control


@contextlib.asynccontextmanager
async def empty_server(folder: Path) -> AsyncGenerator[tuple[EmbeddedServer, Client]]:
    """Run a server for a `with` block, with a client whose workers tell of themselves as often as real ones."""
    async with run_embedded(EmbeddedOptions(data=folder, port=find_free_port(), ui_port=None)) as server:
        yield server, await connect(Settings(), {"TEMPORAL_ADDRESS": server.address}, heartbeat=HEARTBEAT)


@contextlib.asynccontextmanager
async def serve_page(
    client: Client, settings: Settings, handlers: Sequence[Handler] = (), tokens: Tokens | None = None
) -> AsyncGenerator[ServedPage]:
    """Serve a page, and the API beside it, for a `with` block."""
    registry = Registry([("the test", each) for each in handlers])
    installation = Installation(client=client, settings=settings, registry=registry)
    page = OperationsPage(installation, version("dormice"), tokens)
    application = make_application(installation, page.version, tokens, HOSTS, page)
    async with serving(application, "127.0.0.1", 0) as address:
        yield ServedPage(address, page, installation)


def make_handlers(solo: str, packed: str, pack: Pack) -> tuple[Handler, Handler]:
    """Make a handler of each encoding that comes back in an hour, or rejects what its payload says."""

    async def visit(message: Message, ctx: Context) -> Again | Reject:
        if message.payload is not None and "reject" in message.payload:
            return Reject(message.payload["reject"])
        return Again(after=timedelta(hours=1), tolerance=timedelta(0), reason="looked")

    async def look(message: Message, ctx: Context) -> Again | Reject:
        return await visit(message, ctx)

    return handler(solo, lane="short")(visit), handler(packed, encoding=pack)(look)


async def start_all(
    client: Client, settings: Settings, envelopes: Sequence[Envelope], encodings: Mapping[str, Pack]
) -> None:
    """Start messages, whether or not a worker answers for their packs."""
    starter = BulkStarter(client, settings, encodings=encodings)
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome in (StartOutcome.STARTED, StartOutcome.ALREADY_RUNNING), receipt
