"""The layout workflow: keeps with a kind how many packs it has, where every process can read it without a worker."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from shared.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW


@workflow.defn(name=LAYOUT_WORKFLOW)
class LayoutWorkflow:
    """Stays open for as long as the kind is packed; what it keeps is its memo."""

    @workflow.run
    async def run(self) -> None:
        """Wait for ever."""
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def keep(self, layout: dict[str, Any]) -> None:
        """Keep another layout from now on."""
        workflow.upsert_memo({LAYOUT_MEMO: layout})
