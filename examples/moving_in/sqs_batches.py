"""Exports messages of SQS from files that the AWS command line writes or reads, and writes such files.

A file holds the output of `aws sqs receive-message`, or the entries of `aws sqs send-message-batch`; one or several
such documents after each other. The payload has the body, as JSON where it is, and the attributes with their values.
"""

import argparse
import json
import shutil
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

from examples.moving_in.exchange import (
    LeftOut,
    Line,
    Program,
    WrongInput,
    due_of,
    find_member,
    name_of,
    pages,
    read_json,
    to_line,
)

DELAY_MAX_SECONDS = 900
BATCH_MAX = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say where the files are."""
    parser.add_argument("files", nargs="+", type=Path, help="with put-back: one new folder for files of entries")
    parser.add_argument("--kind", default="", help="kind of the messages")


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give a message for each one, file by file; an entry's id is only unique in its file, so that is named, too."""
    for path in args.files:
        for document in _read_documents(path):
            entries: Any = document
            if isinstance(document, dict):  # without members nothing was received
                entries = find_member(document, "Messages") or find_member(document, "Entries") or []
            if not isinstance(entries, list):
                raise WrongInput(f"{path}: is no file of SQS messages; they are in a list")
            for number, entry in enumerate(cast("list[Any]", entries), start=1):
                yield _read(args.kind, path, number, entry)


def _read(kind: str, path: Path, number: int, entry: Any) -> Line:
    name = f"{path}, message {number}"
    try:
        return _to_line(kind, path, entry)
    except (LookupError, TypeError, AttributeError) as exc:
        return LeftOut(name, f"is no message of SQS ({exc!r})")
    except ValueError as exc:
        return LeftOut(name, str(exc))


def _to_line(kind: str, path: Path, entry: Any) -> Line:
    name = entry.get("MessageId") or f"{path.stem}-{entry['Id']}"
    # a received message has had its delay; an entry's begins when its file was written
    sent = time.time() if "MessageId" in entry else path.stat().st_mtime
    attributes = {key: _value(one) for key, one in entry.get("MessageAttributes", {}).items()}
    body = read_json(entry["Body" if "Body" in entry else "MessageBody"])
    unique = entry.get("Attributes", entry).get("MessageDeduplicationId")
    more = {"idempotency_key": unique} if unique else {}
    return to_line(kind, name, sent + entry.get("DelaySeconds", 0), {"body": body, "attributes": attributes}, **more)


def _read_documents(path: Path) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    try:
        text = path.read_text("utf-8").strip()
        while text:
            document, end = decoder.raw_decode(text)
            text = text[end:].lstrip()
            yield document
    except (ValueError, RecursionError) as exc:
        raise WrongInput(f"{path}: is no JSON ({exc})") from exc


def _value(attribute: dict[str, Any]) -> Any:
    return attribute.get("StringValue", attribute.get("BinaryValue"))


def _read_texts(value: Any) -> dict[str, str] | None:
    """Give an object of texts, None for what is none."""
    if not isinstance(value, dict):
        return None
    texts = cast("dict[str, Any]", value)
    return texts if all(isinstance(text, str) for text in texts.values()) else None


def put_back(args: argparse.Namespace, lines: Iterator[dict[str, Any]]) -> Iterator[LeftOut]:
    """Write files of ten entries for `aws sqs send-message-batch`; their delays begin when they are sent."""
    (folder,) = args.files
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    if folder.exists():
        raise WrongInput(f"{folder}: is there already; name a new folder")

    late = list[LeftOut]()
    for number, page in enumerate(pages(_to_entries(lines, late), BATCH_MAX), start=1):
        (part / f"batch-{number:06}.json").write_text(json.dumps(page), "utf-8")

    part.rename(folder)
    yield from late


def _to_entries(lines: Iterator[dict[str, Any]], late: list[LeftOut]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        delay = max(0, round(due_of(line).timestamp() - time.time()))
        payload = line["payload"]

        if delay > DELAY_MAX_SECONDS:
            late.append(LeftOut(name_of(line), "is due in more than 15 minutes, for which SQS keeps nothing"))
            continue

        given = _read_texts(find_member(payload, "attributes") or {})
        if given is None:
            late.append(LeftOut(name_of(line), "its payload's attributes are no object of texts"))
            continue

        attributes = {key: {"DataType": "String", "StringValue": value} for key, value in given.items()}
        body = find_member(payload, "body")
        body = body if isinstance(body, str) else json.dumps(body)
        yield {"Id": str(number), "MessageBody": body, "DelaySeconds": delay, "MessageAttributes": attributes}


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, put_back).main()
