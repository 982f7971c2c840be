"""Secrets: read from the setting that holds one, or from the file that another setting names, never from both."""

from pathlib import Path

from shared.errors import InvalidSetting
from shared.settings import Secret, Settings


def find_secret(settings: Settings, name: str) -> str:
    """Give what setting `name` says, or the file that `name`_file names, or nothing; raises InvalidSetting for both."""
    secret: Secret = getattr(settings, name)
    file: str = getattr(settings, f"{name}_file")
    if secret and file:
        raise InvalidSetting(f"{name}_file: is set beside {name}; leave one of them out")
    return read_secret(f"{name}_file", Path(file)) if file else secret.reveal()


def read_secret(name: str, path: Path) -> str:
    """Give the one text in a file, without the end of its line; raises InvalidSetting that names the setting."""
    try:
        text = path.read_text("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise InvalidSetting(f"{name}: {path} can't be read ({exc.strerror}); correct the path or its rights") from exc
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"{name}: {path} is no text in UTF-8; write the secret alone into it") from exc
    if not text:
        raise InvalidSetting(f"{name}: {path} is empty; write the secret alone into it")
    return text
