"""The list of messages: solo and packed alike, filtered by what the address says, a page at a time."""

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from shared.lanes import LANES
from starter.extras.web.documents import find_api
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.snapshot import DEADLINE_SECONDS, read_part
from starter.extras.web.page.template import render, with_query
from starter.extras.web.requests import find_access, read_selection
from starter.steering.selection import STATES
from starter.steering.status.listing import describe_left_out

SHOWN = 50


async def show_messages(request: Request) -> Response:
    """Show a page of it."""
    selection, query = read_selection(request, "cursor")
    api = find_api(request)
    page = find_page(request)
    listed, count = await asyncio.gather(
        read_part(page.list_messages(selection).read(SHOWN, query.get("cursor", ""))),
        read_part(api.control.estimate(selection), DEADLINE_SECONDS),
    )
    found = listed.value
    filters = {name: value for name, value in query.items() if name != "cursor"}
    access = find_access(request)

    messages = found.messages if found else []
    left_out = describe_left_out(found.left_out) if found else ""
    first = with_query("/messages", filters) if "cursor" in query else ""
    cursor = found.cursor if found else ""
    return render(
        request,
        "messages.html",
        messages=messages,
        problem=listed.problem,
        left_out=left_out,
        count=count.value,
        count_problem=count.problem,
        filters=filters,
        first=first,
        following=_find_next(filters, cursor),
        kinds=[kind for kind in sorted(api.registry) if access.kinds is None or kind in access.kinds],
        lanes=list(LANES),
        states=STATES,
    )


def _find_next(filters: Mapping[str, str], cursor: str) -> str:
    return with_query("/messages", filters, cursor=cursor) if cursor else ""
