"""The status of a shift: what its heartbeats tell people, and its next try after it was broken off."""

from dataclasses import dataclass, field

from shared.keepers.idle import PullCounts


@dataclass(slots=True)
class PullStatus:
    """How a shift is doing; shared by its parts."""

    pulled: PullCounts = field(default_factory=PullCounts)
    state: str = "looking"
    """For people."""
    failures: int = 0
    """Calls that have failed since the last successful look into the index."""
