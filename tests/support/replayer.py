"""Replays of recorded histories, as every test makes them."""

from collections.abc import Sequence
from typing import Any

from temporalio.worker import Replayer

from shared.temporal.converter import DATA_CONVERTER


def make_replayer(workflows: Sequence[type], **options: Any) -> Replayer:
    """Make a replayer with a build id: for its default the SDK reads the code of every module, up to a minute."""
    options.setdefault("data_converter", DATA_CONVERTER)  # packs are stored compressed
    return Replayer(workflows=workflows, build_id="the test", **options)
