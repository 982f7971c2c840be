"""The two engines that build and run images: a Docker daemon, or buildah, which needs none."""

import os
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from cluster.containers.base import AUTHORITIES
from cluster.program import run_program

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
USER = "10001"


class Engine(Protocol):
    """What builds images and runs a command in one: read-only, without rights, on this machine's network."""

    @property
    def name(self) -> str:
        """The name of its program."""
        ...

    def build(self, image: str, context: Path, dockerfile: Path, arguments: Mapping[str, str]) -> None:
        """Build an image; raises Misconfigured when that fails."""
        ...

    def command_to_run(
        self, image: str, command: Sequence[str], variables: Mapping[str, str]
    ) -> AbstractContextManager[list[str]]:
        """Give the command that runs one in the image, and that a SIGTERM reaches; at the end nothing is left of it."""
        ...


def find_engine() -> Engine | None:
    """Give the engine of this machine; None when there is none."""
    if shutil.which("docker") is not None and _has_daemon():
        return Docker()
    if shutil.which("buildah") is not None and os.geteuid() == 0:
        return Buildah()
    return None


def build_arguments(base: str) -> dict[str, str]:
    """Give the arguments of deploy/Dockerfile: the base, and this machine's mirror and authorities if it has any."""
    of_machine = {name: os.environ[name] for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX") if name in os.environ}
    return {"BASE": base, "PIP_CERT": str(AUTHORITIES), "SSL_CERT_FILE": str(AUTHORITIES), **of_machine}


def _has_daemon() -> bool:
    found = subprocess.run(("docker", "info"), capture_output=True, check=False)  # noqa: S607 — on the PATH
    return found.returncode == 0


def _write_options(option: str, values: Mapping[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in (option, f"{name}={value}")]


@dataclass(frozen=True, slots=True)
class Docker:
    """A Docker daemon."""

    name: str = "docker"

    def build(self, image: str, context: Path, dockerfile: Path, arguments: Mapping[str, str]) -> None:
        """Build an image."""
        options = ["--network", "host", *_write_options("--build-arg", arguments)]
        command = ["docker", "build", *options, "--file", str(dockerfile), "--tag", image, str(context)]
        run_program(command, "'docker build' failed")

    @contextmanager
    def command_to_run(self, image: str, command: Sequence[str], variables: Mapping[str, str]) -> Generator[list[str]]:
        """Give the command that runs one in the image."""
        name = f"dormice-{uuid4().hex}"
        # /tmp is the container's own
        rights = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]  # noqa: S108
        options = ["--rm", "--name", name, "--network", "host", *rights, *_write_options("--env", variables)]

        try:
            yield ["docker", "run", *options, "--entrypoint", command[0], image, *command[1:]]
        finally:
            # the client of a container may be killed while the container goes on; most have ended and are gone
            removal = ("docker", "rm", "--force", name)
            subprocess.run(removal, capture_output=True, check=False)  # noqa: S603 — a name of our own


# The root is mounted again below itself, so that it can be made read-only for this process alone.
_CHANGE_ROOT = """\
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Buildah:
    """buildah, and the kernel's own namespaces to run what it has built."""

    name: str = "buildah"

    def build(self, image: str, context: Path, dockerfile: Path, arguments: Mapping[str, str]) -> None:
        """Build an image."""
        options = ["--isolation", "chroot", *_write_options("--build-arg", arguments)]
        if (ignored := dockerfile.with_name(f"{dockerfile.name}.dockerignore")).exists():
            options += ["--ignorefile", str(ignored)]
        command = ["buildah", "bud", *options, "--file", str(dockerfile), "--tag", image, str(context)]
        run_program(command, "'buildah bud' failed")

    @contextmanager
    def command_to_run(self, image: str, command: Sequence[str], variables: Mapping[str, str]) -> Generator[list[str]]:
        """Give the command that runs one in the image, in a mount namespace of its own."""
        container = run_program(["buildah", "from", "--pull-never", image], "'buildah from' failed").strip()
        try:
            yield self._enter(container, command, variables)
        finally:
            run_program(["buildah", "rm", container], "'buildah rm' failed")

    def _enter(self, container: str, command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        root = run_program(["buildah", "mount", container], "'buildah mount' failed").strip()
        path = "/opt/dormice/bin:/usr/local/bin:/usr/bin:/bin"
        environment = ["env", "-i", f"PATH={path}", *(f"{name}={value}" for name, value in variables.items())]
        rights = ["--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", *rights]
        change = ["unshare", "--mount", "sh", "-euc", _CHANGE_ROOT, "sh", root]
        return [*change, *user, *environment, *command]
