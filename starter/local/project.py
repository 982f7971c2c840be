"""Projects: the folder of a first handler, its test and its messages, written whole or not at all."""

import os
import shutil
from importlib import resources
from pathlib import Path
from string import Template

from shared.errors import InvalidSetting

FILES = {
    "handlers.py": "handlers.py.txt",
    "test_handlers.py": "test_handlers.py.txt",
    "messages.jsonl": "messages.jsonl.txt",
    "dormice.toml": "dormice.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""The files of a project, and the templates that they are made of."""


def make_project(folder: Path, kind: str) -> None:
    """Make a folder with a handler of a kind; raises InvalidSetting when there is something at that path already."""
    unfinished = folder.parent / f".{folder.name}.{os.getpid()}"
    templates = resources.files("starter.local") / "project_files"

    try:
        unfinished.mkdir()
        for name, template in FILES.items():
            text = Template((templates / template).read_text("utf-8")).substitute(kind=kind)
            (unfinished / name).write_text(text, "utf-8")
        unfinished.rename(folder)  # takes the place of an empty folder, and of nothing else
    except OSError as exc:
        shutil.rmtree(unfinished, ignore_errors=True)
        if os.path.lexists(folder):
            flaw = f"{folder} is there already" + (", and not empty" if folder.is_dir() else "")
            raise InvalidSetting(f"NAME: {flaw}; choose another name, or remove it first") from exc
        raise InvalidSetting(
            f"NAME: {folder} can't be made ({exc.strerror}); choose a place that is there and can be written"
        ) from exc
