"""The scenario `pollers`: each part runs to its end with a few messages, and its counts are true."""

import pytest

from bench.peers.contestants import find_contestant
from bench.pollers import lag, main
from bench.pollers.bloat import measure_bloat
from bench.pollers.herd import measure_herd

MESSAGES = 100
SECONDS = 100.0
"""Each ends when its messages are done, long before that."""

pytestmark = pytest.mark.timeout(150)


@pytest.mark.long
@pytest.mark.parametrize("name", ["table", "procrastinate", "apscheduler", "dormice-1000"])
async def test_a_backlog_is_done_and_each_message_is_called_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes part runs all that was due, and what is fresh, once."""
    monkeypatch.setattr(lag, "GRACE_SECONDS", 20.0)  # on a busy machine the last of what is fresh is late
    row = await lag.measure_lag(find_contestant(name), MESSAGES, SECONDS)

    assert (row["done"], row["not run"], row["calls twice"]) == (MESSAGES, 0, 0)
    assert row["in s"] < SECONDS


@pytest.mark.long
@pytest.mark.parametrize("name", ["table", "procrastinate", "dormice-1000"])
async def test_a_herd_is_shared_by_pollers_and_each_message_is_called_once(name: str) -> None:
    """Two pollers run what is due in one instant, never before that and never both the same."""
    row = await measure_herd(find_contestant(name), 2, MESSAGES, SECONDS)

    assert (row["done"], row["calls twice"]) == (MESSAGES, 0)
    assert row["in s"] > 0
    assert (row["idle: polls/s"] > 0) == (name != "dormice-1000")
    assert (row["rows polled each"] >= 1) == (name == "table")


@pytest.mark.long
@pytest.mark.parametrize(("name", "is_held"), [("table", False), ("table", True), ("dormice-1000", False)])
async def test_messages_come_back_again_and_again_while_the_store_is_measured(name: str, *, is_held: bool) -> None:
    """There are cycles, and a store of some size, also beside a transaction left open."""
    row = await measure_bloat(find_contestant(name), MESSAGES, 5.0, is_held=is_held)

    assert row["cycles"] > 0
    assert row["MB last"] > 0
    assert (row["dead rows"] > 0) == (name == "table")


async def test_what_is_no_part_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal names what may be asked for, and nothing is started."""
    with pytest.raises(SystemExit) as refused:
        await main(["lags"])

    assert refused.value.code == 2
    assert "no part or contestant 'lags'; use any of lag, bloat, herd, table" in capsys.readouterr().err
