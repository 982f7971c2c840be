"""Following: messages of a list as they come, change and end, as `list --follow` prints them."""

import asyncio
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import MessageNotFound, RetryLater
from shared.messages.placement import workflow_id
from shared.messages.timespan import format_exact, format_moment
from shared.temporal.backoff import backoff_seconds, rest_seconds
from starter.local.terminal import clean, echo_err, plural, print_json

if TYPE_CHECKING:
    from starter.control import Control
    from starter.steering.pages import MessagePages
    from starter.steering.status.listing import ListedMessage

INTERVAL_SECONDS = 2.0
FOLLOWED_MAX = 1000
PAGES_MAX = 10
LOOKED_UP_MAX = 50
"""Messages that have left the list and are looked up one by one at a look; the others wait for the next."""

HEADER = ("AT", "WHAT", "STATE", "LANE", "DUE", "MESSAGE")
WIDTHS = (8, 7, 10, 6, 23)
"""Of all columns but the last, so that a line can be written before the next one is known."""


@dataclass
class Following:
    """Looks at a list again and again, and prints what differs from the look before."""

    control: "Control"
    pages: "MessagePages"
    is_json: bool
    known: "dict[tuple[str, str], ListedMessage]" = field(default_factory=dict[Any, Any])
    lacks_packs: bool = False
    """Whether packs did not answer at the last look."""

    async def run(self) -> None:
        """Follow until cancelled; raises RetryLater only when the very first look fails."""
        is_whole = await self._read_and_compare(is_first=True)
        if is_whole:
            echo_err(f"following {plural(len(self.known), 'message')}; Ctrl-C ends it")
        else:
            echo_err(f"following the first {FOLLOWED_MAX:,} messages and what comes in front of them; a filter helps")

        if not self.is_json:
            self._write(HEADER)

        failures = 0
        pause = INTERVAL_SECONDS

        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()

            try:
                await self._read_and_compare()
            except RetryLater as exc:
                failures += 1
                pause = max(INTERVAL_SECONDS, backoff_seconds(failures))
                if failures == 1:
                    echo_err(f"dormice: {exc}; it is asked again until it answers")
            else:
                if failures:
                    echo_err("the server answers again")
                failures = 0
                pause = rest_seconds(time.monotonic() - began, INTERVAL_SECONDS)

    async def _read_and_compare(self, *, is_first: bool = False) -> bool:
        """Compare the list with the look before; gives whether all of it was read."""
        from starter.steering.status.listing import describe_left_out

        found = dict[tuple[str, str], "ListedMessage"]()
        cursor = ""
        left_out = list[str]()
        for _ in range(PAGES_MAX):
            messages, cursor, silent = await self.pages.read(FOLLOWED_MAX - len(found), cursor)
            found |= {(listed.kind, listed.id): listed for listed in messages}
            left_out += silent
            if not cursor or len(found) >= FOLLOWED_MAX:
                break
        if left_out and not self.lacks_packs:
            echo_err(f"dormice: {describe_left_out(left_out)}")
        self.lacks_packs = bool(left_out)
        if is_first:
            self.known = found
            return not cursor
        for name, listed in found.items():
            change = "seen" if cursor else "new"
            self._compare(name, listed, change)
        # of what a silent pack holds nobody knows anything
        left = [] if left_out else [name for name in self.known if name not in found]
        for name in left[:LOOKED_UP_MAX]:
            await self._print_why_gone(name)
        sys.stdout.flush()
        return not cursor

    async def _print_why_gone(self, name: tuple[str, str]) -> None:
        """Find out why a message is not in the list any more."""
        from starter.steering.message_view import HAS_ENDED

        try:
            listed = await self.control.look_up(*name)
        except MessageNotFound:
            del self.known[name]
            return
        except RetryLater:  # its pack is not served, say; the next look tries again
            return
        if listed.state in HAS_ENDED:
            del self.known[name]
            self._print("ended", listed)
        else:
            self._compare(name, listed, "seen")

    def _compare(self, name: tuple[str, str], listed: "ListedMessage", unknown: str) -> None:
        before = self.known.get(name)
        if before is not None and before.state == listed.state and listed.is_due_soon:
            return  # its due time has come, or is one that the index does not know: what follows will show
        self.known[name] = listed
        if before is None:
            self._print(unknown, listed)
        elif (before.state, before.lane, before.due_at) != (listed.state, listed.lane, listed.due_at):
            self._print("changed", listed)

    def _print(self, what: str, listed: "ListedMessage") -> None:
        if self.is_json:
            print_json({"at": format_exact(time.time()), "what": what, **listed.to_document()})
            return
        due = "soon" if listed.is_due_soon else "-"
        if listed.state == "active" and listed.due_at is not None:
            due = format_moment(listed.due_at.timestamp())

        at = format_moment(time.time())[11:19]
        name = workflow_id(listed.kind, listed.id)
        reason = f"  ({listed.parked_reason})" if listed.state == "parked" else ""
        self._write((at, what, listed.state, listed.lane, due, name + reason))

    def _write(self, cells: tuple[str, ...]) -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
        sys.stdout.write("  ".join([*padded, clean(cells[-1])]) + "\n")
