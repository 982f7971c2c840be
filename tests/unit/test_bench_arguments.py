"""What `./run bench` says of arguments that a scenario does not know."""

import pytest

from bench.__main__ import main


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("nonsense", "bench: there is no scenario 'nonsense'; name one of those above"),
        ("cycles cool", "bench: cycles: there is no case 'cool'; use any of cold, warm"),
        ("database mysql", "bench: database: there is no server 'mysql'; use any of sqlite, postgresql"),
        ("limits some", "bench: limits: there is no case 'some'; use any of hot, many"),
        ("tuning nonsense", "bench: tuning: there is no variant 'nonsense'; use any of "),
        ("bridge nonsense", "bench: bridge: there is no part 'nonsense'; use any of solo, pack, lag, spike, kills"),
        ("spark nonsense", "bench: spark: there is no part 'nonsense'; use any of solo, packs, prepare, "),
        ("packs nonsense", "bench: packs: there is no part 'nonsense'; use cycles, starts, bytes, "),
        ("peers nobody", "bench: peers: there is no contestant 'nobody'; use any of kafka-redis, "),
        ("against", "bench: against: a revision of git is missing; name one, as in ./run bench against HEAD~20"),
        ("herd many", "bench: herd: 'many' is no whole number above 0; give for example "),
        ("overload lasting 0", "bench: overload: '0' is no whole number above 0; give for example 30"),
        ("serve half", "bench: serve: 'half' is no number; give a factor, such as 0.5"),
    ],
)
def test_an_unknown_argument_is_named_before_anything_starts(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is known, in one sentence, and exit code 2; it once ran something else, or ended with a trace."""
    assert main(command.split()) == 2

    assert capsys.readouterr().err.startswith(said)


def test_help_explains_a_scenario_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It was once taken for the name of a case, which replaced published figures."""
    assert main(["cycles", "--help"]) == 0

    assert capsys.readouterr().out.startswith("Cycles per second, warm and cold, against the bare loop")
