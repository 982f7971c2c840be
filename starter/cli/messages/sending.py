"""Sending: one signal to messages that are named or selected, with progress on the way and a summary at the end."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from click import argument

from shared.errors import InvalidSetting, MessageNotFound
from shared.exit import FINE, PARTLY, WRONG
from shared.messages.json_value import parse_json
from shared.messages.placement import workflow_id
from shared.messages.signals import Signal
from shared.settings import Settings
from starter.cli.arguments import Arguments, read_name
from starter.cli.connection import open_control
from starter.local.terminal import echo_err, plural, print_json
from starter.steering.selection import Selection

if TYPE_CHECKING:
    from starter.control import Control
    from starter.steering.status.listing import ListedMessage

Name = tuple[str, str]

STDIN = "-"
REPORTED_EVERY_SECONDS = 5.0

NAMES_HELP = "the messages; - reads them from standard input: a line each, KIND:ID or an object with kind and id"

NO_MATCH = "no message matches; 'dormice list' shows those that are alive"


names_argument = argument("ids", metavar="[KIND:ID]...", nargs=-1, help=NAMES_HELP)


class SignalRun:
    """One signal on its way to many messages; named ones that are not in `state` are passed over."""

    def __init__(self, verb: str, signal: Signal, args: Arguments, state: str | None = None) -> None:
        from starter.steering.sender import SignalCounts

        self._verb = verb
        self._signal = signal
        self._args = args
        self._state = state
        self._counts = SignalCounts(report=_report)
        self._passed_over = 0
        self._wrong = 0
        """Lines of standard input that name no message; each is printed and skipped."""

    async def run(
        self, settings: Settings, selection: Selection, keep: "Callable[[ListedMessage], bool] | None" = None
    ) -> int:
        """Send the signal to the named messages, or without any to the selected ones; gives the exit code.

        Raises InvalidSetting for the first wrong name on the command line.
        """
        ids = self._args.ids
        if STDIN in ids and len(ids) > 1:
            raise InvalidSetting("KIND:ID: '-' reads all names from standard input and stands alone")
        named = None if STDIN in ids else [*map(read_name, ids)]
        control = await open_control(settings)
        if ids:
            await self._send(control, self._pick_named(control, named), are_named=True)
            is_partial = self._is_partial or self._counts.missing or self._passed_over or self._wrong
            return PARTLY if is_partial else FINE
        from starter.steering.stored.memo_counts import MessageCount

        names = control.names(selection) if keep is None else control.names(selection, keep)
        if self._args.yes:
            await self._send(control, names)
            return PARTLY if self._is_partial else FINE
        if keep is None:
            found = await control.estimate(selection)
        else:
            found = MessageCount(len([name async for name in names]))
        if self._args.json:
            print_json({"verb": self._verb, "matched": found.number, "sent": 0})
        meant = f"{found.describe()} would be meant; nothing was sent, add --yes to send it"
        said = meant if found.number else NO_MATCH
        echo_err(f"{self._verb}: {said}")
        return WRONG

    @property
    def _is_partial(self) -> bool:
        return bool(self._counts.waiting or self._counts.unsent)

    async def _pick_named(self, control: "Control", named: list[Name] | None) -> AsyncIterator[Name]:
        """Give the named messages, from standard input without a list; report those that are not in the state."""
        async for kind, message_id in self._read_names(named):
            try:
                state = self._state and (await control.look_up(kind, message_id)).state
            except MessageNotFound as exc:
                self._counts.missing += 1
                _report(str(exc))
                continue

            if state == self._state:
                yield kind, message_id
            else:
                self._passed_over += 1
                name = workflow_id(kind, message_id)
                _report(f"{name} is not {self._state} but {state}; nothing was sent to it")

    async def _read_names(self, named: list[Name] | None) -> AsyncIterator[Name]:
        from starter.files.threaded_iterator import ThreadedIterator

        for name in named or ():
            yield name
        if named is not None:
            return
        async for number, line in ThreadedIterator(enumerate(sys.stdin.buffer, start=1)):
            try:
                if text := line.decode(errors="replace").strip():
                    yield read_line(text)
            except InvalidSetting as exc:
                self._wrong += 1
                _report(f"line {number}: {exc}")

    async def _send(self, control: "Control", names: AsyncIterator[Name], *, are_named: bool = False) -> None:
        """Send the signal to each; then, or when interrupted, print how many got it."""
        reporting = asyncio.create_task(self._report_regularly())
        is_complete = False
        try:
            await control.send_to_each(names, self._signal, self._counts, are_named=are_named)
            is_complete = True
        finally:
            reporting.cancel()
            self._summarize(is_complete=is_complete)

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORTED_EVERY_SECONDS)
            echo_err(f"{self._verb}: sent to {plural(self._counts.sent, 'message')} so far")

    def _summarize(self, *, is_complete: bool) -> None:
        sent = self._counts.sent
        waiting = self._counts.waiting
        missing = self._counts.missing
        unsent = self._counts.unsent
        passed_over = self._passed_over
        counts = {"sent": sent, "waiting": waiting, "not_found": missing, "passed_over": passed_over, "unsent": unsent}

        if self._args.json:
            print_json({"verb": self._verb, **counts})
        elif is_complete and not any(counts.values()):
            echo_err(f"{self._verb}: {NO_MATCH}")
        else:
            late = f" ({waiting:,} of them can't take it yet)" if waiting else ""
            parts = [f"sent to {plural(sent, 'message')}{late}", f"{missing:,} not found"]
            parts += [f"{passed_over:,} passed over"] if passed_over else []
            parts += [f"{unsent:,} unsent"] if unsent else []
            echo_err(f"{self._verb}: {', '.join(parts)}")


def read_line(text: str) -> Name:
    """Read the KIND:ID of a message, or an object that has them, as `load` takes it and `list --json` prints it."""
    if not text.startswith("{"):  # with which no kind begins
        return read_name(text)

    try:
        named = parse_json(text)
    except ValueError as exc:
        raise InvalidSetting(f"{exc}; write KIND:ID, or an object with kind and id") from exc

    kind = named.get("kind")
    message_id = named.get("id")
    if not (isinstance(kind, str) and isinstance(message_id, str)):
        raise InvalidSetting("is an object without the texts kind and id; add them, or write KIND:ID")
    return read_name(f"{kind}:{message_id}")


def _report(sentence: str) -> None:
    echo_err(f"dormice: {sentence}")
