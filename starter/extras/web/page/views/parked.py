"""Parked messages by reason, and the replaying and dropping of those that a filter selects, after they are counted."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from shared.messages.signals import RunNow, Signal, Stop
from shared.messages.timespan import parse_duration
from starter.extras.web.documents import find_api
from starter.extras.web.page.form import read_form, read_verb
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.sending import SelectionSending, send_to
from starter.extras.web.page.server_snapshots import GROUPED_MAX
from starter.extras.web.page.snapshot import DEADLINE_SECONDS, Part, read_part
from starter.extras.web.page.template import redirect, render, render_confirmation, with_query
from starter.extras.web.problems import Problem
from starter.extras.web.requests import check_unlimited, find_access, read_query
from starter.local.terminal import plural
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage, ParkedSelection, describe_left_out
from starter.steering.status.reasons import group_reasons

FILTERS = ("kind", "reason", "older_than")
VERBS = {
    "replay": ("Replay", "replayed", "They run again, with fresh attempts."),
    "drop": ("Drop", "dropped while parked", "They end for good."),
}
SHOWN = 100
GROUPS_SHOWN = 30
COUNT_MAX = 10_000
"""Messages that are counted before a person confirms; whatever matches beyond is meant, too."""
BEGUN_SECONDS = 2.0
"""How long an answer waits for a sending that may be over soon."""


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Messages that were parked for one reason, or for reasons with the same words; `example` is one of these."""

    reason: str
    example: str
    count: int
    kinds: Sequence[str]
    first: datetime | None
    last: datetime | None


async def show_parked(request: Request) -> Response:
    """Show the groups, and the first messages."""
    query = read_query(request, (*FILTERS, "cursor"))
    find_access(request).check_whole(query.get("kind"))
    selection, kept = read_filter(query)
    page = find_page(request)
    listed = await read_part(page.list_messages(selection).read(GROUPED_MAX, query.get("cursor", "")))
    found = listed.value
    messages = [message for message in found.messages if kept.keeps(message)] if found else []
    filters = {name: query[name] for name in FILTERS if name in query}
    groups = group_by_reason(messages)

    read = len(found.messages) if found else 0
    left_out = describe_left_out(found.left_out) if found else ""
    following = with_query("/parked", filters, cursor=found.cursor) if found and found.cursor else ""
    return render(
        request,
        "parked.html",
        groups=groups[:GROUPS_SHOWN],
        other_groups=groups[GROUPS_SHOWN:],
        messages=messages[:SHOWN],
        read=read,
        shown=SHOWN,
        matched=len(messages),
        problem=listed.problem,
        left_out=left_out,
        filters=filters,
        following=following,
        is_first="cursor" not in query,
        sendings=[each for each in page.sendings if each.where == "/parked"],
        verbs=VERBS,
        kinds=sorted(find_api(request).registry),
    )


def read_filter(query: Mapping[str, str]) -> tuple[Selection, ParkedSelection]:
    """Read which parked messages are meant."""
    before = None
    if (older := query.get("older_than")) is not None:
        try:
            before = datetime.now(UTC) - min(parse_duration(older[:60]), timedelta(days=36500))
        except ValueError as exc:
            raise Problem(HTTPStatus.BAD_REQUEST, f"older_than: {exc}", "older_than") from exc
    return Selection(kind=query.get("kind"), state="parked"), ParkedSelection(reason=query.get("reason"), before=before)


def group_by_reason(messages: Sequence[ListedMessage]) -> list[ReasonGroup]:
    """Group messages by the words of the reason for which they were parked, the most frequent first."""
    groups = defaultdict[str, list[ListedMessage]](list)
    reasons = group_reasons([message.parked_reason for message in messages])
    for reason, message in zip(reasons, messages, strict=True):
        groups[reason].append(message)

    found = [
        ReasonGroup(
            reason=reason,
            example=group[0].parked_reason,
            count=len(group),
            kinds=sorted({message.kind for message in group}),
            first=min((m.parked_at for m in group if m.parked_at), default=None),
            last=max((m.parked_at for m in group if m.parked_at), default=None),
        )
        for reason, group in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)


async def confirm_parked(request: Request) -> Response:
    """Count what is meant, and ask whether it really is."""
    verb = read_verb(request, VERBS, "parked messages")
    query = read_query(request, FILTERS)
    _check(request, query)
    count = await _count(request, query)
    title, _, effect = VERBS[verb]
    number = count.value or 0
    sure = "at least " if number >= COUNT_MAX else ""
    sentences = [f"{sure}{plural(number, 'parked message')} would be meant. {effect}"]
    sentences += [f"Filter: {', '.join(f'{name} {value!r}' for name, value in query.items()) or 'none, all of them'}."]

    heading = f"{title} {sure}{plural(number, 'parked message')}?" if number else "No parked message matches"
    button = f"{title} {plural(number, 'message')}" if number else ""
    return render_confirmation(
        request, query, title=heading, button=button, sentences=sentences, problem=count.problem, asks_reason=True
    )


async def send_parked(request: Request) -> Response:
    """Replay or drop what is meant."""
    verb = read_verb(request, VERBS, "parked messages")
    form = await read_form(request, *FILTERS, "reason_for")
    query = {name: form[name] for name in FILTERS if name in form}
    _check(request, query)
    title, default_reason, _ = VERBS[verb]
    reason = form.get("reason_for", default_reason)
    signal: Signal = RunNow(reason) if verb == "replay" else Stop(reason)
    about = ", ".join(f"{name} {value!r}" for name, value in query.items()) or "all that are parked"
    control = find_api(request).control
    sending = SelectionSending(f"{title}: {about}", "/parked", send_to(control, _names(request, query), signal))
    await find_page(request).begin(sending, BEGUN_SECONDS)
    find_page(request).snapshots.forget()

    return redirect(with_query("/parked", query))


def _check(request: Request, query: Mapping[str, str]) -> None:
    access = find_access(request)
    find_page(request).check_writing(access)
    if "kind" not in query:
        check_unlimited(request)
    access.check_whole(query.get("kind"))


async def _count(request: Request, query: Mapping[str, str]) -> Part[int]:
    async def count() -> int:
        number = 0
        async for _ in _names(request, query):
            number += 1
            if number >= COUNT_MAX:
                break
        return number

    return await read_part(count(), DEADLINE_SECONDS)


async def _names(request: Request, query: Mapping[str, str]) -> AsyncIterator[tuple[str, str]]:
    """Give (kind, id) of what is meant; packs that do not answer are an error, for nobody would miss them."""
    selection, kept = read_filter(query)
    async for name in find_api(request).control.names(selection, kept.keeps):
        yield name
