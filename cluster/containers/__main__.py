"""`./run containers`: build the image on a local base, run it as production does, and check what it promises."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from click import command, option

from cluster.containers.base import BASE, write_context
from cluster.containers.engine import DOCKERFILE, ROOT, build_arguments, find_engine
from cluster.containers.image import check_image
from shared.errors import DormiceError
from shared.exit import FINE, INTERRUPTED, PIPE_CLOSED, code_of, find_stop_signals
from starter.local.terminal import echo_err
from worker.options import parse

SKIPPED = (
    "containers: skipped: there is neither a Docker daemon nor, for root, buildah; "
    "on Debian, as root: apt-get install buildah mmdebstrap"
)


def main(arguments: Sequence[str]) -> int:
    """Run the checks and give the exit code; skipped ones are no error."""
    try:
        return parse(check, "./run containers", arguments)
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except DormiceError as exc:
        echo_err(f"containers: {exc}")
        return code_of(exc)


@command()
@option("given_base", "--base", metavar="IMAGE", help="build on this image; one of Debian's packages when left out")
def check(given_base: str | None) -> int:
    """Build the image and check it, with docker or buildah."""
    engine = find_engine()
    if engine is None:
        echo_err(SKIPPED)
        return FINE

    base = given_base or BASE
    if given_base is None:
        with tempfile.TemporaryDirectory(prefix="dormice-base-") as folder:
            write_context(Path(folder))
            engine.build(BASE, Path(folder), Path(folder, "Dockerfile"), {})

    image = f"dormice:{_read_version()}"
    echo_err(f"building {image} with {engine.name} on {base}")
    engine.build(image, ROOT, DOCKERFILE, build_arguments(base))
    asyncio.run(check_image(engine, image))
    echo_err(f"{image} is as it should be")
    return FINE


def _read_version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


if __name__ == "__main__":
    for number in find_stop_signals():
        signal.signal(number, signal.default_int_handler)
    code = main(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
