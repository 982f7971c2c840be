"""Signals that ask a process to end."""

import signal


def find_stop_signals() -> tuple[signal.Signals, ...]:
    """Give the signals that ask this process to end; SIGHUP (terminal closed) unless it is ignored, as by `nohup`."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)
