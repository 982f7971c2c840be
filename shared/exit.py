"""Exit of a process: the signals that ask for it, and the codes that it leaves with, with what they mean."""

import signal

from shared.errors import DormiceError, MessageNotFound, RetryLater

FINE = 0
PARTLY = 1
WRONG = 2
UNREACHABLE = 3
NOT_DONE = 4
NOT_IN_TIME = 5
DEFECT = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

MEANINGS = {
    FINE: "fine",
    PARTLY: "done, but something was rejected, failed, already alive or not found",
    WRONG: "wrong input, usage or configuration",
    UNREACHABLE: "no server answers, or it has no room; the same command may succeed later",
    NOT_DONE: "with --wait: the message is parked, was stopped, or has ended otherwise than done",
    NOT_IN_TIME: "with --wait: the message has not ended in that time, and goes on",
    DEFECT: "a defect of dormice itself; --verbose shows where",
    INTERRUPTED: "interrupted by Ctrl-C",
    PIPE_CLOSED: "the reader of standard output went away (as in `| head`)",
}


def code_of(error: DormiceError) -> int:
    """Give the exit code of a command that an error ends."""
    if isinstance(error, MessageNotFound):
        return PARTLY
    return UNREACHABLE if isinstance(error, RetryLater) else WRONG


def find_stop_signals() -> tuple[signal.Signals, ...]:
    """Give the signals that ask this process to end; SIGHUP (terminal closed) unless it is ignored, as by `nohup`."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)
