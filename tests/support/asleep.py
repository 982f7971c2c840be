"""Messages that are asleep from the start, as after a cycle: what may run ahead of time, a sender can't ask for."""

from temporalio.client import Client
from temporalio.common import TypedSearchAttributes

from shared.messages.message import MessageState
from shared.messages.placement import MESSAGE_WORKFLOW
from shared.temporal.search_attributes import attributes_at_start


async def start_asleep(client: Client, queue: str, state: MessageState, now: float) -> None:
    """Start a message with a workflow of its own in a state, indexed as at `now` (seconds since the epoch)."""
    await client.start_workflow(
        MESSAGE_WORKFLOW,
        state.dump(),
        id=state.workflow_id,
        task_queue=queue,
        search_attributes=TypedSearchAttributes(attributes_at_start(state, now, 60.0)),
    )
