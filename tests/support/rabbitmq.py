"""A RabbitMQ of a test's own: a private node with a port mapper, a cookie and files of its own."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from starter.local.supervised_process import SupervisedProcess, find_free_port, run_supervised

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""What Debian's /usr/sbin/rabbitmq-server runs, as another user and for the machine's own node."""

START_SECONDS = 50.0


class RabbitServer(SupervisedProcess):
    """A node that listens on loopback; its port mapper must run already."""

    def __init__(self, folder: Path, mapper_port: int) -> None:
        super().__init__("rabbitmq", find_free_port(), folder / "log.txt", None)
        self._folder = folder
        self._mapper_port = mapper_port

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"amqp://guest:guest@{self.address}/%2F"

    async def _begin(self) -> bool:
        # without this machine's own environment, and so without its node
        command = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in self._variables().items())]
        return await self._serves([*command, str(PROGRAM)], self._is_ready, START_SECONDS)

    async def _is_ready(self) -> bool:
        with contextlib.suppress(AMQPError, OSError):
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
            return True
        return False

    def _variables(self) -> dict[str, str]:
        folder = self._folder
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {self.address}\n")
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / ".erlang.cookie").write_text(secrets.token_hex(16))
        (folder / ".erlang.cookie").chmod(0o400)

        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": f"dormice-{self._port}@localhost",
            "RABBITMQ_DIST_PORT": str(find_free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
        }


@contextlib.asynccontextmanager
async def run_rabbitmq() -> AsyncGenerator[str]:
    """Run RabbitMQ for the length of a `with` block, and give its address; both processes end by their ids."""
    folder = Path(tempfile.mkdtemp(prefix="dormice-rabbitmq-"))
    port = find_free_port()
    mapper = ["/usr/bin/env", "-i", f"HOME={folder}", "epmd", "-address", "127.0.0.1", "-port", str(port)]
    try:
        async with run_supervised(mapper, folder / "epmd.txt"), RabbitServer(folder, port) as server:
            yield server.url
    finally:
        shutil.rmtree(folder, ignore_errors=True)
