"""Pending effects: what a signal does not yet do, because its message is paused or parked, said in one sentence."""

from shared.messages.signals import Reprioritize, Reschedule, Resume, Revise, RunNow, Signal


def find_blocking_state(signal: Signal) -> str:
    """Name the state that keeps a message from running which has taken the signal; "" where there is none."""
    if isinstance(signal, RunNow | Reschedule) or (isinstance(signal, Reprioritize) and signal.due_at is not None):
        return "paused"
    return "parked" if isinstance(signal, Resume | Revise) else ""


def explain_pending(signal: Signal, name: str) -> str:
    """Say why a message in the signal's blocking state does not run, though it has taken it, and what to do."""
    match signal:
        case Resume():
            return f"{name} is parked, which 'resume' does not end; 'dormice now {name}' runs it again"
        case Revise():
            return f"{name} is parked and keeps the new payload; 'dormice now {name}' runs it again"
        case RunNow():
            return f"{name} is paused and runs once 'dormice resume {name}' has ended the pause"
        case _:
            return (
                f"{name} is paused and keeps the new due time; it runs once 'dormice resume {name}' has ended the pause"
            )
