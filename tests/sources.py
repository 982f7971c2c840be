"""Source text as syntax trees, for tests of what the sources promise."""

import ast
import gc


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
