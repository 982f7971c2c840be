"""Sending: one signal to many messages, with what is said on the way and at the end."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting
from shared.signals import Signal
from starter.commands import arguments
from starter.commands.exit_codes import WRONG
from starter.screen import plural, print_json, tell

if TYPE_CHECKING:
    from starter.control import Control, Tally

Name = tuple[str, str]

STDIN = "-"
TOLD_EVERY_SECONDS = 5.0


class Names:
    """Messages that were named on the command line, or for "-" on standard input, one a line."""

    def __init__(self, given: Sequence[str]) -> None:
        """Check the names; raises InvalidSetting for the first wrong one."""
        self.wrong = 0
        """Lines of standard input that named no message; each is told and passed over."""
        self._is_stdin = STDIN in given
        if self._is_stdin and len(given) > 1:
            raise InvalidSetting("KIND:ID: '-' reads all names from standard input and stands alone")
        self._given = [] if self._is_stdin else [_read_name(text) for text in given]

    async def read(self) -> AsyncIterator[Name]:
        """Give (kind, id) of each."""
        from starter.feed import Feed

        for name in self._given:
            yield name
        if self._is_stdin:
            async for number, line in Feed(enumerate(sys.stdin.buffer, start=1)):
                text = line.decode(errors="replace").strip()
                if not text:
                    continue
                try:
                    yield _read_name(text)
                except InvalidSetting as exc:
                    self.wrong += 1
                    tell(f"dormice: line {number}: {exc}")


def _read_name(text: str) -> Name:
    try:
        return arguments.identity(text)
    except argparse.ArgumentTypeError as exc:
        raise InvalidSetting(f"KIND:ID {exc}") from exc


class Sending:
    """One signal on its way to many messages."""

    def __init__(self, verb: str, signal: Signal, *, is_json: bool) -> None:
        self.missing = 0
        """Messages that were not there; each is told."""
        self._verb = verb
        self._signal = signal
        self._is_json = is_json

    def ask(self, count: int) -> int:
        """Say how many messages would be meant, and what to add; gives the exit code."""
        if self._is_json:
            print_json({"verb": self._verb, "matched": count, "sent": 0})
        tell(f"{self._verb}: {plural(count, 'message')} would be meant; nothing was sent, add --yes to send it")
        return WRONG

    def pass_over(self, reason: str) -> None:
        """Count and tell a message that the signal can't go to."""
        self.missing += 1
        tell(f"dormice: {reason}")

    async def run(self, control: "Control", names: AsyncIterator[Name]) -> None:
        """Send the signal to each; then, or when interrupted, print how many took it."""
        from starter.control import Tally

        tally = Tally(tell_missing=self.pass_over)
        telling = asyncio.create_task(self._tell_now_and_then(tally))
        try:
            await control.send_to_each(names, self._signal, tally)
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
            self._report(tally.sent)

    async def _tell_now_and_then(self, tally: "Tally") -> None:
        while True:
            await asyncio.sleep(TOLD_EVERY_SECONDS)
            tell(f"{self._verb}: sent to {plural(tally.sent, 'message')} so far")

    def _report(self, sent: int) -> None:
        if self._is_json:
            print_json({"verb": self._verb, "sent": sent, "not_found": self.missing})
        else:
            tell(f"{self._verb}: sent to {plural(sent, 'message')}, {self.missing:,} not found")
