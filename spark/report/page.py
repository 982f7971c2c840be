"""The page of a report: one HTML file that contains everything, so that it can be sent and kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from shared.messages.timespan import format_seconds
from spark.prepare.manifest import Manifest
from starter.insight.page import write_document, write_image, write_table
from starter.insight.plots import draw_bars


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
    due = write_image("when messages run first", (manifest.folder / "due.png").read_bytes())
    body = f"""<p>Manifest <code>{escape(manifest.id)}</code>, prepared {escape(manifest.created_at)}</p>
{sections}
<h2>First runs</h2>
<p>When the messages were to run first.</p>
{due}"""
    return write_document(manifest.source, f"{manifest.messages:,} messages from {manifest.source}", body)


def _write_section(table: Table) -> str:
    total = sum(row[-1] for row in table.rows) if table.bounds else len(table.rows)
    if not total:
        body = "<p>none</p>"
    elif table.bounds:
        bars = [(label, row[-1]) for label, row in zip(_label_buckets(table), table.rows, strict=True)]
        body = write_image(table.title, draw_bars("", table.columns[-1], bars))
    else:
        body = write_table(table.columns, table.rows)
    return f"<h2>{escape(table.title)}</h2>\n<p>{escape(table.note)}</p>\n{body}"


def _label_buckets(table: Table) -> list[str]:
    if table.bounds[-1] < 1:
        return ["none", *("some" if share < 0.01 else f"{share:.0%} +" for share in table.bounds)]
    return [f"below {format_seconds(table.bounds[0])}", *(f"{format_seconds(bound)} +" for bound in table.bounds)]
