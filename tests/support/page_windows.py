"""Windows on the operations page: a real browser, in which whatever its console complains about fails the test."""

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.support.operations_pages import ServedPage
from tests.support.web_ui import find_chromium

CHROMIUM = find_chromium() or ""
NO_CHROMIUM = "chromium is not installed (./run browser, or apt-get install chromium)"
PATIENCE_SECONDS = 30.0
REFUSED = "Failed to load resource: the server responded with a status of 4"
expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@contextlib.asynccontextmanager
async def launched_browser() -> AsyncGenerator[Browser]:
    """Run the browser for a `with` block."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox does not work for root
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def opened_window(
    browser: Browser, served: ServedPage, *, is_refused: bool = False, **options: Any
) -> AsyncGenerator[Page]:
    """Open a window on a page for a `with` block; whatever its console complains about fails the test.

    It may complain of an answer that is no success only where the test is after one: where it `is_refused`.
    """
    context: BrowserContext = await browser.new_context(base_url=served.address, **options)
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    page = await context.new_page()
    complaints = list[str]()
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))

    try:
        yield page
        assert [said for said in complaints if not (is_refused and said.startswith(REFUSED))] == []
    finally:
        await context.close()


async def sign_in(page: Page, token: str) -> None:
    """Sign in as a person does, from the form."""
    await page.goto("/sign-in")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
