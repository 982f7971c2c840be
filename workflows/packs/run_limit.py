"""The limit of a pack's run: after so many cycles, or with a long history, the pack goes on in another run."""

from temporalio import workflow

from workflows import options
from workflows.packs.batches import Batches
from workflows.packs.state import PackState


class RunLimit:
    """Says when the present run of a pack is over."""

    def __init__(self, pack: PackState, batches: Batches) -> None:
        self._pack = pack
        self._batches = batches
        self._begun_bytes = workflow.info().get_current_history_size()

    @property
    def is_over(self) -> bool:
        """Whether to continue as new: with long histories at once, otherwise when there is something to run.

        A pack that sleeps in the run that it has filled leaves one state in the database. If it slept in the next one,
        there would be two until it wakes, because a run is deleted by way of the next run's first batch. Calls in
        flight are no hindrance: the next run asks their process for them.
        """
        pack = self._pack
        if not pack.in_flight.is_answered or not self.is_full:
            return False
        return self.is_history_long or pack.messages.has_due(self._batches.open_lanes(), workflow.time())

    @property
    def is_full(self) -> bool:
        """Whether the run has done all that one run is to do."""
        settings = self._batches.settings
        # packs that were filled together would all continue as new in the same minutes, again and again
        is_first = workflow.info().continued_run_id is None
        share = settings.cycles_in_first_run if is_first else settings.cycles_per_run
        maximum = max(len(self._pack.messages) * share, options.CONTINUE_AS_NEW_MIN)
        return self._batches.ended_cycles > maximum or self.is_history_long

    @property
    def is_history_long(self) -> bool:
        """Whether the history is as long as one should become; a large state at its beginning comes on top.

        Else a pack with such a state would only continue as new, again and again.
        """
        info = workflow.info()
        grown = info.get_current_history_size() - self._begun_bytes
        return info.is_continue_as_new_suggested() or grown > options.HISTORY_BYTES_MAX
