"""What a worker that can't go on says of the reason."""

import pytest

from worker.main import has_met_no_server

FAILED = (
    "Worker validation failed: Namespace default was not found or otherwise could not be described: Status { code: "
)


@pytest.mark.parametrize(
    ("words", "is_so"),
    [
        (FAILED + 'Unavailable, message: "tcp connect error", source: None }', True),
        (FAILED + 'DeadlineExceeded, message: "timeout" }', True),
        (FAILED + 'NotFound, message: "Namespace default is not found." }', False),
        (FAILED + 'PermissionDenied, message: "Request unauthorized." }', False),
        ("Poll failure: Status { code: Unavailable }", False),
    ],
)
def test_a_server_that_goes_away_while_workers_begin_is_told_apart(words: str, *, is_so: bool) -> None:
    """The same may succeed later; what is refused for good stays a failure."""
    assert has_met_no_server(RuntimeError(words)) is is_so
