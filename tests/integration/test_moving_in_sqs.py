"""Moving in from SQS: files as the AWS command line writes and reads them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from starter.control import Control
from tests.conftest import Serve, wait_until
from tests.support.moving_in import Move
from tests.support.processes import run_to_end


def write_batch(path: Path, *entries: dict[str, Any]) -> None:
    """Write what `aws sqs send-message-batch --entries` takes."""
    path.write_text(json.dumps([{"Id": str(number), **entry} for number, entry in enumerate(entries)], indent=4))


def write_received(path: Path, *bodies: str) -> None:
    """Write what `aws sqs receive-message` prints, and nothing where it received nothing."""
    messages = [
        {
            "MessageId": f"019a-{body}",
            "ReceiptHandle": "AQEB",
            "MD5OfBody": "",
            "Body": json.dumps({"item": body}),
            "Attributes": {"SentTimestamp": "1790000000000", "ApproximateReceiveCount": "1"},
            "MessageAttributes": {"shop": {"StringValue": "north", "DataType": "String"}},
        }
        for body in bodies
    ]
    path.write_text(json.dumps({"Messages": messages}, indent=4) if messages else "")


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_batches_and_received_messages_move_in_and_back(
    move: Callable[..., Move], control: Control, serve: Serve
) -> None:
    """Batches that are written meanwhile are added, what is received runs at once; each message runs once."""
    moving = move("From SQS")
    entry: dict[str, Any] = {"MessageBody": '{"item": "late"}', "DelaySeconds": 900, "MessageAttributes": {}}
    async with serve(moving.handler()):
        write_batch(moving.folder / "batch-1.json", entry, {**entry, "MessageBody": '{"item": "later"}'})
        await moving.run_block(0)
        write_batch(moving.folder / "batch-2.json", {"MessageBody": '{"item": "soon"}'})
        said = await moving.run_block(0)
        write_received(moving.folder / "received-1.json", "a", "b")
        write_received(moving.folder / "received-2.json")
        proof = await moving.run_block(1)
        await wait_until(lambda: set(moving.runs) == {"soon", "a", "b"}, "what is due has run")
        shown = await control.show(moving.kind, "batch-1-0")

        pause_and_export, stop = moving.find_scripts("The way back")
        await control.reschedule(moving.kind, "batch-1-1", datetime.now(UTC) + timedelta(hours=1))
        await moving.run(pause_and_export)
        code, _, err = await _run_line(moving, moving.find_scripts()[2])
        await moving.run(stop)

        async def has_ended() -> bool:
            return (await control.look_up(moving.kind, "batch-1-0")).state == "stopped"

        await wait_until(has_ended, "what has been put back has ended here")
        kept = await control.look_up(moving.kind, "batch-1-1")
    (entries,) = [json.loads(path.read_text()) for path in (moving.folder / "returned").iterdir()]

    assert "1 started, 2 already running" in said
    assert "complete, nothing is missing" in proof
    assert {item: who for item, who in moving.runs.items() if who != ["dormice"]} == {}
    assert shown.status is not None
    assert shown.status["payload"] == {"body": {"item": "late"}, "attributes": {}}
    assert code == 1
    assert err.splitlines() == [
        f"left out: {moving.kind}:batch-1-1: is due in more than 15 minutes, for which SQS keeps nothing",
        "1 written, 1 left out",
    ]
    assert kept.state == "paused"
    (returned,) = entries
    assert 0 < returned["DelaySeconds"] <= 900
    assert (json.loads(returned["MessageBody"]), returned["MessageAttributes"]) == ({"item": "late"}, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "a.json: is no JSON ("),
        (b'["\xff"]', "a.json: is no JSON ('utf-8' codec"),
        ("null", "a.json: is no file of SQS messages"),
        ('"text"', "a.json: is no file of SQS messages"),
        (None, "[Errno 2] No such file or directory: 'a.json'"),
    ],
)
async def test_wrong_input_is_one_sentence(move: Callable[..., Move], text: str | bytes | None, sentence: str) -> None:
    """Nothing is written."""
    moving = move("From SQS")
    if text is not None:
        (moving.folder / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    line = "python -m examples.moving_in.sqs_batches export a.json --kind a --to out.jsonl"
    code, out, err = await _run_line(moving, line)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"sqs_batches: {sentence}")
    assert not list(moving.folder.glob("out*"))


async def test_a_message_that_is_none_ends_no_export(move: Callable[..., Move]) -> None:
    """It is listed with its file and place, and all others are written."""
    moving = move("From SQS")
    wrong: list[Any] = [{"Id": "1"}, 7, {"Id": "2", "MessageBody": "a", "DelaySeconds": 1e300}]
    wrong += [{"Id": "3", "MessageBody": "a", "MessageAttributes": None}, {"Id": "4", "MessageBody": '"\\ud800"'}]
    (moving.folder / "a.json").write_text(json.dumps([*wrong, {"Id": "5", "MessageBody": "good"}]))
    line = "python -m examples.moving_in.sqs_batches export a.json --kind a --to out.jsonl"
    code, _, err = await _run_line(moving, line)
    lines = [json.loads(text) for text in (moving.folder / "out.jsonl").read_text().splitlines()]

    *left_out, summary = err.splitlines()
    assert (code, summary) == (1, "1 written, 5 left out")
    assert [text.split(": ")[1] for text in left_out] == [f"a.json, message {number}" for number in range(1, 6)]
    assert left_out[0].endswith("is no message of SQS (KeyError('MessageBody'))")
    assert [(each["id"], each["payload"]["body"]) for each in lines] == [("a-5", "good")]


async def test_a_message_that_sqs_cant_hold_is_listed_and_stays(move: Callable[..., Move]) -> None:
    """Attributes of a message are an object of texts; all others are put back."""
    moving = move("From SQS")
    due = datetime.now(UTC).isoformat()
    payloads: list[Any] = [{"body": "a", "attributes": 7}, {"body": "b", "attributes": {"n": 1}}, {"body": "c"}]
    lines = [{"kind": "a", "id": str(n), "scheduled_at": due, "payload": each} for n, each in enumerate(payloads)]
    (moving.folder / "pending.jsonl").write_text("\n".join(map(json.dumps, lines)))
    line = "python -m examples.moving_in.sqs_batches put-back returned --from pending.jsonl --to returned.jsonl"
    code, _, err = await _run_line(moving, line)

    problem = "its payload's attributes are no object of texts"
    assert code == 1
    assert err.splitlines() == [f"left out: a:0: {problem}", f"left out: a:1: {problem}", "1 written, 2 left out"]


async def test_documents_may_follow_each_other(move: Callable[..., Move]) -> None:
    """As where several outputs are written into one file; attributes and the key against repetition are kept."""
    moving = move("From SQS")
    attributes = {"n": {"DataType": "Number", "StringValue": "7"}, "b": {"DataType": "Binary", "BinaryValue": "AAE="}}
    first = {"MessageId": "a", "Body": "text", "Attributes": {"MessageDeduplicationId": "once"}}
    second = {"Entries": [{"Id": "b", "MessageBody": "[1]", "DelaySeconds": 10, "MessageAttributes": attributes}]}
    (moving.folder / "a.json").write_text(f"{json.dumps({'Messages': [first]})}\n{json.dumps(second)}{{}}")
    line = "python -m examples.moving_in.sqs_batches export a.json --kind a --to out.jsonl"
    code, _, err = await _run_line(moving, line)
    lines = [json.loads(text) for text in (moving.folder / "out.jsonl").read_text().splitlines()]

    assert (code, err) == (0, "2 written, 0 left out\n")
    assert [(each["id"], each["payload"]) for each in lines] == [
        ("a", {"body": "text", "attributes": {}}),
        ("a-b", {"body": [1], "attributes": {"n": "7", "b": "AAE="}}),
    ]
    assert lines[0]["idempotency_key"] == "once"


async def _run_line(moving: Move, line: str) -> tuple[int, str, str]:
    return await run_to_end("bash", "-ec", line, cwd=moving.folder, env=moving.environment)
