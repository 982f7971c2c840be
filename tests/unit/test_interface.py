"""Nothing that programs and people rely on goes away: the interface has what that of the baseline had."""

import json

from tests.support.baseline import INTERFACE
from tests.support.interface import describe_interface, find_missing


def test_the_interface_has_all_that_the_baseline_had() -> None:
    """Commands, options, settings, requests, metrics, signals and Python names are added, and never taken away."""
    recorded = json.loads(INTERFACE.read_text("utf-8"))

    assert len(recorded["commands and options"]) > 500
    assert find_missing(recorded) == {}


def test_what_is_taken_away_is_named() -> None:
    """By the part that it belongs to; a part that is gone counts with all its names."""
    recorded = {**describe_interface(), "smells": ["rose"]}
    recorded["settings"] = [*recorded["settings"], "DORMICE_GONE"]

    assert find_missing(recorded) == {"settings": ["DORMICE_GONE"], "smells": ["rose"]}
