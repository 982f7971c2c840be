"""Source text as syntax trees and pages as tables, for tests of what they promise."""

import ast
import gc
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *(ROOT / folder / "README.md" for folder in ("client", "bench/results")),
    ]
}

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, *pages: str) -> list[str]:
    """Give the code blocks of a language, of some pages or of all."""
    texts = [PAGES[page] for page in pages or PAGES]
    return [textwrap.dedent(body) for text in texts for _, found, body in BLOCK.findall(text) if found == language]


def parse(text: str) -> ast.Module:
    """Parse Python.

    No garbage is collected meanwhile: in CPython 3.11 that lets in other threads, which may be parsing, too, and then
    it fails (python/cpython#106905).
    """
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def is_written_by_a_program(path: Path) -> bool:
    """Tell whether a module is made of the description of an interface: its names and sizes are that program's."""
    return path.stem.endswith(("_pb2", "_pb2_grpc"))


def table(page: str, heading: str) -> list[list[str]]:
    """Give the cells of the first table below a heading of a page, which is named by its path in the repository."""
    text = (ROOT / page).read_text("utf-8")
    section = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    rows = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    assert rows, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[1].splitlines()]


def documented_checks() -> list[str]:
    """Give the names of the doctor's checks, in the order of the page."""
    return [name for name, _ in table("docs/operations.md", "Doctor")]
