"""`./run containers`: build the image on a local base, run it as production does, and check what it promises."""

import asyncio
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from click import command, option

from cluster.command_line import run_command, run_process
from cluster.containers.base import BASE, write_context
from cluster.containers.engine import DOCKERFILE, ROOT, build_arguments, find_engine
from cluster.containers.image import check_image
from shared.exit import FINE
from starter.local.terminal import echo_err

SKIPPED = (
    "containers: skipped: there is neither a Docker daemon nor, for root, buildah; "
    "on Debian, as root: apt-get install buildah mmdebstrap"
)


def main(arguments: Sequence[str]) -> int:
    """Run the checks and give the exit code; skipped ones are no error."""
    return run_command(check, "containers", arguments)


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
    run_process(main)
