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
            said = str(exc).strip() or repr(exc)
            code = 2
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
            help_text = "gets the lines that have been put back, for 'dormice stop - < FILE'"
            put_back.add_argument("--to", required=True, type=Path, metavar="FILE", help=help_text)

        return parser.parse_args()

    def _run(self, args: argparse.Namespace) -> int:
        if args.command == "export" and self.export is not None:
            found = self.export(args)
            due_from = args.due_from
        else:
            found = self._put_back(args)
            due_from = ALWAYS
        with contextlib.closing(found):
            written, left_out = _write(args.to, found, due_from)

        sys.stderr.write(f"{written:,} written, {left_out:,} left out\n")
        return 1 if left_out else 0

    def _put_back(self, args: argparse.Namespace) -> Generator[Line]:
        """Give what could not be put back, and then the lines that are over there now."""
        assert self.put_back is not None
        for _ in read_lines(args.source):
            pass  # a wrong line is found before any is written back
        left_out = set[str]()
        for each in self.put_back(args, read_lines(args.source)):
            left_out.add(each.name)
            yield each
        yield from (line for line in read_lines(args.source) if name_of(line) not in left_out)


def _write(path: Path, found: Iterator[Line], due_from: datetime) -> tuple[int, int]:
    part = path.with_name(f"{path.name}.part")
    written = 0

    left_out = 0
    try:
        with part.open("wb") as file:
            for line in found:
                if isinstance(line, Complete):
                    _finish(file, part, path)
                elif isinstance(line, LeftOut):
                    left_out += 1
                    sys.stderr.write(f"left out: {line.name}: {line.why}\n")
                elif datetime.fromisoformat(line["scheduled_at"]) >= due_from:
                    written += 1
                    file.write(_encode(line))

            if not file.closed:
                _finish(file, part, path)
    finally:
        part.unlink(missing_ok=True)

    return written, left_out


def _finish(file: IO[bytes], part: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    part.replace(path)


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
    """Make an envelope; a number is seconds since the epoch, and None is now.

    Raises ValueError, with half a sentence, for what can't be one line of JSON.
    """
    if not isinstance(due, datetime):
        try:
            due = datetime.now(UTC) if due is None else datetime.fromtimestamp(due, UTC)
        except (ValueError, OverflowError, OSError) as exc:
            raise ValueError(f"{due} is no moment") from exc

    moment = due.astimezone(UTC).isoformat().replace("+00:00", "Z")
    line = {"kind": kind, "id": str(name), "scheduled_at": moment, "payload": payload, **more}
    try:
        _encode(line)
    except (ValueError, TypeError, RecursionError) as exc:
        raise ValueError(f"what it holds is no JSON ({exc})") from exc

    return line


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def name_of(line: dict[str, Any]) -> str:
    """Give the name of the message of an envelope."""
    return f"{line['kind']}:{line['id']}"


def due_of(line: dict[str, Any]) -> datetime:
    """Give the moment at which an envelope is due."""
    return datetime.fromisoformat(line["scheduled_at"])


def read_json(text: str | bytes) -> Any:
    """Read JSON; what is none is text. Raises ValueError, with half a sentence, for what is neither."""
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as exc:
            raise ValueError(f"what it holds is no UTF-8 (byte {exc.start + 1})") from exc

    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
    except (ValueError, RecursionError) as exc:  # JSON all the same, with a number too long, or nested too deeply
        raise ValueError(f"what it holds can't be read ({exc})") from exc


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
