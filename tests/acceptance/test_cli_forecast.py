"""The command `forecast`, as people type it."""

import functools
from pathlib import Path

import pytest

from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import Run

pytestmark = pytest.mark.timeout(120)

PNG = b"\x89PNG\r\n\x1a\n"


async def test_what_is_due_is_told_with_what_is_too_much(run: Run, tmp_path: Path) -> None:
    """A table for people with a warning in a sentence, the same as a document, and a picture."""
    picture = tmp_path / "due.png"
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)
    async with run_embedded(options) as server:  # one on which nothing else is due
        ask = functools.partial(run, "forecast", "--hours", "1", TEMPORAL_ADDRESS=server.address)
        for n in range(3):
            await run(
                "start", "echo", str(n), "--lane", "long", "--scheduled-at", "+30m", TEMPORAL_ADDRESS=server.address
            )
        told = await ask("--capacity", "long=0.0001", "--png", str(picture))
        document = (await ask("--capacity", "long=0.0001", "--json")).document
        by_kind = (await ask("--by", "kind", "--json")).document

    assert told.code == 0, told.err
    header, *rows = told.out.splitlines()
    assert header.split() == ["FROM", "FOR", "SHORT", "MEDIUM", "LONG"]
    assert len(rows) == len(document["intervals"]) == len(by_kind["intervals"])
    assert "lane long: 0.0001 messages a second, as you say" in told.err
    assert "warning: lane long from 20" in told.err
    assert picture.read_bytes().startswith(PNG)
    (warning,) = document["warnings"]
    assert warning["lane"] == "long"
    assert warning["due"] == 3
    assert warning["text"].endswith("times as many workers")
    assert document["capacity"]["long"] == {"per_second": 0.0001, "workers": 0, "measured": 0, "is_given": True}
    assert sum(interval["due"].get("echo", 0) for interval in by_kind["intervals"]) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--hours", "0"), "--hours: is 0; give a number above 0, at most 8784"),
        (("--hours", "nan"), "Invalid value for '--hours': is 'nan'; give a number"),
        (("--sample", "-1"), "--sample: is -1; give a number of packs, or 0 for all"),
        (("--capacity", "fast=3"), "--capacity: 'fast=3' is no LANE=N with a lane of short, medium, long"),
        (("--capacity", "short=nan"), "--capacity: 'short=nan' is no LANE=N"),
        (
            ("--hours", "1", "--png", "/proc/nowhere/x.png"),
            "--png: there is no folder /proc/nowhere; make it, or name another file",
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence and exit code 2."""
    ran = await run("forecast", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")
