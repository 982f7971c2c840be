"""The demonstration runs, ends by itself, and its report keeps every promise."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import ROOT, install_all_but

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]  # it begins with a server, and Spark or a broker

FIELDS = {"messages", "cycles", "early", "lost", "duplicated", "lateness_p50_s", "lateness_p99_s", "parked"}


async def run_demo(*arguments: str, interrupt_at: str | None = None) -> tuple[int, str, str]:
    """Run the demonstration, with Ctrl-C as soon as it says what is asked for; give exit code, output and talk."""
    demo = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "examples.demo",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert demo.stderr is not None

    heard: list[bytes] = []
    try:
        if interrupt_at is not None:
            async for line in demo.stderr:
                heard.append(line)
                if re.search(interrupt_at.encode(), line):
                    break
            demo.send_signal(signal.SIGINT)
        output, talk = await demo.communicate()
    finally:
        if demo.returncode is None:
            demo.kill()
            await demo.wait()

    return demo.returncode or 0, output.decode(), (b"".join(heard) + talk).decode()


@pytest.mark.long
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
    assert "dormice spark start my-feeds" in talk


@pytest.mark.long
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


@pytest.mark.long
async def test_messages_come_through_kafka_with_the_same_clean_report() -> None:
    """A topic, the bridge and the server pass each of them on once; the board names topic and broker."""
    code, output, talk = await run_demo("--kafka", "--messages", "100", "--seconds", "8")

    assert code == 0, talk
    found = json.loads(output)
    assert set(found) == FIELDS
    assert (found["early"], found["lost"], found["duplicated"]) == (0, 0, 0)
    assert found["messages"] == 100
    assert found["cycles"] > 0
    assert "Kafka: topic demo of the broker at 127.0.0.1:" in talk


async def test_ctrl_c_ends_the_demo_early_with_its_report() -> None:
    """One interrupt is enough, and the report covers what was done until then."""
    code, output, talk = await run_demo(
        *("--messages", "2000", "--encoding", "pack", "--seconds", "3000"), interrupt_at=r"[1-9][0-9,]* cycles, .* go$"
    )

    assert code == 0, talk
    assert json.loads(output)["cycles"] > 0


async def test_ctrl_c_before_all_is_started_is_no_report() -> None:
    """It ends at once, and says why there is none."""
    code, output, talk = await run_demo("--seconds", "3000", interrupt_at="dormice spark prepare")

    assert (code, output) == (130, "")
    assert talk.strip().endswith("demo: told to end before all messages were started")


async def test_kafka_without_its_extras_is_told_in_one_sentence(tmp_path: Path) -> None:
    """With what to install; here in an environment that has every package but one."""
    installed = install_all_but("aiokafka", tmp_path / "installed")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-P", "-m", "examples.demo", "--kafka"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()

    assert process.returncode == 2
    assert " ".join(said.decode().split()) == (
        "demo: the embedded broker needs the package aiokafka, which is not installed; "
        "install dormice with its extra 'embedded-kafka'"
    )


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
