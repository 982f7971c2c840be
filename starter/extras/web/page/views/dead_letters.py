"""Dead letters of a topic: records that could not become messages and why; people replay or drop them."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from shared.kafka.connection import check_broker, kafka_options
from shared.settings import Settings
from starter.extras.web.documents import find_api
from starter.extras.web.page.form import read_form, read_verb
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.sending import SelectionSending
from starter.extras.web.page.snapshot import DEADLINE_SECONDS, read_part
from starter.extras.web.page.template import redirect, render, render_confirmation, with_query
from starter.extras.web.problems import Problem
from starter.extras.web.requests import check_unlimited, read_query
from starter.local.terminal import plural

if TYPE_CHECKING:
    from starter.records.dead_letter_topic import DeadLetterTopic, LetterSelection
    from starter.records.dead_letters import DeadLetter

FILTERS = ("topic", "error_class")
SHOWN = 100
TOPICS_SECONDS = 4.0
LETTERS_SECONDS = 6.0
"""Most that each of the two readings takes, one after the other."""
VERBS = {
    "replay": ("Replay", "The original records are sent to their topic again."),
    "drop": ("Drop", "They are given up; their records stay in the topic, marked."),
}
NOT_SET = (
    "No Kafka address is set, so there are no dead letters to look for; if you use Kafka, set DORMICE_KAFKA_SERVERS "
    "or kafka_servers in dormice.toml, HOST:PORT, and start this page again."
)


@dataclass(frozen=True, slots=True)
class LetterRow:
    """One dead letter as a row."""

    position: str
    source: str
    error_class: str
    reason: str
    attempts: int
    key: str


@dataclass(frozen=True, slots=True)
class LetterList:
    """The first letters that wait, and whether there are more."""

    rows: list[LetterRow]
    is_cut: bool


async def show_dead_letters(request: Request) -> Response:
    """Show the letters of the topic that the address names, or which topics have any."""
    check_unlimited(request)
    query = read_query(request, FILTERS)
    settings = find_api(request).settings
    topics = await read_part(find_topics(settings), TOPICS_SECONDS)
    found = (
        await read_part(read_letters(settings, query), LETTERS_SECONDS)
        if "topic" in query and not topics.problem
        else None
    )
    is_set = settings.kafka_servers != Settings().kafka_servers

    problem = topics.problem if is_set or not topics.problem else ""
    not_set = NOT_SET if topics.problem and not is_set else ""
    letters = found.value.rows if found and found.value else []
    letters_problem = found.problem if found else ""
    return render(
        request,
        "dead_letters.html",
        topics=topics.value,
        problem=problem,
        not_set=not_set,
        servers=settings.kafka_servers,
        letters=letters,
        is_cut=bool(found and found.value and found.value.is_cut),
        letters_problem=letters_problem,
        filters=query,
        topic=query.get("topic", ""),
        sendings=[each for each in find_page(request).sendings if each.where == "/dead-letters"],
        verbs=VERBS,
    )


async def find_topics(settings: Settings) -> list[str]:
    """Name the topics that have dead letters."""
    from shared.kafka.safe_producer import list_topics, open_admin  # noqa: PLC0415 — as for `dead_letter_topic`
    from starter.records.dead_letters import SUFFIX  # noqa: PLC0415

    await check_broker(settings)
    async with open_admin(kafka_options(settings)) as admin:
        topics = await list_topics(admin)
    return sorted(name.removesuffix(SUFFIX) for name in topics if name.endswith(SUFFIX))


@contextlib.asynccontextmanager
async def _open(settings: Settings, topic: str) -> "AsyncGenerator[DeadLetterTopic]":
    from starter.records.dead_letter_topic import open_box  # noqa: PLC0415 — Kafka is an extra

    async with open_box(kafka_options(settings), topic) as box:
        yield box


def _select(query: Mapping[str, str]) -> "LetterSelection":
    from starter.records.dead_letter_topic import LetterSelection  # noqa: PLC0415 — Kafka is an extra

    return LetterSelection(error_class=query.get("error_class"))


async def read_letters(settings: Settings, query: Mapping[str, str]) -> LetterList:
    """Read the first letters that wait."""
    rows = list[LetterRow]()
    async with _open(settings, query["topic"]) as box, contextlib.aclosing(box.find(_select(query))) as finding:
        async for letter, _ in finding:
            if len(rows) >= SHOWN:
                return LetterList(rows, is_cut=True)
            rows.append(_to_row(letter))
    return LetterList(rows, is_cut=False)


def _to_row(letter: "DeadLetter") -> LetterRow:
    raw = letter.record.key
    key = "-" if raw is None else raw.decode(errors="backslashreplace")
    return LetterRow(
        position=letter.position,
        source=f"{letter.topic}/{letter.partition}/{letter.offset}",
        error_class=letter.error_class,
        reason=letter.message,
        attempts=letter.attempts,
        key=key,
    )


async def confirm_dead_letters(request: Request) -> Response:
    """Count what is meant, and ask whether it really is."""
    verb = read_verb(request, VERBS, "dead letters")
    query = read_query(request, FILTERS)
    _check(request, query)
    count = await read_part(_count(find_api(request).settings, query), DEADLINE_SECONDS)
    title, effect = VERBS[verb]
    number = count.value or 0
    what = plural(number, "dead letter")
    of_class = f", of class {query['error_class']}" if "error_class" in query else ""
    sentences = [f"{what} of topic {query['topic']}{of_class} would be meant. {effect}"]

    button = f"{title} {what}" if number else ""
    heading = f"{title} {what}?" if number else "No dead letter matches"
    return render_confirmation(
        request, query, title=heading, button=button, sentences=sentences, problem=count.problem, asks_reason=False
    )


async def send_dead_letters(request: Request) -> Response:
    """Replay or drop what is meant."""
    verb = read_verb(request, VERBS, "dead letters")
    form = await read_form(request, *FILTERS)
    _check(request, form)
    settings = find_api(request).settings

    async def run(sending: SelectionSending) -> None:
        async with _open(settings, form["topic"]) as box:
            async for done in box.handle(verb, _pick(box, form)):
                sending.counts.sent = done

    sending = SelectionSending(f"{VERBS[verb][0]}: topic {form['topic']}", "/dead-letters", run)
    await find_page(request).begin(sending, DEADLINE_SECONDS)
    return redirect(with_query("/dead-letters", form))


def _check(request: Request, query: Mapping[str, str]) -> None:
    check_unlimited(request)
    find_page(request).check_writing(request.scope["access"])
    if "topic" not in query:
        raise Problem(HTTPStatus.BAD_REQUEST, "topic: is missing; name the topic that the records came from", "topic")


async def _count(settings: Settings, query: Mapping[str, str]) -> int:
    async with _open(settings, query["topic"]) as box:
        return len([None async for _ in _pick(box, query)])


async def _pick(box: "DeadLetterTopic", query: Mapping[str, str]) -> "AsyncIterator[DeadLetter]":
    async for letter, _ in box.find(_select(query)):
        yield letter
