"""Pages: HTML files that hold everything they show, so that they can be sent and kept."""

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

STYLE = """
html { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2731; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.2rem; }
p { margin: 0.2rem 0 0.6rem; color: #53606c; } code { font-size: 0.9em; }
table { border-collapse: collapse; } th, td { padding: 0.2rem 1.2rem 0.2rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #2b6a99; font-weight: 600; } td { border-bottom: 1px solid #dfe5ea; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } img { max-width: 100%; }
@media (prefers-color-scheme: dark) {
  body { color: #dfe5ea; background: #161b20; } p { color: #9fadb9; } td { border-color: #323c45; }
  img { border-radius: 6px; filter: invert(0.89) hue-rotate(180deg); }
}
"""


def write_document(title: str, heading: str, body: str) -> str:
    """Give a page; it loads nothing from elsewhere. `body` is HTML, the other texts are escaped."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>
<body>
<h1>{escape(heading)}</h1>
{body}
</body>
</html>
"""


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: int | None = None) -> str:
    """Give a table; to the right stand columns whose first cell is a number, or all after the first `texts`."""
    is_number = [isinstance(cell, int | float) if texts is None else n >= texts for n, cell in enumerate(rows[0])]
    kinds = ["number" if right else "" for right in is_number]
    header = _write_row("th", [name.replace("_", " ") for name in columns], kinds)
    return f"<table>\n{header}{''.join(_write_row('td', row, kinds) for row in rows)}</table>"


def _write_row(tag: str, row: Sequence[Any], kinds: list[str]) -> str:
    cells = (f'<{tag} class="{kind}">{escape(_write(cell))}</{tag}>' for cell, kind in zip(row, kinds, strict=True))
    return f"<tr>{''.join(cells)}</tr>\n"


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_image(title: str, png: bytes) -> str:
    """Give a picture with its words for those who do not see it."""
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
