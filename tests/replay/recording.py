"""Recording of the baseline: `python -m tests.replay.recording` writes it from the present code."""

import asyncio
import io
import json
import os
import shutil
import socket
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.replay.scenarios import LIVES, PACK_LIVES, live, serve_lives
from tests.support.baseline import CODE, HISTORIES, INTERFACE, PACKAGES
from tests.support.interface import describe_interface
from tests.support.wheels import build_wheel


async def record_histories() -> None:
    """Live all lives on a fresh server and write each of their runs down, without the name of this machine."""
    shutil.rmtree(HISTORIES, ignore_errors=True)
    HISTORIES.mkdir(parents=True)
    stopping = asyncio.Event()

    with tempfile.TemporaryDirectory() as folder:
        options = EmbeddedOptions(data=Path(folder), port=find_free_port(), ui_port=None)
        async with run_embedded(options) as server:
            client = await server.connect()
            serving = asyncio.create_task(serve_lives(client, stopping))
            names = (*LIVES, *PACK_LIVES)
            lived = await asyncio.gather(*(live(client, name) for name in names))
            stopping.set()
            await serving

    for name, histories in zip(names, lived, strict=True):
        for number, history in enumerate(histories):
            text = json.dumps(json.loads(history.to_json()), separators=(",", ":"))
            text = text.replace(f"@{socket.gethostname()}", "@host")
            (HISTORIES / f"{name}-{number}.json").write_text(f"{text}\n", "utf-8")


def record_interface() -> None:
    """Write down what programs and people may rely on."""
    INTERFACE.write_text(json.dumps(describe_interface(), indent=1) + "\n", "utf-8")


def record_code() -> None:
    """Build the wheel as a release does, and keep what workers need of it; the same code gives the same file."""
    with tempfile.TemporaryDirectory() as folder:
        built = build_wheel(Path(folder))
        with zipfile.ZipFile(built) as wheel, tarfile.open(CODE, "w:xz") as archive:
            for name in sorted(wheel.namelist()):
                room = name.partition("/")[0]
                if room in PACKAGES or name.endswith((".dist-info/METADATA", ".dist-info/entry_points.txt")):
                    data = wheel.read(name)
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    asyncio.run(record_histories())
    record_interface()
    record_code()
    sys.stdout.write(f"the baseline is recorded in {HISTORIES.parent}\n")
    sys.stdout.flush()
    os._exit(0)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
