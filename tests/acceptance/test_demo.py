"""The demonstration runs, ends by itself, and its report keeps every promise."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FIELDS = {"messages", "cycles", "early", "lost", "duplicated", "lateness_p50_s", "lateness_p99_s", "parked"}


async def run_demo(*arguments: str, interrupt_after: float | None = None) -> tuple[int, str, str]:
    """Run the demonstration, with Ctrl-C after a while if asked; give exit code, output and talk."""
    demo = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "examples.demo",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        talking = asyncio.create_task(demo.communicate())
        if interrupt_after is not None:
            await asyncio.wait([talking], timeout=interrupt_after)
            demo.send_signal(signal.SIGINT)
        output, talk = await talking
    finally:
        if demo.returncode is None:
            demo.kill()
            await demo.wait()
    return demo.returncode or 0, output.decode(), talk.decode()


async def test_the_demo_ends_by_itself_with_a_clean_report(tmp_path: Path) -> None:
    """Real feeds are visited and come back; none early, lost or duplicated; the report is file and output alike."""
    report = tmp_path / "report.json"
    code, output, talk = await run_demo("--seconds", "12", "--report", str(report))

    assert code == 0, talk
    found = json.loads(report.read_text())
    assert json.loads(output) == found
    assert set(found) == FIELDS
    assert (found["early"], found["lost"], found["duplicated"]) == (0, 0, 0)
    assert found["messages"] > 500
    assert found["cycles"] > 0
    assert "Web UI: http://127.0.0.1:" in talk


async def test_packed_messages_come_back_with_the_same_clean_report(tmp_path: Path) -> None:
    """Thousands of packed messages come back within seconds; none early, lost or duplicated."""
    report = tmp_path / "report.json"
    code, output, talk = await run_demo(
        *("--messages", "2000", "--encoding", "pack", "--seconds", "15", "--report", str(report))
    )

    assert code == 0, talk
    found = json.loads(report.read_text())
    assert json.loads(output) == found
    assert set(found) == FIELDS
    assert (found["early"], found["lost"], found["duplicated"], found["parked"]) == (0, 0, 0, 0)
    assert found["messages"] == 2000
    assert found["cycles"] > 0
    assert "dormice show 'glance:page-0'" in talk


async def test_ctrl_c_ends_the_demo_early_with_its_report() -> None:
    """One interrupt is enough, and the report covers what was done until then."""
    code, output, talk = await run_demo("--seconds", "3000", interrupt_after=14)

    assert code == 0, talk
    assert json.loads(output)["cycles"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seconds", "0"], "--seconds: is 0; give more than 0"),
        (["--report", "/nowhere/at/all.json"], "--report: there is no folder /nowhere/at"),
        (["--secnds", "5"], "unrecognized arguments"),
        (["--messages", "100000"], "for more add --encoding pack"),
        (["--messages", "0", "--encoding", "pack"], "--messages: is 0; give 1 to 1000000"),
        (["--encoding", "packs"], "invalid choice: 'packs'"),
    ],
)
async def test_wrong_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    """The demonstration names what is wrong before it starts anything."""
    code, _, talk = await run_demo(*arguments)

    assert code == 2
    assert sentence in talk
