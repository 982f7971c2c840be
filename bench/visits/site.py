"""nginx on loopback, with a page of 3 KB."""

import asyncio
import contextlib
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import psutil

from shared.errors import Misconfigured
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised

PAGE_BYTES = 3072

CONFIGURATION = """\
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 8000; }}
http {{
  access_log off; keepalive_requests 1000000000; etag on;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096; listen 127.0.0.1:{tls_port} ssl backlog=4096;
    ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem; root {folder}/pages;
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A site that runs: its ports, the certificate that it shows, and its processes."""

    port: int
    tls_port: int
    certificate: Path
    process: psutil.Process


@contextlib.asynccontextmanager
async def run_site() -> AsyncGenerator[Site]:
    """Run nginx for the length of a `with` block."""
    # Debian puts it where only root looks
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise Misconfigured("visits: there is no nginx; install it with: ./run servers")

    with tempfile.TemporaryDirectory(prefix="dormice-site-") as name:
        folder = Path(name)
        _write_page(folder)
        _certify(folder)
        port = find_free_port()
        tls_port = find_free_port()
        (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port, tls_port=tls_port))

        process = await start_supervised([program, "-c", str(folder / "nginx.conf"), "-p", name])
        try:
            await _wait_for(port)
            yield Site(port, tls_port, folder / "certificate.pem", psutil.Process(process.pid))
        finally:
            await kill_supervised(process)


def _write_page(folder: Path) -> None:
    folder.chmod(0o755)  # nginx gives up root's rights, where it has them
    (folder / "pages").mkdir()
    (folder / "pages" / "page").write_bytes(random.Random(3).randbytes(PAGE_BYTES))


def _certify(folder: Path) -> None:
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:*.localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 — our own command line


async def _wait_for(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
