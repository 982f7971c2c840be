"""The commands of the bridge: a name of two words stands beside one that takes words of its own."""

import re
from types import ModuleType

import pytest

from shared.errors import InvalidSetting
from starter.cli.messages import start
from starter.cli.program import program
from starter.cli.records import bridge, bridge_status
from worker.options import parse


@pytest.mark.parametrize(
    ("line", "command", "topics"),
    [
        ("bridge orders", bridge, ["orders"]),
        ("bridge status orders", bridge_status, ["orders"]),
        ("bridge status orders feeds --json", bridge_status, ["orders", "feeds"]),
        ("--set in_flight=1 bridge status orders", bridge_status, ["orders"]),
        ("bridge status status", bridge_status, ["status"]),
        ("bridge -- status", bridge, ["status"]),
        ("bridge --group g status", bridge, ["status"]),
        ("bridge orders status", bridge, ["orders", "status"]),
    ],
)
def test_a_topic_called_status_stays_within_reach(line: str, command: ModuleType, topics: list[str]) -> None:
    """Only as the first word it is the command."""
    typed = parse(program, "dormice", line.split())

    assert (typed.run.__module__, [*typed.args.topics]) == (command.__name__, topics)


def test_the_two_words_mean_nothing_elsewhere() -> None:
    """A message may be called like that."""
    assert parse(program, "dormice", ["start", "bridge", "status"]).run.__module__ == start.__name__


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("bridge status", "Missing argument 'TOPIC...'"),
        (
            "bridge status t --bridge 8080",
            "Invalid value for '--bridge': is '8080'; write HOST:PORT, for example localhost:8080",
        ),
        (
            "bridge status t --bridge h:0",
            "Invalid value for '--bridge': is 'h:0'; write HOST:PORT, for example localhost:8080",
        ),
        ("bridge t --health-port x", "Invalid value for '--health-port': is 'x'; give a port from 0 to 65535"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(line: str, sentence: str) -> None:
    """With the command whose help shows the usage."""
    with pytest.raises(InvalidSetting, match=f"^{re.escape(sentence)}; 'dormice bridge"):
        parse(program, "dormice", line.split())
