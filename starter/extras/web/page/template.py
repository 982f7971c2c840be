"""Templates: fill them in, everything escaped, and send them with headers that let nothing else in."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shared.messages.timespan import format_moment, format_seconds
from starter.extras.web.documents import find_api
from starter.extras.web.problems import Problem
from starter.extras.web.requests import find_access, find_address, find_path
from starter.local.terminal import describe_distance, plural

HERE = Path(__file__).parent
STATIC = {
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "page.css": "text/css",
    "page.js": "text/javascript",
}
NOTICE = "dormice_notice"
NOTICE_SECONDS = 30
NOTICE_MAX = 900
YEAR_SECONDS = 365 * 86400
HEADERS = {
    # no script, style or picture but our own files, and no form that leads elsewhere
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
VIEWS = (
    ("/", "Overview"),
    ("/messages", "Messages"),
    ("/parked", "Parked"),
    ("/gates", "Gates and idle"),
    ("/dead-letters", "Dead letters"),
    ("/workers", "Workers"),
)


def render(request: Request, name: str, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
    """Answer with a template."""
    page = request.app.state.page
    api = find_api(request)
    access = find_access(request)
    notice = unquote(request.cookies.get(NOTICE, ""))
    shared = {
        "views": VIEWS,
        "path": find_path(request),
        "address": find_address(request),
        "namespace": api.client.namespace,
        "is_writable": page.is_writable,
        "may_write": access.may_write,
        "who": access.name,
        "has_session": any(each.startswith("dormice_session_") for each in request.cookies),
        "notice": notice,
        "now": datetime.now(UTC),
        "version": page.version,
    }
    html = load_templates().get_template(name).render(shared | values)
    response = Response(html, status.value, HEADERS, "text/html; charset=utf-8")
    if notice:
        response.delete_cookie(NOTICE, httponly=True, samesite="strict")

    return response


def render_confirmation(
    request: Request,
    fields: Mapping[str, str],
    *,
    title: str,
    button: str,
    sentences: Sequence[str],
    problem: str,
    asks_reason: bool,
) -> Response:
    """Ask before a form's `fields` are sent to the address of this request; without `button` nothing can be sent.

    `problem` is why what is meant could not be counted: it takes the place of the sentences.
    """
    action = find_path(request)
    back = with_query(action.rpartition("/")[0], fields)
    said = [f"They could not be counted: {problem}."] if problem else sentences
    values: dict[str, Any] = {"title": title, "button": button, "sentences": said, "asks_reason": asks_reason}
    return render(request, "confirm.html", **values, action=action, fields=fields, back=back)


def redirect(path: str, notice: str = "") -> Response:
    """Lead to a view, which shows the notice once."""
    response = RedirectResponse(path, HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})
    if notice:
        text = quote(notice[:NOTICE_MAX])
        response.set_cookie(NOTICE, text, NOTICE_SECONDS, httponly=True, samesite="strict")
    return response


async def show_static(request: Request) -> Response:
    """Give a file of ours; its address changes with its content, so browsers may keep it."""
    name = request.path_params["name"]
    if name not in STATIC:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such file; the page itself names those that there are")
    headers = {"Cache-Control": f"max-age={YEAR_SECONDS}, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(_read_static(name), media_type=STATIC[name], headers=headers)


@cache
def load_templates() -> Environment:
    """Give the templates, with what they may call."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "when": show_moment,
        "moment": format_moment,
        "age": format_seconds,
        "number": "{:,}".format,
        "sentence": _to_sentence,
    }
    names: Any = environment.globals
    names.update(plural=plural, static=_address_static, message_path=message_path, with_query=with_query)

    return environment


def show_moment(moment: datetime | float | None, none: str = "-") -> str | Markup:
    """Write how far away a moment is, with the moment itself as title."""
    if moment is None:
        return none
    moment = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    exact = format_moment(moment.timestamp())
    text = describe_distance(moment)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), exact, text)


def _to_sentence(text: str) -> str:
    """Write the half of a sentence as a whole one."""
    ending = "" if text.endswith(".") else "."
    return f"{text[:1].upper()}{text[1:]}{ending}"


def message_path(kind: str, message_id: str, verb: str = "") -> str:
    """Give the path of a message; an id may hold anything."""
    return f"/messages/{quote(kind, safe='')}/{quote(message_id, safe='')}{verb and '/'}{verb}"


def with_query(path: str, query: Mapping[str, Any] | None = None, **changes: Any) -> str:
    """Give a path with parameters, without those that are empty."""
    wanted = {name: value for name, value in {**(query or {}), **changes}.items() if value not in (None, "")}
    return f"{path}?{urlencode(wanted)}" if wanted else path


@cache
def _read_static(name: str) -> bytes:
    return (HERE / "static" / name).read_bytes()


@cache
def _address_static(name: str) -> str:
    return f"/static/{name}?{hashlib.sha256(_read_static(name)).hexdigest()[:12]}"
