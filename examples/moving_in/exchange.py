"""What the programs of this folder share: files that appear whole or not at all, and each fault in one sentence."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar, cast

PAGE = 500
ALWAYS = datetime.fromtimestamp(0, UTC)
Item = TypeVar("Item")


class WrongInput(Exception):
    """What was given can't be used; the text is one sentence."""


class Complete(NamedTuple):
    """The last line has been given: the next one is asked for once the file is complete and on disk."""


class LeftOut(NamedTuple):
    """Something that can't be carried over; it is listed, and the exit code is 1."""

    name: str
    why: str


Line = dict[str, Any] | LeftOut | Complete


class Program(NamedTuple):
    """A program with the commands `export` and `put-back`, or only one of them."""

    purpose: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    export: Callable[[argparse.Namespace], Generator[Line]] | None
    put_back: Callable[[argparse.Namespace, Iterator[dict[str, Any]]], Iterator[LeftOut]] | None
    faults: tuple[type[Exception], ...] = ()
    """What the client of the other system raises."""

    def main(self) -> NoReturn:
        """Run the command of this process, and leave with its exit code."""
        args = self._parse()
        try:
            code = self._run(args)
        except KeyboardInterrupt:
            code = 130
        except (WrongInput, OSError, *self.faults) as exc:
            said, code = str(exc).strip() or repr(exc), 2
            sys.stderr.write(f"{Path(sys.argv[0]).stem}: {said.splitlines()[0]}\n")
        sys.stderr.flush()
        os._exit(code)  # a Temporal client that has lived shortly may crash at the interpreter's own exit

    def _parse(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=self.purpose)
        commands = parser.add_subparsers(dest="command", required=True)
        if self.export is not None:
            export = commands.add_parser("export", help="write what waits there as lines for 'dormice load'")
            self.add_arguments(export)
            export.add_argument("--to", required=True, type=Path, metavar="FILE")
            help_text = "only what is due at this moment (RFC 3339) or later"
            export.add_argument("--due-from", type=read_moment, default=ALWAYS, help=help_text)
        if self.put_back is not None:
            put_back = commands.add_parser("put-back", help="write what 'pending' has exported back there")
            self.add_arguments(put_back)
            put_back.add_argument("--from", required=True, type=Path, metavar="FILE", dest="source")
        return parser.parse_args()

    def _run(self, args: argparse.Namespace) -> int:
        if args.command == "export" and self.export is not None:
            with contextlib.closing(self.export(args)) as found:
                done, left_out = _write(args.to, found, args.due_from)
        else:
            assert self.put_back is not None
            count = sum(1 for _ in read_lines(args.source))  # a wrong line is found before any is written back
            left_out = _list(self.put_back(args, read_lines(args.source)))
            done = count - left_out
        sys.stderr.write(f"{done:,} written, {left_out:,} left out\n")
        return 1 if left_out else 0


def _write(path: Path, found: Iterator[Line], due_from: datetime) -> tuple[int, int]:
    part, written, left_out = path.with_name(f"{path.name}.part"), 0, 0
    try:
        with part.open("w", encoding="utf-8") as file:
            for line in found:
                if isinstance(line, Complete):
                    _finish(file, part, path)
                elif isinstance(line, LeftOut):
                    left_out += _list([line])
                elif datetime.fromisoformat(line["scheduled_at"]) >= due_from:
                    written += 1
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if not file.closed:
                _finish(file, part, path)
    finally:
        part.unlink(missing_ok=True)
    return written, left_out


def _finish(file: IO[str], part: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    part.replace(path)


def _list(left_out: Iterable[LeftOut]) -> int:
    count = 0
    for count, each in enumerate(left_out, start=1):  # noqa: B007 — the last number is the count
        sys.stderr.write(f"left out: {each.name}: {each.why}\n")
    return count


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Give the envelopes of a file, one by one."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
                _ = line["kind"], line["id"], datetime.fromisoformat(line["scheduled_at"]), line["payload"]
            except (ValueError, TypeError, LookupError) as exc:
                raise WrongInput(f"{path}, line {number}: is no message that 'pending' has exported ({exc})") from exc
            yield line


def to_line(kind: str, name: object, due: datetime | float | None, payload: Any, **more: Any) -> dict[str, Any]:
    """Make an envelope; a number is seconds since the epoch, and None is now. Raises ValueError for no moment."""
    if not isinstance(due, datetime):
        try:
            due = datetime.now(UTC) if due is None else datetime.fromtimestamp(due, UTC)
        except (OverflowError, OSError) as exc:
            raise ValueError(f"{due} is no moment") from exc
    moment = due.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return {"kind": kind, "id": str(name), "scheduled_at": moment, "payload": payload, **more}


def due_of(line: dict[str, Any]) -> datetime:
    """Give the moment at which an envelope is due."""
    return datetime.fromisoformat(line["scheduled_at"])


def read_json(text: str | bytes) -> Any:
    """Read JSON; what is none is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace") if isinstance(text, bytes) else text


def find_member(value: Any, name: str) -> Any:
    """Give a member of an object, None where there is none."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def read_moment(text: str) -> datetime:
    """Read a moment with an offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


def read_pair(text: str) -> tuple[str, str]:
    """Read THEIRS=OURS."""
    theirs, separator, ours = text.rpartition("=")
    if not (theirs and separator and ours):
        raise ValueError(text)
    return theirs, ours


def pages(items: Iterable[Item], size: int = PAGE) -> Iterator[list[Item]]:
    """Cut a stream into lists."""
    iterator = iter(items)
    while page := list(islice(iterator, size)):
        yield page
