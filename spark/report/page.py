"""The page of a report: one HTML file that contains everything, so that it can be sent and kept."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from shared.messages.timespan import format_seconds
from spark.prepare.manifest import Manifest
from starter.insight.plots import draw_bars

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2731; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.2rem; }
p { margin: 0.2rem 0 0.6rem; color: #53606c; } code { font-size: 0.9em; }
table { border-collapse: collapse; } th, td { padding: 0.2rem 1.2rem 0.2rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #2b6a99; font-weight: 600; } td { border-bottom: 1px solid #dfe5ea; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } img { max-width: 100%; }
"""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report; in a distribution, `bounds` are the lower bounds of its buckets."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    bounds: tuple[float, ...] = ()


def write_page(manifest: Manifest, tables: Sequence[Table]) -> str:
    """Give the page; it loads nothing from elsewhere, and escapes all text that comes from messages."""
    sections = "\n".join(map(_write_section, tables))
    due = _write_image("when messages run first", (manifest.folder / "due.png").read_bytes())
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(manifest.source)}</title><style>{STYLE}</style></head>
<body>
<h1>{manifest.messages:,} messages from {escape(manifest.source)}</h1>
<p>Manifest <code>{escape(manifest.id)}</code>, prepared {escape(manifest.created_at)}</p>
{sections}
<h2>First runs</h2>
<p>When the messages were to run first.</p>
{due}
</body>
</html>
"""


def _write_section(table: Table) -> str:
    total = sum(row[-1] for row in table.rows) if table.bounds else len(table.rows)
    if not total:
        body = "<p>none</p>"
    elif table.bounds:
        bars = [(label, row[-1]) for label, row in zip(_label_buckets(table), table.rows, strict=True)]
        body = _write_image(table.title, draw_bars("", table.columns[-1], bars))
    else:
        body = _write_table(table)
    return f"<h2>{escape(table.title)}</h2>\n<p>{escape(table.note)}</p>\n{body}"


def _label_buckets(table: Table) -> list[str]:
    if table.bounds[-1] < 1:
        return ["none", *("some" if share < 0.01 else f"{share:.0%} +" for share in table.bounds)]
    return [f"below {format_seconds(table.bounds[0])}", *(f"{format_seconds(bound)} +" for bound in table.bounds)]


def _write_table(table: Table) -> str:
    kinds = ["number" if isinstance(cell, int | float) else "" for cell in table.rows[0]]
    header = _write_row("th", [name.replace("_", " ") for name in table.columns], kinds)
    return f"<table>\n{header}{''.join(_write_row('td', row, kinds) for row in table.rows)}</table>"


def _write_row(tag: str, row: Sequence[Any], kinds: list[str]) -> str:
    cells = (f'<{tag} class="{kind}">{escape(_write(cell))}</{tag}>' for cell, kind in zip(row, kinds, strict=True))
    return f"<tr>{''.join(cells)}</tr>\n"


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write_image(title: str, png: bytes) -> str:
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
