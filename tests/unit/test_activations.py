"""What a cached run keeps of its activations: nothing but copies of small parts."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow, WorkflowActivation
from temporalio.worker import WorkflowInstance

from chaos.simulation.replica import activation
from shared.messages.placement import PACK_WORKFLOW
from shared.packs.entry import to_heading
from shared.temporal.converter import DATA_CONVERTER
from worker.lanes.activations import detach, let_go

LARGE_BYTES = 64_000_000  # the allocator gives so much back to the system as soon as it is free
SHARE_LEFT_MAX = 0.5


@dataclass
class Run:
    """The run of a pack."""

    workflow_id: str = "price~0"
    workflow_type: str = PACK_WORKFLOW
    task_queue: str = "dormice-short"
    run_id: str = "run-1"
    continued_from: str = ""
    task_seconds: float = 10.0


def count_bytes_kept(let_go_of: Callable[[WorkflowInstance], None]) -> int:
    """Give the memory that a run takes more once it has begun with a large input that it does not need."""
    heading = to_heading("price", "short", index=0, packs=1, size=1000, coalesce=0.0, stored_share=0.3)
    instance = activation.build_instance(Run(), 1_800_000_000.0)
    process = psutil.Process()
    before = process.memory_info().rss

    _begin(instance, {**heading, "entries": [], "unknown": "x" * LARGE_BYTES})
    let_go_of(instance)
    gc.collect()
    return process.memory_info().rss - before


def _begin(instance: WorkflowInstance, wire: dict[str, object]) -> None:
    (payload,) = DATA_CONVERTER.payload_converter.to_payloads([wire])
    act = WorkflowActivation(run_id="run-1", timestamp=activation.to_timestamp(1_800_000_000.0))
    act.jobs.append(activation.initialize_job(Run(), [payload], 1_800_000_000.0))
    instance.activate(act)


async def test_a_run_keeps_nothing_of_a_large_activation() -> None:
    """A part of a protobuf message keeps the whole message in memory, and the SDK has such parts."""
    kept = count_bytes_kept(let_go)

    assert kept < SHARE_LEFT_MAX * LARGE_BYTES


async def test_without_it_the_sdk_keeps_the_whole_activation() -> None:
    """When this fails, the SDK lets go by itself, and the copies are needed no more."""
    kept = count_bytes_kept(lambda _: None)

    assert kept > SHARE_LEFT_MAX * LARGE_BYTES


def test_the_details_of_a_run_are_the_same_in_copies() -> None:
    """The memo, the headers and the last result are parts of the first activation."""
    init = InitializeWorkflow()
    init.memo.fields["counts"].data = b"7"
    init.headers["trace"].data = b"abc"
    init.last_completion_result.payloads.append(Payload(data=b"result"))
    described = activation.describe_instance(Run(), 1_800_000_000.0)
    info = replace(described.info, raw_memo=dict(init.memo.fields), headers=dict(init.headers))
    details = replace(described, info=info, last_completion_result=init.last_completion_result)

    copies = detach(details)

    assert copies.info.raw_memo == {"counts": Payload(data=b"7")}
    assert copies.info.headers == {"trace": Payload(data=b"abc")}
    assert copies.last_completion_result == Payloads(payloads=[Payload(data=b"result")])
    assert copies.info.raw_memo["counts"] is not details.info.raw_memo["counts"]
    assert copies.last_completion_result is not details.last_completion_result
    assert copies.info.workflow_id == details.info.workflow_id
