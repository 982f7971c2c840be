"""Plots: what a person reads in them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from starter.insight.plots import plot_due_curve

pytest.importorskip("matplotlib")

MOMENT = datetime(2026, 11, 29, 1, 5, 43, tzinfo=UTC)
WHOLE_SECONDS = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")


@pytest.mark.parametrize("seconds", [1, 2, 5])
def test_messages_that_are_due_at_once_are_at_a_moment_that_can_be_read(seconds: int) -> None:
    """Each label of the axis is a whole second of its own, and each bar, of which there are few, has its number."""
    buckets = [(MOMENT + timedelta(seconds=number), 12_345 + number) for number in range(seconds)]
    figure = plot_due_curve(buckets, 1)
    figure.canvas.draw()
    axes: Any = figure.axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]

    assert len(labels) == len(set(labels)) > 1
    assert [label for label in labels if not WHOLE_SECONDS.fullmatch(label)] == []
    assert [text.get_text() for text in axes.texts] == [f"{count:,}" for _, count in buckets]
    if seconds == 1:
        assert axes.get_title("left") == "first runs: all within 1.0 s, from 2026-11-29 01:05:43 UTC on"
