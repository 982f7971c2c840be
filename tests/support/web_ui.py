"""Temporal's Web UI in a headless browser, used as docs/web-ui.md describes it."""

import contextlib
import os
import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playwright.async_api import Locator, Page, async_playwright

COLUMNS = ("Kind", "Lane", "State", "DueAt")
"""Columns that the list of messages gets beside status and workflow id."""

UNUSED_COLUMNS = ("Run ID", "Type", "Start", "End")
"""Columns that are removed to make room for COLUMNS."""

PATIENCE_SECONDS = 60.0
"""Most seconds of one step: long, because a browser is slow on a busy machine."""


def find_chromium() -> str | None:
    """Give the path of the browser; None if it is not installed."""
    return shutil.which("chromium")


@dataclass(frozen=True, slots=True)
class WebUi:
    """One browser window with the Web UI of a server."""

    page: Page
    url: str

    async def show_list(self, query: str) -> Locator:
        """Open the list of the workflows that a query finds, and give its table."""
        await self.page.goto(f"{self.url}/namespaces/default/workflows?query={quote(query)}")
        table = self.page.get_by_role("table", name="Workflows")
        await table.get_by_role("row").nth(1).wait_for()
        return table

    async def arrange_columns(self) -> None:
        """Arrange the columns of the list, which the browser remembers for the namespace."""
        await self.page.get_by_role("button", name="Configure Columns").click()
        for verb, names in (("Add", COLUMNS), ("Remove", UNUSED_COLUMNS)):
            for name in names:
                await self.page.get_by_role("button", name=f"{verb} {name} column", exact=True).click()
        await self.page.get_by_role("button", name="Close Workflows Table configuration").click()

    async def save_view(self, name: str) -> None:
        """Save the filter of the list under a name, which the browser remembers."""
        await self.page.get_by_role("button", name="Save as New").click()
        dialog = self.page.get_by_role("dialog", name="Save as New View")
        await dialog.get_by_role("textbox", name="Name").fill(name)
        await dialog.get_by_role("button", name="Save", exact=True).click()
        await dialog.wait_for(state="hidden")

    async def open_view(self, name: str) -> None:
        """Show the list with a saved filter."""
        await self.page.get_by_test_id("saved-views-button").click()
        await self.page.locator("#workflow-saved-views-menu").get_by_text(name, exact=True).click()

    async def open_workflow(self, workflow_id: str, tab: str = "Timeline") -> None:
        """Open the page of a message, a pack or another workflow, at its current run."""
        await self.page.goto(f"{self.url}/namespaces/default/workflows/{quote(workflow_id, safe='')}")
        await self.page.get_by_role("tab", name=tab).click()

    async def read_details(self) -> str:
        """Give the current details of the workflow whose page is open, as a reader sees them."""
        await self.page.get_by_role("tab", name="User Metadata").click()
        frame = self.page.locator("iframe").last
        return await frame.content_frame.locator("main").inner_text()

    async def fill_in_signal(self, name: str, text: str = "") -> Locator:
        """Open and fill in the form for a signal to the workflow whose page is open; gives the form."""
        # a form used before keeps its last input, and sometimes never closes again (seen with 2.54.1)
        await self.page.reload()
        await self.page.get_by_role("button", name="More Actions").click()
        await self.page.get_by_role("menuitem", name="Send a Signal").click()
        dialog = self.page.get_by_role("dialog", name="Send a Signal")
        await dialog.get_by_role("button", name="Select a signal").click()
        await dialog.get_by_role("option", name=name, exact=True).click()
        if text:
            await dialog.get_by_role("textbox", name="Data").fill(text)
        await dialog.get_by_role("button", name="Submit").focus()
        return dialog

    async def send_signal(self, name: str, text: str = "") -> None:
        """Send a signal with the form, its input as JSON."""
        dialog = await self.fill_in_signal(name, text)
        # with a key, because the button still moves and a click could miss it
        await dialog.get_by_role("button", name="Submit").press("Enter")
        await dialog.wait_for(state="hidden")

    async def take_picture(self, path: Path) -> None:
        """Save the window's content as PNG."""
        await self.page.screenshot(path=path, animations="disabled", scale="css")


@contextlib.asynccontextmanager
async def open_web_ui(url: str, chromium: str) -> AsyncGenerator[WebUi]:
    """Open a window of 1400 by 900 pixels for a `with` block; no browser data stays on the machine."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox does not work for root
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=sandbox)
        page = await browser.new_page(viewport={"width": 1400, "height": 900}, locale="en-GB", timezone_id="UTC")
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        try:
            yield WebUi(page, url)
        finally:
            await browser.close()
