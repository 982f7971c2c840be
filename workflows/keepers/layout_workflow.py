"""The layout workflow: keeps how many packs a kind has, where every process can read it without a worker."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from shared.messages.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW
    from shared.packs.reading import read_layout
    from workflows.description import describe_layout
    from workflows.replay.cancellation import ignores_cancellation, set_details
    from workflows.replay.signal_handlers import IgnoresUnknownSignals, signal_handler


@workflow.defn(name=LAYOUT_WORKFLOW)
class LayoutWorkflow(IgnoresUnknownSignals):
    """Stays open for as long as the kind is packed; its memo holds the layout."""

    @workflow.run
    @ignores_cancellation
    async def run(self) -> None:
        """Wait for ever."""
        self._tell(workflow.memo_value(LAYOUT_MEMO, type_hint=dict[str, Any]))
        await workflow.wait_condition(lambda: False)

    @signal_handler(read_layout)
    def keep(self, layout: dict[str, Any]) -> None:
        """Replace the layout."""
        workflow.upsert_memo({LAYOUT_MEMO: layout})
        self._tell(layout)

    def _tell(self, layout: dict[str, Any]) -> None:
        set_details(describe_layout(layout))
