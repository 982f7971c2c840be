"""Sending: one signal to many messages, with progress on the way and a summary at the end."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting
from shared.messages.signals import Signal
from starter.cli import arguments
from starter.cli.exit_codes import FINE, PARTLY, WRONG
from starter.screen import echo_err, plural, print_json

if TYPE_CHECKING:
    from starter.control import Control
    from starter.steering.sender import SignalCounts

Name = tuple[str, str]

STDIN = "-"
TOLD_EVERY_SECONDS = 5.0

NO_MATCH = "no message matches; 'dormice list' shows those that are alive"


class NamedMessages:
    """Messages that were named on the command line, or for "-" on standard input, one a line."""

    def __init__(self, given: Sequence[str]) -> None:
        """Check the names; raises InvalidSetting for the first wrong one."""
        self.wrong = 0
        """Lines of standard input that name no message; each is printed and skipped."""
        self._is_stdin = STDIN in given
        if self._is_stdin and len(given) > 1:
            raise InvalidSetting("KIND:ID: '-' reads all names from standard input and stands alone")
        self._given = [] if self._is_stdin else [_read_name(text) for text in given]

    async def read(self) -> AsyncIterator[Name]:
        """Give (kind, id) of each."""
        from starter.files.threaded_iterator import ThreadedIterator

        for name in self._given:
            yield name
        if self._is_stdin:
            async for number, line in ThreadedIterator(enumerate(sys.stdin.buffer, start=1)):
                text = line.decode(errors="replace").strip()
                if not text:
                    continue
                try:
                    yield _read_name(text)
                except InvalidSetting as exc:
                    self.wrong += 1
                    echo_err(f"dormice: line {number}: {exc}")


def _read_name(text: str) -> Name:
    try:
        return arguments.identity(text)
    except argparse.ArgumentTypeError as exc:
        raise InvalidSetting(f"KIND:ID {exc}") from exc


class SignalRun:
    """One signal on its way to many messages."""

    def __init__(self, verb: str, signal: Signal, *, is_json: bool) -> None:
        self.passed_over = 0
        """Known messages that the signal was not sent to; each is printed."""
        self.unknown = 0
        """Unknown messages, not counting those that the signal did not find; each is printed."""
        self._verb = verb
        self._signal = signal
        self._is_json = is_json

    def ask(self, count: int) -> int:
        """Print how many messages are selected, and that `--yes` is missing; gives the exit code."""
        if self._is_json:
            print_json({"verb": self._verb, "matched": count, "sent": 0})
        if count:
            echo_err(f"{self._verb}: {plural(count, 'message')} would be meant; nothing was sent, add --yes to send it")
        else:
            echo_err(f"{self._verb}: {NO_MATCH}")
        return WRONG

    def pass_over(self, reason: str) -> None:
        """Count and print a known message that the signal is not sent to."""
        self.passed_over += 1
        _report(reason)

    def note_unknown(self, reason: str) -> None:
        """Count and print an unknown message."""
        self.unknown += 1
        _report(reason)

    async def run(self, control: "Control", names: AsyncIterator[Name], *, are_named: bool = False) -> int:
        """Send the signal to each; then, or when interrupted, print how many got it. Gives the exit code."""
        from starter.steering.sender import SignalCounts

        signal_counts = SignalCounts(report=_report)
        reporting = asyncio.create_task(self._tell_now_and_then(signal_counts))
        is_complete = False
        try:
            await control.send_to_each(names, self._signal, signal_counts, are_named=are_named)
            is_complete = True
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting
            self._summarize(signal_counts, is_complete=is_complete)
        is_partial = signal_counts.waiting or (
            are_named and (signal_counts.missing or self.unknown or self.passed_over)
        )
        return PARTLY if is_partial else FINE

    async def _tell_now_and_then(self, signal_counts: "SignalCounts") -> None:
        while True:
            await asyncio.sleep(TOLD_EVERY_SECONDS)
            echo_err(f"{self._verb}: sent to {plural(signal_counts.sent, 'message')} so far")

    def _summarize(self, signal_counts: "SignalCounts", *, is_complete: bool) -> None:
        missing = signal_counts.missing + self.unknown
        counts = {"waiting": signal_counts.waiting, "not_found": missing, "passed_over": self.passed_over}
        if self._is_json:
            print_json({"verb": self._verb, "sent": signal_counts.sent, **counts})
        elif is_complete and not signal_counts.sent and not any(counts.values()):
            echo_err(f"{self._verb}: {NO_MATCH}")
        else:
            waiting = f" ({signal_counts.waiting:,} of them can't take it yet)" if signal_counts.waiting else ""
            others = f", {self.passed_over:,} passed over" if self.passed_over else ""
            sent = f"sent to {plural(signal_counts.sent, 'message')}{waiting}"
            echo_err(f"{self._verb}: {sent}, {missing:,} not found{others}")


def _report(sentence: str) -> None:
    echo_err(f"dormice: {sentence}")
