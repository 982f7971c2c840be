"""What a webhook is sent: the fields of its payload, and the signature by the keys of a file."""

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from activities.handlers.webhook.request import PayloadRefused, read_plan
from activities.handlers.webhook.signature import read_signing_keys, sign
from shared.errors import InvalidSetting
from shared.settings import Settings

URL = "https://example.org/hook"
OLD = "o" * 32
NEW = "n" * 32


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (None, "payload: is no object"),
        ({}, "payload.url: is missing"),
        ({"url": 5}, "payload.url: is missing"),
        ({"url": "ftp://example.org"}, "payload.url: has the scheme 'ftp'"),
        ({"url": "https://user:word@example.org"}, "payload.url: holds credentials"),
        ({"url": URL, "body": 1}, "payload.body: is not a field of a webhook; use url, data, headers, strict"),
        ({"url": URL, "strict": "yes"}, "payload.strict: is 'yes'; give true or false"),
        ({"url": URL, "strict": 1}, "payload.strict: is 1; give true or false"),
        ({"url": URL, "strict": None}, "payload.strict: is None; give true or false"),
        ({"url": URL, "headers": []}, "payload.headers: is no object"),
        ({"url": URL, "headers": {"a b": "1"}}, "payload.headers.a b: is no name of a header"),
        ({"url": URL, "headers": {"A": "1\r\nB: 2"}}, "payload.headers.A: is no value of a header"),
        ({"url": URL, "headers": {"A": 1}}, "payload.headers.A: is no value of a header"),
        ({"url": URL, "headers": {"A": "ä"}}, "payload.headers.A: is no value of a header"),
        ({"url": URL, "headers": {"HOST": "other"}}, "payload.headers.HOST: is a header that dormice sets itself"),
        ({"url": URL, "headers": {"Dormice-X": "1"}}, "payload.headers.Dormice-X: is a header that dormice sets"),
        ({"url": URL, "headers": {"idempotency-key": "1"}}, "payload.headers.idempotency-key: is a header that"),
    ],
)
def test_a_payload_that_is_none_is_refused_with_its_field(payload: Any, problem: str) -> None:
    """In a sentence that says what to do."""
    with pytest.raises(PayloadRefused) as caught:
        read_plan(payload)

    assert str(caught.value).startswith(problem)


def test_a_receiver_can_verify_the_signature_with_either_key() -> None:
    """It is the HMAC-SHA256 of timestamp, dot and body."""
    stamp, *signatures = sign(b"[1]", 1_700_000_000, (OLD.encode(), NEW.encode())).split(",")

    assert stamp == "t=1700000000"
    assert signatures == [
        "v1=" + hmac.new(key.encode(), b"1700000000.[1]", hashlib.sha256).hexdigest() for key in (OLD, NEW)
    ]


def test_a_key_file_that_changes_is_read_again(tmp_path: Path) -> None:
    """So keys are rotated without a restart; comments and empty lines are none."""
    file = tmp_path / "keys"
    settings = Settings(webhook_key_file=str(file))
    found: list[tuple[bytes, ...]] = []
    for text in (OLD, f"# since May\n{NEW}\n\n{OLD}\n", NEW + "\n"):
        file.write_text(text)
        found.append(read_signing_keys(settings))

    assert found == [(OLD.encode(),), (NEW.encode(), OLD.encode()), (NEW.encode(),)]
    assert read_signing_keys(Settings()) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "can't be read (No such file or directory)"),
        ("", "is empty"),
        ("# none\n", "holds 0 keys"),
        ("short\n", "holds a key of less than 16 characters"),
        (f"{OLD}\n{NEW}\n{OLD}", "holds 3 keys"),
    ],
)
def test_a_key_file_that_holds_no_key_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    """Nothing is sent unsigned because of a wrong file."""
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)

    with pytest.raises(InvalidSetting) as caught:
        read_signing_keys(Settings(webhook_key_file=str(file)))

    assert str(caught.value).startswith(f"webhook_key_file: {file} {problem}")
