"""Findings: what a check has seen, how bad that is, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shared.errors import DormiceError, RetryLater


class Severity(StrEnum):
    """How bad a finding is, from good to worst."""

    FINE = "fine"
    UNKNOWN = "unknown"
    WARNING = "warning"
    UNREACHABLE = "unreachable"
    WRONG = "wrong"

    @property
    def severity(self) -> int:
        """The higher the worse."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `about` is its lane or topic, `check` is filled in by the code that runs the check."""

    level: Severity
    seen: str
    remedy: str = ""
    about: str = ""
    check: str = ""

    @classmethod
    def of(cls, error: DormiceError, about: str = "") -> "Finding":
        """Make a finding from an error, whose text ends with what to do."""
        seen, _, remedy = " ".join(str(error).split()).rpartition("; ")
        level = Severity.UNREACHABLE if isinstance(error, RetryLater) else Severity.WRONG
        return cls(level, seen or remedy, remedy if seen else "", about)


def find_worst(findings: Iterable[Finding]) -> Severity:
    """Give the worst level; fine when there are no findings."""
    return max((finding.level for finding in findings), key=lambda level: level.severity, default=Severity.FINE)
