"""Lets go of activations, of which the SDK keeps some small parts as long as a run is cached.

A part of a protobuf message keeps the whole message in memory, and a pack's activations have its whole state, or all
results of a batch: several times what the pack itself takes while it sleeps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

Part = TypeVar("Part", bound=Message)


def detach(details: WorkflowInstanceDetails) -> WorkflowInstanceDetails:
    """Return the same details with copies of what belongs to the first activation."""
    info = replace(
        details.info,
        headers=_copy_each(details.info.headers),
        raw_memo=_copy_each(details.info.raw_memo),
    )
    failure = details.last_failure
    last_failure = None if failure is None else _copy(failure)
    last_result = _copy(details.last_completion_result)
    return replace(details, info=info, last_completion_result=last_result, last_failure=last_failure)


def let_go(instance: WorkflowInstance) -> None:
    """Replace what a run's instance keeps of its last activation by copies."""
    # temporalio 1.35 has these names; without them, only memory is lost
    held = vars(instance)
    if "_current_internal_flags" in held:
        held["_current_internal_flags"] = tuple(held["_current_internal_flags"])

    version = held.get("_deployment_version_for_current_task")
    if version is not None:
        held["_deployment_version_for_current_task"] = _copy(version)

    given = held.get("_workflow_input")
    if given is not None and not isinstance(given.headers, dict):
        given.headers = _copy_each(given.headers)


def _copy(part: Part) -> Part:
    copy = type(part)()
    copy.CopyFrom(part)
    return copy


def _copy_each(payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    return {name: _copy(payload) for name, payload in payloads.items()}
