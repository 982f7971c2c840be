"""A process that has imported the program already and forks itself for each run: a run of a verb costs no imports.

What runs is the real command line in a process of its own, with its own streams, environment, folder and exit code.
"""

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    *("aiokafka", "temporalio.client", "temporalio.worker"),
    *("starter.cli.main", "starter.cli.program", "starter.control", "worker.run"),
)
REQUEST_MAX = 1 << 17
"""Bytes; the kernel hands a message of this size over in one piece."""


async def run_forked(
    address: Path, arguments: tuple[str, ...], environment: Mapping[str, str], cwd: Path, files: tuple[int, int, int]
) -> int:
    """Run the program in a fork of the process that listens at `address`, and give its exit code.

    `files` are the descriptors of its standard input, output and error. Killed by its id when the caller is cancelled.
    """
    import asyncio  # noqa: PLC0415 — not in the process that forks

    loop = asyncio.get_running_loop()
    request = json.dumps({"arguments": arguments, "environment": dict(environment), "cwd": str(cwd)}).encode()
    assert len(request) < REQUEST_MAX
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, str(address))
        socket.send_fds(connection, [request], files)
        process_id = _read_number(await loop.sock_recv(connection, 8))
        try:
            return _read_number(await loop.sock_recv(connection, 8))
        except BaseException:
            os.kill(process_id, signal.SIGKILL)
            raise


def _read_number(data: bytes) -> int:
    assert data, "the fork server has gone; its error is in the test's output"
    return int.from_bytes(data, "big", signed=True)


def serve(address: Path) -> NoReturn:
    """Import the program, then fork for each connection; ends when its parent watch ends it."""
    for module in PRELOADED:
        importlib.import_module(module)
    for _ in sys.modules["starter.cli.program"].walk():  # imports the modules of all commands
        pass

    with socket.socket(socket.AF_UNIX) as listener:
        unfinished = address.with_suffix(".new")
        listener.bind(str(unfinished))
        listener.listen()
        unfinished.rename(address)  # whoever sees it can connect
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them

        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _supervise(connection)
            connection.close()


def _supervise(connection: socket.socket) -> NoReturn:
    """Fork once more, and send the id of that process and then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, _, _ = socket.recv_fds(connection, REQUEST_MAX, 3)
    process_id = os.fork()
    if process_id == 0:
        connection.close()
        _become(json.loads(request), files)
    connection.sendall(process_id.to_bytes(8, "big"))
    _, status = os.waitpid(process_id, 0)
    connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    os._exit(0)


def _become(request: Mapping[str, Any], files: list[int]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)

    sys.stdin = open(0, closefd=False)  # noqa: SIM115 — descriptors; open for as long as the process lives
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 — as above
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 — as above
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["dormice", *request["arguments"]]
    importlib.import_module("starter.cli.main").main()
    os._exit(1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
