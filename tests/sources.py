"""Source text as syntax trees and pages as tables, for tests of what they promise."""

import ast
import gc
import re
from pathlib import Path


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
    text = (Path(__file__).parents[1] / page).read_text("utf-8")
    section = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    rows = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    assert rows, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[1].splitlines()]


def documented_checks() -> list[str]:
    """Give the names of the doctor's checks, in the order of the page."""
    return [name for name, _ in table("docs/operations.md", "Doctor")]
