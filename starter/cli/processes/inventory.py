"""The inventory: the commands that list what is installed and set, `handlers` and `settings`."""

import argparse
from operator import itemgetter
from typing import Any

from shared.exit import FINE
from shared.settings import Settings, describe_settings, write_setting
from starter.cli.arguments import Commands
from starter.local.terminal import echo_err, print_items, print_json


def add(commands: Commands) -> None:
    parser = commands.add("handlers", _run_handlers, "list the kinds that have a handler, and where each comes from")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of each kind's payload instead")
    commands.add("settings", _run_settings, "list every setting, its value now and where it may be set")


def _run_handlers(args: argparse.Namespace, settings: Settings) -> int:
    from activities.registry import load_registry

    registry = load_registry(settings)
    if args.schema:
        models = {kind: handler.payload for kind, handler in sorted(registry.items())}
        print_json({kind: model.describe() for kind, model in models.items() if model is not None})
        return FINE
    rows = [
        {
            "kind": kind,
            "lane": handler.lane,
            "max_attempts": handler.max_attempts,
            "timeout_seconds": handler.timeout_on(handler.lane).total_seconds(),
            "limit": "" if handler.limit is None else handler.limit.summary,
            "origin": registry.origins[kind],
            "summary": handler.summary,
        }
        for kind, handler in sorted(registry.items())
    ]

    def to_cells(row: dict[str, Any]) -> list[str]:
        return [f"{value:g} s" if name == "timeout_seconds" else str(value) for name, value in row.items()]

    print_items(
        rows, dict, ("KIND", "LANE", "ATTEMPTS", "TIMEOUT", "LIMIT", "ORIGIN", "SUMMARY"), to_cells, is_json=args.json
    )
    return FINE


def _run_settings(args: argparse.Namespace, settings: Settings) -> int:
    rows: list[dict[str, str]] = []
    for variable, default, note in describe_settings():
        name = variable.partition("_")[2].lower()
        value = write_setting(getattr(settings, name))
        rows.append({"name": name, "value": value, "default": default, "environment": variable, "note": note})

    to_cells = itemgetter("name", "value", "default", "note")
    print_items(rows, dict, ("SETTING", "NOW", "DEFAULT", "MEANING"), to_cells, is_json=args.json)
    if not args.json:
        where = "--set NAME=VALUE, as DORMICE_NAME in the environment, or in dormice.toml or --config FILE"
        echo_err(f"set one with {where}")
    return FINE
