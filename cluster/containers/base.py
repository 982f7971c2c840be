"""The local base of the image: Debian with Python, made of packages, where no registry of images is reached."""

import platform
import shutil
from pathlib import Path

from cluster.program import run_program
from shared.errors import Misconfigured
from starter.local.terminal import echo_err

BASE = "localhost/dormice-base:local"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = ("python3", "python3-pip", "ca-certificates")

# Debian's pip refuses to install beside Debian's packages; in an image that nothing else uses, it may
HOOKS = (
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    f"copy-in {AUTHORITIES} {AUTHORITIES.parent}",
)

# a shell finds Python's programs in both places, as in Python's own image
DOCKERFILE = """\
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


def write_context(folder: Path) -> None:
    """Write what the base is built of, a file system and its Dockerfile, into a folder.

    Raises Misconfigured when the file system can't be made.
    """
    if shutil.which("mmdebstrap") is None:
        raise Misconfigured("mmdebstrap is missing; install it as root, on Debian with: apt-get install mmdebstrap")

    echo_err("making a base of Debian's packages; this takes about a minute")
    hooks = [f"--customize-hook={hook}" for hook in HOOKS]
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", *hooks]
    run_program([*command, _find_suite(), str(folder / "root.tar")], "'mmdebstrap' failed")
    (folder / "Dockerfile").write_text(DOCKERFILE)


def _find_suite() -> str:
    """Give the name of this machine's Debian; elsewhere that of the stable one."""
    try:
        found = platform.freedesktop_os_release()
    except OSError:
        return "stable"
    return found.get("VERSION_CODENAME", "stable") if found["ID"] == "debian" else "stable"
