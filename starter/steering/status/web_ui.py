"""The Web UI's address: where a person finds the page of a workflow."""

import os
from pathlib import Path
from urllib.parse import quote

from shared.settings import Settings
from starter.local.disk import read_addresses
from starter.local.supervised_process import has_locked

UNKNOWN = "of your Web UI, whose address is not known; set ui_address, for example http://localhost:8233"


def find_ui_address(settings: Settings, server: str, folder: Path) -> str:
    """Give the address that the setting `ui_address` names, else that of the embedded server of a folder, or "".

    The embedded server counts only while it runs, and only if it is the `server` (HOST:PORT) in use.
    """
    if named := settings.ui_address.rstrip("/"):
        return named

    address = read_addresses(server, folder).get("ui")
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return ""

    try:
        return "" if address is None or has_locked(lock) else address
    finally:
        os.close(lock)


def find_page(namespace: str, workflow_id: str) -> str:
    """Give the path of the page of a workflow."""
    return f"/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
