"""The Web UI's address: the setting's, or that of the embedded server that runs in a folder."""

from pathlib import Path

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.steering.status.web_ui import find_page, find_ui_address


def test_the_page_of_a_workflow_is_an_address(server: EmbeddedServer, tmp_path: Path) -> None:
    """Of the running server that is talked to; who has another Web UI says so; of all others it is not known."""
    ours = server.address
    folder = server.options.data
    settings = Settings()

    assert find_ui_address(settings, ours, folder) == (server.ui_url or "")
    assert find_ui_address(settings, ours.replace("127.0.0.1", "localhost"), folder) == (server.ui_url or "")
    assert find_ui_address(settings, "temporal.example.org:7233", folder) == ""
    assert find_ui_address(settings, ours, tmp_path) == ""
    assert find_ui_address(Settings(ui_address="https://ui.example.org/"), ours, folder) == "https://ui.example.org"
    assert find_page("default", "feed:https://a/b") == "/namespaces/default/workflows/feed%3Ahttps%3A%2F%2Fa%2Fb"


def test_addresses_of_a_server_that_is_gone_do_not_count(server: EmbeddedServer, tmp_path: Path) -> None:
    """What was killed leaves them behind, and another server may answer at its port."""
    if server.ui_url is None:
        return
    for name in ("addresses.json", "lock"):
        (tmp_path / name).write_bytes((server.options.data / name).read_bytes())

    assert find_ui_address(Settings(), server.address, tmp_path) == ""
