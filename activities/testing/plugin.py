"""The plugin for pytest; a conftest.py or a test module names it: pytest_plugins = ["activities.testing.plugin"]."""

import pytest

from activities.api.context import Context
from activities.testing.context import make_context


@pytest.fixture
def ctx() -> Context:
    """Give a context with all defaults, as `make_context()` does."""
    return make_context()
