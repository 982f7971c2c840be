"""The commands that tell about one message: show and explain."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shared.errors import InvalidSetting
from shared.placement import workflow_id
from shared.settings import Settings
from starter.commands import arguments
from starter.commands.arguments import Commands
from starter.commands.exit_codes import FINE
from starter.commands.interruption import run_interruptibly
from starter.screen import describe_moment, plural, print_fields, print_json, tell

if TYPE_CHECKING:
    from starter.control import Shown


def add_show(commands: Commands) -> None:
    """Add `show`."""
    for name, run, summary in (
        ("show", run_show, "show one message: where it stands and why, alive or finished"),
        ("explain", run_explain, "say why a message is due when it is: one sentence, and what was decided last"),
    ):
        parser = commands.add(name, run, summary)
        parser.add_argument("name", metavar="KIND:ID", nargs="+", help="the message; KIND ID is fine too")
        parser.set_defaults(verb=name)


def run_show(args: argparse.Namespace, settings: Settings) -> int:
    """Print all about one message."""
    shown, namespace = _look_up(args, settings)
    if args.json:
        print_json(_to_document(shown))
    else:
        _print_shown(shown, namespace)
    return _close(shown)


def run_explain(args: argparse.Namespace, settings: Settings) -> int:
    """Print why one message is due when it is."""
    shown, _ = _look_up(args, settings)
    document = _to_document(shown)
    if args.json:
        print_json(
            {name: document[name] for name in ("kind", "id", "workflow_id", "state", "due_at", "why", "decisions")}
        )
    else:
        print_fields([(document["workflow_id"], document["why"] or document["state"])])
        _print_decisions(shown)
    return _close(shown)


def _look_up(args: argparse.Namespace, settings: Settings) -> "tuple[Shown, str]":
    if len(args.name) > 2:
        raise InvalidSetting(f"{len(args.name)} names given; {args.verb} takes one message, as KIND:ID or KIND ID")
    try:
        kind, message_id = arguments.identity(":".join(args.name))
    except argparse.ArgumentTypeError as exc:
        raise InvalidSetting(f"KIND:ID {exc}") from exc
    return run_interruptibly(_show(settings, kind, message_id))


def _close(shown: "Shown") -> int:
    if shown.note:
        tell(f"note: {shown.note}; shown is what the server itself knows")
    return FINE


async def _show(settings: Settings, kind: str, message_id: str) -> "tuple[Shown, str]":
    from starter.commands.connection import open_client
    from starter.control import Control

    client = await open_client(settings)
    return await Control(client, settings).show(kind, message_id), client.namespace


def _to_document(shown: "Shown") -> dict[str, Any]:
    listed = shown.listed
    status = shown.status or shown.ended or {}
    return {
        "kind": listed.kind,
        "id": listed.id,
        "workflow_id": workflow_id(listed.kind, listed.id),
        "state": _state_of(shown),
        "lane": status.get("lane", listed.lane),
        "due_at": _due_at(shown),
        "earliest_at": _read_moment(status.get("earliest_at")) or listed.earliest_at,
        "why": status.get("why") or (listed.parked_reason and f"parked: {listed.parked_reason}") or None,
        "version": status.get("version"),
        "attempt": status.get("attempt"),
        "priority": status.get("priority", shown.priority),
        "tenant": status.get("tenant"),
        "payload": status.get("payload"),
        "revision": status.get("revision"),
        "sources": status.get("sources"),
        "correlation_id": status.get("correlation_id"),
        "result": status.get("result"),
        "decisions": shown.decisions,
        "started_at": listed.started_at,
        "history_events": shown.history_length,
        "note": shown.note or None,
    }


def _read_moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text.replace(" UTC", "Z"))


def _state_of(shown: "Shown") -> str:
    from starter.listing import ENDED_OTHERWISE

    if shown.listed.state in ENDED_OTHERWISE.values():
        return shown.listed.state
    return (shown.status or shown.ended or {}).get("state", shown.listed.state)


def _due_at(shown: "Shown") -> datetime | None:
    if shown.ended is not None or shown.status is None:
        return None if shown.ended else shown.listed.due_at
    return datetime.fromtimestamp(shown.status["due_at_epoch"], UTC)


def _print_shown(shown: "Shown", namespace: str) -> None:
    document = _to_document(shown)
    name = document["workflow_id"]
    is_over = shown.ended is not None
    fields = [
        ("message", name),
        ("state", f"{document['state']} on lane {document['lane']}"),
        ("due", "-" if is_over else describe_moment(document["due_at"])),
        ("why", document["why"] or "-"),
        ("version", _or_dash(document["version"])),
        ("attempt", _or_dash(document["attempt"])),
        ("priority", str(document["priority"])),
        ("payload", "-" if shown.status is None else json.dumps(document["payload"], ensure_ascii=False)),
    ]
    if is_over:
        fields.append(("result", json.dumps(document["result"], ensure_ascii=False)))
    fields += [(key.replace("_", " "), str(document[key])) for key in ("tenant", "correlation_id") if document[key]]
    fields.append(("history", f"{plural(shown.history_length, 'event')} in this run"))
    fields.append(("Web UI", f"/namespaces/{namespace}/workflows/{quote(shown.lives_in, safe='')}"))
    print_fields(fields)
    _print_decisions(shown)


def _print_decisions(shown: "Shown") -> None:
    for decision in shown.decisions:
        reason = f" ({decision['reason']})" if decision["reason"] else ""
        what = f"version {decision['version']}: {decision['what']}{reason}, then due {decision['due_at']}"
        print_fields([(f"  {decision['at']}", what)])


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
