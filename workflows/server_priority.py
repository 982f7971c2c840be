"""The priority that the server has for a workflow's tasks, which follows the message's own."""

import asyncio

from temporalio import workflow
from temporalio.common import Priority

with workflow.unsafe.imports_passed_through():
    from activities.server_calls import SET_PRIORITY
    from workflows.options import SERVER_CALL

FIRST = 1


class ServerPriority:
    """Follows a message's priority, also when its signal came directly from an SDK or the Web UI."""

    def __init__(self, default: int) -> None:
        """`default` is what counts if the workflow was started without a priority."""
        self._known = workflow.info().priority.priority_key or default
        self._call: asyncio.Task[None] | None = None

    def follow(self, priority: int) -> None:
        """Tell the server of another priority, while the message goes on; what it refuses is tried in the next run."""
        if priority == self._known:
            return
        self._known = priority
        # with the first priority itself, or it would wait for what it is to overtake
        first = Priority(priority_key=FIRST)
        self._call = workflow.start_activity(SET_PRIORITY, priority, priority=first, **SERVER_CALL)
        self._call.add_done_callback(_take_end)


def _take_end(call: asyncio.Task[None]) -> None:
    """Read how a call has ended, or asyncio would log that nobody did; the server logs the failure itself."""
    if not call.cancelled():
        call.exception()
