"""The inventory: the commands that list what is installed and set, `handlers` and `settings`."""

from operator import itemgetter
from typing import Any

from click import option

from shared.exit import FINE
from shared.settings import Settings, describe_settings, write_setting
from starter.cli.arguments import Arguments
from starter.cli.program import program
from starter.local.terminal import echo_err, print_items, print_json


@program.command("handlers")
@option("--schema", is_flag=True, help="print the JSON Schema of each kind's payload instead")
def run_handlers(args: Arguments, settings: Settings) -> int:
    """List the kinds that have a handler, and where each comes from."""
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


@program.command("settings")
def run_settings(args: Arguments, settings: Settings) -> int:
    """List every setting, its value now and where it may be set."""
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
