"""Forms: reads what a form of the page has sent, and what must not be lost on the way to its confirmation."""

from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.requests import Request

from starter.extras.web.documents import find_api
from starter.extras.web.problems import Problem
from starter.extras.web.requests import BODY_EXTRA_BYTES, check_media_type, read_body, read_part

MEDIA_TYPE = "application/x-www-form-urlencoded"
FIELDS_MAX = 20
GROWTH = 3
"""How much longer a payload may be in a form, where most marks take three characters."""


async def read_form(request: Request, *known: str) -> dict[str, str]:
    """Read the fields of a form, without those that are empty; raises Problem for what is no form of this page."""
    check_media_type(request, MEDIA_TYPE)
    body = await read_body(request, find_api(request).settings.payload_max_bytes * GROWTH + BODY_EXTRA_BYTES)
    try:
        pairs = parse_qsl(body.decode("ascii"), max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, f"form: can't be read ({exc}); send it from the page") from exc
    form = dict(pairs)
    if unknown := sorted(set(form) - set(known)):
        raise Problem(HTTPStatus.BAD_REQUEST, f"{unknown[0][:60]}: is no field of this form; send it from the page")

    return form


def read_verb(request: Request, verbs: Collection[str], things: str) -> str:
    """Read the verb of the path; raises Problem for one that is none of those for `things`."""
    verb = read_part(request, "verb")
    if verb not in verbs:
        raise Problem(HTTPStatus.NOT_FOUND, f"{verb[:60]!r} is nothing that can be done to {things}")
    return verb
