"""Signals by which somebody asks a process to end."""

import signal


def find_stop_signals() -> tuple[signal.Signals, ...]:
    """Give those that ask this process to end.

    The end of its terminal is among them, unless whoever started the process has it ignored, as `nohup` does.
    """
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)
