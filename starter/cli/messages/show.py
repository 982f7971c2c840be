"""The commands that show single messages: show and explain."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from click import argument

from shared.errors import MessageNotFound, RetryLater
from shared.exit import FINE, code_of
from shared.messages.timespan import format_moment
from shared.settings import Settings
from starter.cli.arguments import Arguments, read_name
from starter.cli.connection import open_client
from starter.cli.messages.waiting import EPILOG, explain_end, wait_for_end, wait_option
from starter.cli.program import program
from starter.local.disk import DEFAULT_DATA
from starter.local.terminal import describe_moment, echo_err, plural, print_fields, print_json

if TYPE_CHECKING:
    from starter.steering.message_view import MessageView

Print = Callable[["MessageView", dict[str, Any]], None]
WHY = ("kind", "id", "workflow_id", "state", "due_at", "why", "decisions")
"""The fields that `explain --json` prints."""

FINAL = ("done", "stop", "expired", "parked")
"""Decisions after which nothing is due."""

names_argument = argument(
    "names", metavar="KIND:ID...", nargs=-1, required=True, help="the messages; for a single one, KIND ID works too"
)


@program.command("show", epilog=EPILOG)
@names_argument
@wait_option
async def show(args: Arguments, settings: Settings) -> int:
    """Show messages: where each stands and why, alive or finished."""
    return await _print_each(_print_all, (), args, settings)


@program.command("explain")
@names_argument
async def explain(args: Arguments, settings: Settings) -> int:
    """Say why messages are due when they are: one sentence, and the last decisions."""
    args.wait = None
    return await _print_each(_print_why, WHY, args, settings)


async def _print_each(print_text: Print, keys: Sequence[str], args: Arguments, settings: Settings) -> int:
    """Print each message; exit code 1 if one is not known, 3 if one can't be asked now, 4 or 5 as --wait says."""
    from starter.control import Control
    from starter.steering.message_view import to_document
    from starter.steering.status.web_ui import find_page, find_ui_address

    is_pair = len(args.names) == 2 and ":" not in args.names[0]
    given = (":".join(args.names),) if is_pair else args.names
    names = [*map(read_name, given)]
    client = await open_client(settings)
    control = Control(client, settings)
    ui_address = find_ui_address(settings, client.service_client.config.target_host, DEFAULT_DATA)
    code = FINE
    separator = ""
    waits_until = None if args.wait is None else time.monotonic() + args.wait.total_seconds()
    for kind, message_id in names:
        try:
            if waits_until is None:
                view = await control.show(kind, message_id)
            else:
                left = max(0.0, waits_until - time.monotonic())
                view = await wait_for_end(control, kind, message_id, timedelta(seconds=left))
        except (MessageNotFound, RetryLater) as exc:
            echo_err(f"dormice: {exc}")
            code = max(code, code_of(exc))
            continue
        document = to_document(view, ui_address + find_page(client.namespace, view.lives_in))
        if args.json:
            print_json({name: document[name] for name in keys or document})
        else:
            sys.stdout.write(separator)
            print_text(view, document)
            separator = "\n"
        if view.note:
            echo_err(f"note: {view.note}; shown is what the server itself knows")
        if args.wait is not None:
            found, sentence = explain_end(view, args.wait)
            code = max(code, found)
            if sentence:
                echo_err(f"dormice: {sentence}")
    return code


def _print_all(view: "MessageView", document: dict[str, Any]) -> None:
    from starter.steering.status.web_ui import UNKNOWN

    fields = [
        ("message", document["workflow_id"]),
        ("state", f"{document['state']} on lane {document['lane']}"),
        ("due", "soon" if document["is_due_soon"] else describe_moment(document["due_at"])),
        *([("expires", describe_moment(document["expires_at"]))] if document["expires_at"] else []),
        ("why", document["why"] or "-"),
        *((key, "-" if document[key] is None else str(document[key])) for key in ("version", "attempt", "priority")),
        ("payload", _describe_payload(view)),
    ]
    if view.ended is not None:
        fields.append(("result", json.dumps(document["result"], ensure_ascii=False)))
    fields += [(key.replace("_", " "), str(document[key])) for key in ("tenant", "correlation_id") if document[key]]
    hint = "" if document["web_ui"].startswith("http") else f" {UNKNOWN}"
    history = f"{plural(view.history_length, 'event')} in this run"
    fields += [("history", history), ("Web UI", document["web_ui"] + hint)]
    print_fields(fields)
    _print_decisions(document)


def _describe_payload(view: "MessageView") -> str:
    if not view.is_payload_kept:
        return "- (its pack kept none when the message finished)"
    return "-" if view.status is None else json.dumps(view.status["payload"], ensure_ascii=False)


def _print_why(_: "MessageView", document: dict[str, Any]) -> None:
    print_fields([(document["workflow_id"], document["why"] or document["state"])])
    _print_decisions(document)


def _print_decisions(document: dict[str, Any]) -> None:
    for decision in document["decisions"]:
        at, due_at = (format_moment(decision[name].timestamp()) for name in ("at", "due_at"))
        reason = f" ({decision['reason']})" if decision["reason"] else ""
        then = "" if decision["what"] in FINAL else f", then due {due_at}"
        print_fields([(f"  {at}", f"version {decision['version']}: {decision['what']}{reason}{then}")])
