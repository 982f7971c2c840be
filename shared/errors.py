"""Every error dormice raises, as one tree, split by what the caller does next.

DormiceError
├── RetryLater     something else is out of order: wait with backoff and jitter, then try again
├── GiveUp         this one input can't succeed as it is: report it and go on with the next
└── Misconfigured  a person must change something before anything works

What only one module raises is a class of that module.
The command line maps them to its exit codes: GiveUp and Misconfigured are 2, RetryLater is 3.
"""

import importlib.util
import sys
from typing import Literal

EnvelopeFlaw = Literal[
    "NotUtf8",
    "NotJson",
    "NotAnObject",
    "TooLarge",
    "UnknownKind",
    "UnknownSchemaVersion",
    "MissingField",
    "InvalidField",
]
"""What is wrong with an envelope, for programs that select by it; the names are part of the interface."""


class DormiceError(Exception):
    """Base of all errors of this application; its text is one sentence a person can act on."""


class RetryLater(DormiceError):
    """Nothing is wrong with the request; the same call may succeed later."""


class ServerUnreachable(RetryLater):
    """No Temporal server answered at the configured address."""


class ServerBusy(RetryLater):
    """The server answered that it is at its limit and can't take the call now."""


class PackNotServed(RetryLater):
    """No worker answers for the pack that holds the message; the server keeps a signal for it meanwhile."""


class StandsStill(RetryLater):
    """The workflow that holds the message can't go on, because its task fails; the server keeps a signal meanwhile."""


class GiveUp(DormiceError):
    """This input will never succeed as it is."""


class InvalidEnvelope(GiveUp):
    """An envelope broke a rule; `field` names where, `problem` says what and what to do, `flaw` is for programs."""

    def __init__(self, field: str, problem: str, flaw: EnvelopeFlaw = "InvalidField") -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.flaw: EnvelopeFlaw = flaw


class IdempotencyKeyReused(InvalidEnvelope):
    """An idempotency key came with another body than at the first time; nothing was changed."""

    def __init__(self, key: str) -> None:
        problem = f"{key!r} was used before for another body; send that body again, or take a new key"
        super().__init__("idempotency_key", problem)


class InvalidOutcome(GiveUp):
    """A handler returned something that is no outcome, or an outcome with impossible values."""


class MessageNotFound(GiveUp):
    """No message with this kind and id is known to the server."""


class MessageAlive(GiveUp):
    """A message that was to be started is alive, and was left unchanged; `run_id` is that of its workflow."""

    def __init__(self, workflow_id: str, run_id: str) -> None:
        super().__init__(
            f"{workflow_id} is alive already, nothing was started; 'dormice show {workflow_id}' tells more"
        )
        self.workflow_id = workflow_id
        self.run_id = run_id


class ConditionUnmet(GiveUp):
    """A message is no longer as the condition of an upsert wants it, and was left unchanged."""


class StartRefused(GiveUp):
    """A message can't be started as it is: its pack has no room for it, or the server refuses it."""


class Misconfigured(DormiceError):
    """A setting, a handler module or the server's set-up must be changed by a person first."""


class InvalidSetting(Misconfigured):
    """A setting's value is unusable; the text names the setting and where it came from."""


class InvalidHandler(Misconfigured):
    """A handler module can't be loaded, or two handlers claim one kind."""


class PayloadKeyMissing(Misconfigured):
    """The data that was read is encrypted, and this process lacks the key; the data itself is in order."""


class DiskFull(Misconfigured):
    """A disk has no room left for what must be written; the text names the folder or file."""


class ServerNotReady(Misconfigured):
    """The namespace or a search attribute that messages need is missing on the server."""


def check_extra(extra: str, purpose: str, *packages: str) -> None:
    """Raise Misconfigured when a package of an extra is not installed; `purpose` is what needs it."""
    # asked before the import: an ImportError would also come of a fault in a module that is there
    missing = [name for name in packages if not has_package(name)]
    if missing:
        what = f"the packages {' and '.join(missing)}, which are"
        if len(missing) == 1:
            what = f"the package {missing[0]}, which is"
        raise Misconfigured(f"{purpose} needs {what} not installed; install dormice with its extra '{extra}'")


def has_package(name: str) -> bool:
    """Say whether a package can be imported, without importing it."""
    if name in sys.modules:  # its spec may be gone: kombu puts another module in its own place
        return sys.modules.get(name) is not None
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it is a part of is missing
        return False
