"""Pending effects: one sentence about what a signal does not do yet, because its message is paused or parked."""

from shared.messages.signals import Reprioritize, Reschedule, Resume, Revise, RunNow, Signal


def find_blocking_state(signal: Signal) -> str:
    """Name the state in which a message does not run in spite of the signal; "" when there is none."""
    if isinstance(signal, RunNow | Reschedule) or (isinstance(signal, Reprioritize) and signal.due_at is not None):
        return "paused"
    return "parked" if isinstance(signal, Resume | Revise) else ""


def explain_pending(signal: Signal, name: str) -> str:
    """Say why a message in that state does not run although it has taken the signal, and what to do."""
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
