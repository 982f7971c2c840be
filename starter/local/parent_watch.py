"""Parent watch: `python -m starter.local.parent_watch COMMAND …` ends COMMAND when its own parent is gone.

The parent holds the write end of this process's standard input. When the parent dies in any way, the pipe closes and
the child gets SIGTERM, then SIGKILL if it does not end. A terminal's Ctrl-C reaches neither of them, because the
parent starts this process in a session of its own: the parent alone decides in which order processes end. On Linux,
the child does not outlive a killed parent watch either.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

GRACE_SECONDS = 20.0
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>: which signal the calling process gets when its parent ends."""


def main(command: list[str]) -> NoReturn:
    """Run the command until it ends or the parent is gone; exits with the command's exit code."""
    # safe between fork and exec: it is one system call, and no other thread has begun yet
    die_too = None if sys.platform != "linux" else _make_dying_with_parent()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_too)  # noqa: S603, PLW1509 — see above

    signal.signal(signal.SIGTERM, lambda _signal, _frame: child.terminate())
    threading.Thread(target=_end_when_cut, args=(child,), daemon=True).start()
    code = child.wait()
    status = code if code >= 0 else 128 - code
    os._exit(status)


def _make_dying_with_parent() -> Callable[[], object]:
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_when_cut(child: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
