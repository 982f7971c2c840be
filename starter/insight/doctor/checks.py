"""Checks: what the doctor looks at; a check that fails or gets no answer neither stops nor delays the others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from temporalio.service import RPCError, RPCStatusCode

from shared.errors import DormiceError
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error
from starter.insight.doctor.finding import Finding, Severity

CHECKS = {
    "installation": "versions of dormice, Python and Temporal's SDK",
    "handlers": "every installed handler module and those of the setting `handlers` load",
    "settings": "lanes, weights of tenants, encryption keys and the deployment of the settings can be meant",
    "open files": "the limit of open files, against what one worker process may need",
    "disk": "room where the embedded server keeps its messages",
    "server": "a Temporal server answers, of a version that dormice has been tried with",
    "namespace": "the namespace is there and in use",
    "retention": "how long the server knows a finished message",
    "search attributes": "all five are there, with their types",
    "worker heartbeats": "workers tell the server of their slots, which idle capacity and forecasts go by",
    "fairness": "tenants of one priority take turns",
    "visibility": "the visibility table has no index that messages never use",
    "limits": "the server's history shards, and its largest payload against `payload_max_bytes`",
    "clock": "this machine's clock against the server's: a workflow is started and deleted for that",
    "workers": "each lane that needs a worker has one, all of one version",
    "backlog": "no task of a lane waits for long",
    "overdue": "no message of a lane that is served has waited for five minutes beyond its tolerance",
    "workflows": "no workflow's task fails over and over",
    "kinds": "every kind of which a message is alive has a handler here",
    "broker": "a Kafka broker answers and lets us in",
    "topic": "each topic named with `--topic`: partitions, replicas, how many of them must have a record",
    "dead letters": "the dead-letter topic of each, or that it can be made",
    "outcomes": "the topic of the setting `outcomes_topic`",
}
"""Name → what it looks at, in the order of the report."""

NOT_LOOKED_AT = "not looked at"

BLOCKING = (Severity.UNREACHABLE, Severity.WRONG)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at; it is skipped if a check in `needs` has found a blocking problem."""

    name: str
    look: Callable[[], Awaitable[Sequence[Finding]]]
    needs: tuple[str, ...] = ()
    is_slow: bool = False
    """A healthy server may be slow here: a timeout is no problem."""


async def run_checks(checks: Sequence[Check], seconds: float) -> list[Finding]:
    """Make checks one after the other, each within `seconds`; one that needs a failed check is reported as skipped."""
    found: list[Finding] = []
    causes: dict[str, str] = {}
    for check in checks:
        cause = next((causes[name] for name in check.needs if name in causes), None)
        if cause is not None:
            causes[check.name] = cause
            findings: Sequence[Finding] = [Finding(Severity.UNKNOWN, f"{NOT_LOOKED_AT}, see {cause}")]
        else:
            findings = await _look(check, seconds)
            if any(finding.level in BLOCKING for finding in findings):
                causes[check.name] = check.name
        found += stamp(check.name, findings)
    return found


def stamp(name: str, findings: Sequence[Finding]) -> list[Finding]:
    """Write into findings which check has made them."""
    return [replace(finding, check=name) for finding in findings]


async def _look(check: Check, seconds: float) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(seconds):
            return await check.look()
    except TimeoutError:
        return [_tell_silence(check, seconds)]
    except RPCError as exc:
        if exc.status is RPCStatusCode.DEADLINE_EXCEEDED:
            return [_tell_silence(check, min(seconds, CALL_TIMEOUT.total_seconds()))]
        return [Finding.of(translate_rpc_error(exc))]
    except DormiceError as exc:
        return [Finding.of(exc)]


def _tell_silence(check: Check, seconds: float) -> Finding:
    seen = f"nothing came within {seconds:g} s"
    if check.is_slow:
        return Finding(Severity.UNKNOWN, f"{seen}: there are many messages")
    return Finding(
        Severity.UNREACHABLE, seen, "see whether it is well and can be reached from here; --seconds gives it more"
    )
