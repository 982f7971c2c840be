"""The commands that list what is installed and set: handlers, settings."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
from datetime import timedelta
from typing import Any

from shared.settings import Settings, describe_settings
from starter.cli.arguments import Commands
from starter.cli.exit_codes import FINE
from starter.screen import echo_err, print_json, print_table


def add_catalogue(commands: Commands) -> None:
    """Add `handlers` and `settings`."""
    commands.add("handlers", run_handlers, "list the kinds that have a handler, and where each comes from")
    commands.add("settings", run_settings, "list every setting, its value now and where it may be set")


def run_handlers(args: argparse.Namespace, settings: Settings) -> int:
    """Print the handlers that this machine would load."""
    from activities.registry import load_registry

    registry = load_registry(settings)
    rows = [
        {
            "kind": kind,
            "lane": handler.lane,
            "max_attempts": handler.max_attempts,
            "timeout_seconds": handler.timeout_on(handler.lane).total_seconds(),
            "origin": registry.origins[kind],
            "summary": handler.summary,
        }
        for kind, handler in sorted(registry.items())
    ]
    if args.json:
        for row in rows:
            print_json(row)
    else:
        cells = [[_write(row[name], name) for name in row] for row in rows]
        print_table(("KIND", "LANE", "ATTEMPTS", "TIMEOUT", "ORIGIN", "SUMMARY"), cells)
    return FINE


def run_settings(args: argparse.Namespace, settings: Settings) -> int:
    """Print the settings that result from flags, environment, file and defaults."""
    rows = [
        (variable, variable.partition("_")[2].lower(), default, note) for variable, default, note in describe_settings()
    ]
    if args.json:
        for variable, name, default, note in rows:
            now = write_setting(getattr(settings, name))
            print_json({"name": name, "value": now, "default": default, "environment": variable, "note": note})
        return FINE
    cells = [(name, write_setting(getattr(settings, name)), default, note) for _, name, default, note in rows]
    print_table(("SETTING", "NOW", "DEFAULT", "MEANING"), cells)
    echo_err("set one with --set NAME=VALUE, as DORMICE_NAME in the environment, or in dormice.toml or --config FILE")
    return FINE


def write_setting(value: Any) -> str:
    """Write a setting's value as it is typed."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, tuple):
        return ",".join(value)  # pyright: ignore[reportUnknownArgumentType] — settings hold tuples of names alone
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write(value: Any, name: str) -> str:
    return f"{value:g} s" if name == "timeout_seconds" else str(value)
