"""Checks: what the doctor looks at, what each finds, how bad that is, and what to do about it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from temporalio.service import RPCError, RPCStatusCode

from shared.errors import DormiceError, RetryLater
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error

NOT_LOOKED_AT = "not looked at"


class Severity(StrEnum):
    """How bad a finding is, from good to worst."""

    FINE = "fine"
    UNKNOWN = "unknown"
    WARNING = "warning"
    UNREACHABLE = "unreachable"
    WRONG = "wrong"


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
        advice = remedy if seen else ""
        return cls(level, seen or remedy, advice, about)


fine = partial(Finding, Severity.FINE)
unknown = partial(Finding, Severity.UNKNOWN)
warning = partial(Finding, Severity.WARNING)
wrong = partial(Finding, Severity.WRONG)


def find_worst(findings: Iterable[Finding]) -> Severity:
    """Give the worst level; fine when there are no findings."""
    return max((finding.level for finding in findings), key=list(Severity).index, default=Severity.FINE)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by how bad they are."""
    return sorted(findings, key=lambda finding: list(Severity).index(finding.level), reverse=True)


BLOCKING = (Severity.UNREACHABLE, Severity.WRONG)

Found = Finding | Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at; it is skipped if a check in `needs` has found a blocking problem."""

    name: str
    look: Callable[[], Awaitable[Found]]
    needs: tuple[str, ...] = ()
    is_slow: bool = False
    """A healthy server may be slow here: a timeout is no problem."""


async def run_checks(checks: Sequence[Check], seconds: float) -> list[Finding]:
    """Make checks one after the other, each within `seconds`; one that needs a failed check is reported as skipped."""
    found: list[Finding] = []
    causes: dict[str, str] = {}

    for check in checks:
        cause = next((causes[name] for name in check.needs if name in causes), None)
        seen = await _look(check, seconds) if cause is None else unknown(f"{NOT_LOOKED_AT}, see {cause}")
        findings = stamp(check.name, seen)
        if cause is not None or any(finding.level in BLOCKING for finding in findings):
            causes[check.name] = cause or check.name
        found += findings

    return found


def stamp(name: str, found: Found) -> list[Finding]:
    """Write into findings which check has made them."""
    return [replace(finding, check=name) for finding in ([found] if isinstance(found, Finding) else found)]


async def _look(check: Check, seconds: float) -> Found:
    try:
        async with asyncio.timeout(seconds):
            return await check.look()
    except TimeoutError:
        return _describe_silence(check, seconds)
    except RPCError as exc:
        if exc.status is RPCStatusCode.DEADLINE_EXCEEDED:
            return _describe_silence(check, min(seconds, CALL_TIMEOUT.total_seconds()))
        return Finding.of(translate_rpc_error(exc))
    except DormiceError as exc:
        return Finding.of(exc)


def _describe_silence(check: Check, seconds: float) -> Finding:
    seen = f"nothing came within {seconds:g} s"
    if check.is_slow:
        return unknown(f"{seen}: there are many messages")
    remedy = "see whether it is well and can be reached from here; --seconds gives it more"
    return Finding(Severity.UNREACHABLE, seen, remedy)
