"""The state of a pack: each message moves on as if it were alone, within what one workflow can hold."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from shared.lanes import LANES
from shared.messages.decision import decide
from shared.messages.json_value import encode_json
from shared.messages.message import MessageState, Outcome
from shared.messages.placement import PackSpread
from shared.messages.signals import Pause, Revise, RunNow, Signal, Stop
from shared.packs.cycle import STILL_IN_FLIGHT, to_input, to_result
from shared.packs.entry import STATE_BYTES_MAX, Entry, measure, to_entry
from workflows.packs.calls.batch import BATCH_BYTES_MAX, BATCH_FIRST, BATCH_MAX, BATCH_MIN, Batch
from workflows.packs.state import PackState
from workflows.packs.summary import FINISHED_KEPT_SECONDS

NOW = 1_795_291_200.0
HEADING: dict[str, Any] = {
    "v": 1,
    "kind": "feed",
    "lane": "short",
    "index": 0,
    "packs": 1,
    "size": 1000,
    "coalesce": 60.0,
    "stored_share": 1.0,  # nothing compresses, so that all sizes are those of the JSON
}
AGAIN = Outcome("again", after=3600.0, tolerance=0.0)
DONE = Outcome("done", result="ok")
REJECT = Outcome("reject", "unfit")
GATED = Outcome("gated", "gate mail is closed until it is opened", after=60.0, tolerance=15.0)
WIRE: dict[str, Any] = {
    **HEADING,
    "bytes": 245,
    "entries": [
        ["a", 1795291200000, 1800000, 180000, 4, {"n": 1}, [[3600000, 1, "again", 0, ""]]],
        ["b", 1795291260000, 0, 0, 0, None, [], {"priority": 1, "parked_reason": "gone", "parked_at": 1795291200.0}],
    ],
    "ended": [["c", 1795291200000, 0, 0, 2, None, [[0, 0, "done", 0, ""]], {"ended": "done", "result": 7}]],
    "suspects": ["a"],
    "receipts": {
        "0f": {"known": [[0, 2]], "refused": {"full": [[3, 1]]}, "moved": {}, "at": 1795291200},
        "1f": {"missing": [[1, 1]], "moved": {}, "at": 1795291201},
    },
}
"""What a pack passes on; sleeping ones are in this form."""

SPREAD = PackSpread.of("feed", 0, 60.0)
TOKENS = itertools.count()


def build(**changes: Any) -> PackState:
    """Make an empty pack."""
    return PackState(HEADING | changes)


def dump(pack: PackState) -> dict[str, Any]:
    """Give what the next run starts from."""
    return json.loads(pack.encode())


def entry(message_id: str, due_at: float = NOW, *, lane: str = "short", **fields: Any) -> Entry:
    """Make the entry of a message."""
    return to_entry(MessageState("feed", message_id, lane, due_at, due_at, **fields), "short")


def admit(pack: PackState, *entries: Entry, name: str = "", now: float = NOW, **chunk: Any) -> dict[str, Any]:
    """Hand a chunk to a pack and give its receipt."""
    token = name or f"{len(pack.messages)}-{entries}"
    pack.admit({"token": token, "entries": list(entries)} | chunk, now)
    receipt = pack.receipts.find(token)
    assert receipt is not None
    return receipt


def hold(*entries: Entry, **changes: Any) -> PackState:
    """Make a pack that holds some messages."""
    pack = build(**changes)
    receipt = admit(pack, *entries)
    receipt.pop("crowding", None)
    assert receipt == {"known": [], "refused": {}, "moved": {}}
    return pack


def take(pack: PackState, now: float = NOW, lanes: Sequence[str] = tuple(LANES)) -> Batch:
    """Take a batch that there must be."""
    batch = pack.take(lanes, now, f"t{next(TOKENS)}")
    assert batch is not None
    return batch


def apply(pack: PackState, batch: Batch, *outcomes: Outcome, now: float = NOW) -> None:
    """Apply what all that is left of a batch has come to, as a worker answers it; the last outcome is for all others.

    Those that the worker decides on come as the change of an entry, all others as the outcome.
    """
    results: list[Any] = []
    for n, position in enumerate(batch.left):
        entry = pack.in_flight.messages[batch.ids[position]].entry
        outcome = outcomes[min(n, len(outcomes) - 1)]
        results.append(
            to_result(
                to_input(entry), outcome, now, kind=pack.config.kind, lane=pack.config.lane, spread=pack.config.within
            )
        )
    pack.apply_results(batch, json.loads(encode_json(results)), now)


def run(pack: PackState, *outcomes: Outcome, now: float = NOW) -> Batch:
    """Run a batch to its end; the last outcome is that of all the others too."""
    batch = take(pack, now)
    apply(pack, batch, *outcomes, now=now)
    return batch


def find(pack: PackState, message_id: str) -> MessageState:
    """Give a message that the pack must know."""
    state = pack.messages.find(message_id)
    assert state is not None, message_id
    return state


def phases(pack: PackState, ids: str) -> list[str]:
    """Say in which phase each of some messages is."""
    return [find(pack, message_id).phase for message_id in ids]


def count_bytes(pack: PackState) -> int:
    """Measure what a pack holds, asleep, finished and in flight."""
    wire = dump(pack)
    running = pack.in_flight.messages.values()
    return sum(map(measure, [*wire["entries"], *wire.get("ended", [])])) + sum(each.size for each in running)


@pytest.mark.parametrize(("restarts", "known"), [(False, [0, 1, 2, 4]), (True, [0, 1, 4])])
def test_a_message_that_is_known_is_not_started_twice(restarts: bool, known: list[int]) -> None:  # noqa: FBT001 — a column of the table
    """Asleep, at work, in the same chunk already: known; finished ones only come back where that is asked for."""
    pack = hold(entry("c"))
    run(pack, DONE)
    admit(pack, entry("b"))
    take(pack)
    admit(pack, entry("a", NOW + 5))
    receipt = admit(pack, *map(entry, "abcdd"), restarts=restarts)

    assert receipt == {"known": known, "refused": {}, "moved": {}}
    assert find(pack, "a").due_at == NOW + 5
    assert phases(pack, "bcd") == ["active", "active" if restarts else "done", "active"]


def test_a_chunk_that_comes_again_changes_nothing() -> None:
    """A retried call neither adds nor restarts: its first receipt stands."""
    pack = build()
    first = admit(pack, entry("a"), name="t", restarts=True)
    run(pack, DONE)

    assert admit(pack, entry("a"), entry("b"), name="t", restarts=True) == first
    assert (phases(pack, "a"), pack.messages.find("b")) == (["done"], None)


def test_a_pack_takes_more_than_its_size_and_says_how_crowded_it_is() -> None:
    """From three quarters of its size on, whoever starts messages learns how much too many it holds."""
    pack = build(size=16)
    few = admit(pack, *(entry(f"a{n}") for n in range(11)))
    many = admit(pack, *(entry(f"b{n}") for n in range(19)))

    assert few == {"known": [], "refused": {}, "moved": {}}
    assert many == {"known": [], "refused": {}, "moved": {}, "crowding": 2.5}
    assert len(pack.messages) == 30
    assert count_bytes(pack) == pack.limits.bytes


def test_a_pack_of_few_is_not_crowded_whatever_its_size() -> None:
    """Otherwise a kind of packs for one message would have a pack for each, and never enough."""
    pack = build(size=1)

    assert "crowding" not in admit(pack, *map(entry, "abcdefg"))
    assert admit(pack, entry("h"))["crowding"] == 1


def test_a_pack_without_room_for_the_bytes_is_full() -> None:
    """However few the messages are; small ones still find room where large ones do not."""
    pack = build()
    receipt = admit(pack, *(entry(f"m{n}", payload="x" * 4000) for n in range(110)))

    assert receipt["full"] == list(range(len(pack.messages), 110))
    assert receipt["refused"] == {}
    assert receipt["crowding"] == pytest.approx(2, abs=0.05)
    assert STATE_BYTES_MAX - 5000 < pack.limits.bytes <= STATE_BYTES_MAX
    assert "full" not in admit(pack, entry("small"))


def test_a_pack_that_does_not_know_yet_how_far_it_compresses_is_not_crowded_by_that() -> None:
    """Three thousand ordinary messages come in one go; a kind would get twice the packs that it needs."""
    pack = build(size=4000, stored_share=0.0)
    receipt = admit(pack, *(entry(f"message-{n:08}", payload="x" * 70) for n in range(2900)))

    assert pack.limits.bytes > STATE_BYTES_MAX * 3 / 4
    assert "full" not in receipt
    assert "crowding" not in receipt


@pytest.mark.parametrize("stored_share", [0.0, 1.0, 0.25])
def test_what_moves_here_is_taken_while_the_server_can_store_it(stored_share: float) -> None:
    """Beyond the limit too, for it is nowhere else; but never beyond what comes to three times a state's bytes."""
    pack = build(stored_share=stored_share)
    entries = [entry(f"m{n}", payload="x" * 3900) for n in range(400)]
    receipt = admit(pack, *entries, is_moving=True)
    taken = len(pack.messages)

    assert receipt.get("full", []) == list(range(taken, 400))
    assert pack.limits.bytes * (stored_share or 1.0) <= 3 * STATE_BYTES_MAX
    assert taken == 400 or pack.limits.bytes + 4000 > 3 * STATE_BYTES_MAX


def test_a_finished_message_that_is_forgotten_for_room_can_start_anew() -> None:
    """The very one that comes back may be what has to go first."""
    pack = hold(entry("z"))
    run(pack, DONE)
    admit(pack, *(entry(f"m{n}", payload="x" * 4000) for n in range(97)))
    room = STATE_BYTES_MAX - pack.limits.bytes + 1
    receipt = admit(pack, entry("z", payload="x" * (room - measure(entry("z", payload="")))), restarts=True)

    assert "full" not in receipt
    assert (phases(pack, "z"), count_bytes(pack)) == (["active"], pack.limits.bytes)


@pytest.mark.parametrize(("moment", "is_taken"), [(NOW - 9, True), (NOW, True), (NOW + 0.001, False), (NOW + 9, False)])
def test_nothing_is_taken_early(moment: float, is_taken: bool) -> None:  # noqa: FBT001 — a column of the table
    """Not by a millisecond, also when others wake the pack."""
    pack = hold(entry("a", moment))

    assert (pack.take(list(LANES), NOW, "t") is not None) is is_taken


def test_what_was_due_when_it_was_sent_is_due_at_once() -> None:
    """The sender's clock may be ahead of the server's; what it meant for later stays for later."""
    pack = build()
    admit(pack, entry("a", NOW + 3), entry("b", NOW + 9), sent_at=NOW + 5)

    assert take(pack).ids == ["a"]
    assert find(pack, "b").due_at == NOW + 9


def test_what_a_person_asks_for_at_once_goes_before_what_is_due_longer() -> None:
    """It is the first of its priority."""
    pack = hold(entry("a", NOW - 5), entry("b", NOW + 3), entry("c", NOW - 9, priority=1))
    pack.steer(["b"], RunNow(), NOW)

    assert take(pack).ids == ["c", "b", "a"]


@pytest.mark.parametrize(
    "outcome",
    [AGAIN, Outcome("again", after=60.0, payload="y" * 300, is_payload_changed=True, lane="medium"), GATED],
    ids=["usual", "unusual", "gated"],
)
@pytest.mark.parametrize("room", [STATE_BYTES_MAX, 700, 0])
def test_what_a_worker_has_decided_counts_as_if_the_pack_had(outcome: Outcome, room: int) -> None:
    """Also for what finds no room in its pack any more."""
    given = hold(*map(entry, "abc"))
    decided = hold(*map(entry, "abc"))
    for pack in (given, decided):
        pack.limits.bytes += STATE_BYTES_MAX - room
    apply(given, take(given), outcome)
    batch = take(decided)
    decided.apply_results(batch, [outcome._replace(ended_at=NOW).dump()] * 3, NOW)

    assert dump(given) == dump(decided)


def test_a_batch_takes_the_higher_priority_first_and_then_what_is_due_longest() -> None:
    """Whatever the order is in which messages came."""
    pack = hold(
        entry("a"), entry("b", NOW - 5), entry("c", priority=1), entry("d", NOW - 9, priority=5), entry("e", NOW - 1)
    )

    assert take(pack).ids == ["c", "b", "e", "a", "d"]


def test_tenants_of_one_priority_take_turns_in_a_batch() -> None:
    """The one message of a quiet tenant is among the first, though a loud one has many that are due for longer."""
    loud = [entry(f"l{n}", NOW - 100 + n, tenant="loud") for n in range(4)]
    pack = hold(*loud, entry("q", NOW - 1, tenant="quiet"), entry("n", NOW - 2), entry("z", priority=5, tenant="quiet"))

    assert take(pack).ids == ["l0", "n", "q", "l1", "l2", "l3", "z"]


def test_a_batch_is_bound_in_number_and_in_bytes() -> None:
    """What is left over goes with the next one, at once."""
    many = hold(*(entry(f"m{n}") for n in range(BATCH_FIRST + 7)))
    large = hold(*(entry(f"m{n}", payload="x" * 4000) for n in range(90)))
    one = take(large)
    other = take(large)

    assert [len(take(many).ids), len(take(many).ids)] == [BATCH_FIRST, 7]
    assert len(one.ids) + len(other.ids) == 90
    assert BATCH_BYTES_MAX <= measure(one.entries) < BATCH_BYTES_MAX + 5000


def test_batches_grow_until_not_all_of_their_calls_begin() -> None:
    """What found no slot was sent for nothing, so the next batch is as large as what has begun."""
    pack = build(size=5000, bytes=-(10**6))  # so many that their bytes matter to nothing
    admit(pack, *(entry(f"m{n}") for n in range(4000)))

    def run(begun: float) -> int:
        batch = take(pack)
        count = len(batch.ids)
        pack.apply_results(batch, [AGAIN.dump() if n < begun * count else None for n in range(count)], NOW)
        for message_id in batch.ids:
            pack.steer([message_id], RunNow("again"), NOW)
        return count

    assert [run(1), run(1), run(1), run(1)] == [500, 1000, 2000, BATCH_MAX]
    assert [run(0.25), run(0.01), run(1), run(1)] == [BATCH_MAX, 500, BATCH_MIN, 200]


def test_a_batch_is_of_one_lane_and_only_of_one_with_room() -> None:
    """A lane that is busy holds back its own messages alone."""
    pack = hold(entry("a"), entry("b", lane="medium", priority=1), entry("c", lane="long"), entry("d"))

    assert pack.take([], NOW, "t") is None
    taken = [take(pack, lanes=["short", "medium"]), take(pack, lanes=["short", "medium"])]
    assert [(batch.lane, batch.ids) for batch in taken] == [("medium", ["b"]), ("short", ["a", "d"])]
    assert pack.take(["short", "medium"], NOW, "t") is None
    assert take(pack).ids == ["c"]


def test_what_was_lost_together_is_tried_alone() -> None:
    """One of them may have broken the worker: each goes by itself, after those that nobody suspects."""
    pack = hold(*map(entry, "abc"))
    pack.lose_batch(take(pack), "the batch was lost: heartbeat timeout", NOW, 1)
    admit(pack, entry("d"), entry("e"))
    loaded = PackState(dump(pack))

    assert [run(loaded, AGAIN).ids for _ in range(4)] == [["d", "e"], ["a"], ["b"], ["c"]]
    assert sorted(run(loaded, AGAIN, now=NOW + 3600).ids) == ["a", "b", "c", "d", "e"]


def test_a_large_lost_batch_is_split_until_the_culprit_is_alone() -> None:
    """Each loss costs as long as three workers live, and each batch a while: of both there are few."""
    pack = hold(*(entry(f"{number:03}") for number in range(200)))
    sizes = list[int]()
    losses = list[int]()
    while (batch := pack.take(tuple(LANES), NOW, "t")) is not None:
        sizes.append(len(batch.ids))
        if "123" in batch.ids:
            losses.append(len(batch.ids))
            pack.lose_batch(batch, "the batch was lost: heartbeat timeout", NOW, 1)
        else:
            apply(pack, batch, AGAIN)
        pack = PackState(dump(pack))

    assert losses == [200, 25, 3, 1]
    assert len(sizes) < 25
    assert [state.id for state in pack.messages.alive() if state.attempt] == ["123"]


def test_a_suspect_waits_for_its_own_lane_only() -> None:
    """One whose lane is busy does not hold back one whose lane is not."""
    pack = hold(entry("a", lane="medium"), entry("b", lane="medium"), entry("c"), entry("d"))
    for lane in ("medium", "short"):
        pack.lose_batch(take(pack, lanes=[lane]), "lost", NOW, 1)

    assert take(pack, lanes=["short"]).ids == ["c"]


def test_what_is_revised_before_its_outcome_comes_goes_on() -> None:
    """It is not over, whatever its handler said of the payload before."""
    pack = hold(entry("a"))
    batch = take(pack)
    pack.steer(["a"], Revise("new"), NOW)
    apply(pack, batch, DONE)

    state = find(pack, "a")
    assert (state.phase, state.version, state.payload) == ("active", 1, "new")


def test_each_message_of_a_batch_gets_its_own_outcome() -> None:
    """The decision is the one of a message that has a workflow of its own, but for the place in its tolerance."""
    again = Outcome("again", after=3600.0, tolerance=600.0)
    outcomes = (again, DONE, REJECT, Outcome("failed", "once"), Outcome("handed_back"))
    pack = hold(*map(entry, "abcde"))
    started = {message_id: find(pack, message_id) for message_id in "abcde"}
    run(pack, *outcomes)

    assert phases(pack, "abcde") == ["active", "done", "parked", "active", "active"]
    for message_id, outcome in zip("acde", (again, *outcomes[2:]), strict=True):
        assert find(pack, message_id) == decide(started[message_id], outcome, NOW, spread=SPREAD)
    assert find(pack, "b").result == "ok"
    assert (len(pack.messages), count_bytes(pack)) == (4, pack.limits.bytes)


def test_an_outcome_is_decided_on_once() -> None:
    """What a batch has been answered is left no more, and its messages may go on in another batch meanwhile."""
    pack = hold(entry("a"), entry("b"))
    old = take(pack)
    again = to_result(old.entries[0], AGAIN, NOW, kind="feed", lane="short", spread=SPREAD)
    pack.apply_results(old, [again, STILL_IN_FLIGHT], NOW)
    new = take(pack, NOW + 3600)
    apply(pack, old, DONE, now=NOW + 3600)

    assert (new.ids, old.left, find(pack, "a").version, phases(pack, "ab")) == (["a"], [], 1, ["active", "done"])
    with pytest.raises(ValueError, match="zip"):
        pack.apply_results(old, [again], NOW + 3600)


@pytest.mark.parametrize(("ids", "attempt", "what"), [("a", 1, "failed"), ("ab", 0, "handed_back")])
def test_a_lost_batch_is_a_failure_of_the_one_that_was_alone_in_it(ids: str, attempt: int, what: str) -> None:
    """Nobody is blamed for what another one may have done."""
    pack = hold(*map(entry, ids))
    batch = take(pack)
    pack.lose_batch(batch, "the batch was lost: timed out", NOW, 1)

    state = find(pack, "a")
    assert (state.attempt, state.decisions[-1].what, state.phase) == (attempt, what, "active")
    assert "the batch was lost: timed out" in state.decisions[-1].reason


def test_what_is_lost_alone_counts_each_of_its_tries_and_is_never_parked_here() -> None:
    """The handler's own limit is known to workers alone: they park it with the next call."""
    pack = hold(entry("a"))
    for n in range(4):
        pack.lose_batch(take(pack, NOW + n * 7200), "lost", NOW + n * 7200, 3)

    assert (find(pack, "a").phase, find(pack, "a").attempt) == ("active", 12)


@pytest.mark.parametrize(
    ("entries", "wake", "due"),
    [
        ([], math.inf, math.inf),
        ([entry("a", NOW + 10)], NOW + 10, NOW + 10),
        ([entry("a", NOW + 10, latest_at=NOW + 40)], NOW + 10 + 30 * SPREAD.patience, NOW + 10),
        ([entry("a", NOW + 10, latest_at=NOW + 400)], NOW + 10 + 60 * SPREAD.patience, NOW + 10),
        (
            [entry("a", NOW + 10, latest_at=NOW + 400), entry("b", NOW + 20, latest_at=NOW + 30)],
            NOW + 20 + 10 * SPREAD.patience,
            NOW + 10,
        ),
        ([entry("a", NOW + 10, is_paused=True), entry("b", NOW + 20)], NOW + 20, NOW + 20),
        ([entry("a", NOW + 10, parked_reason="gone")], math.inf, math.inf),
    ],
)
def test_a_pack_wakes_with_the_first_that_can_wait_no_longer(entries: list[Entry], wake: float, due: float) -> None:
    """It waits for others to join in, half as long as it may or more, and never beyond what a message tolerates."""
    outlook = hold(*entries).messages.summary()

    assert (outlook.wake_at, outlook.due_at) == (pytest.approx(wake, abs=1e-3), due)


def test_a_wake_does_for_all_that_fall_due_while_the_pack_waits_for_more() -> None:
    """A thousand messages that come back all through the hour need a few dozen wakes, wherever each is placed."""
    for number in range(10):
        entries = [entry(f"m{n}", NOW + 3.6 * n, latest_at=NOW + 3.6 * n + 300) for n in range(1000)]
        pack = hold(*entries, kind=f"feed{number}", coalesce=300.0)
        wakes = 0
        while (wake := pack.messages.summary().wake_at) < NOW + 3 * 3600:
            run(pack, Outcome("again", after=3600.0, tolerance=300.0 + 60 * number), now=wake)
            wakes += 1

        assert 3 * 11 <= wakes <= 3 * 25, (number, wakes)


def test_an_outlook_counts_every_message_once() -> None:
    """Asleep, held (parked ones among them) or at work."""
    pack = hold(*map(entry, "abcd"), entry("e", NOW + 9), entry("f", is_paused=True))
    batch = take(pack)
    results = [
        to_result(e, o, NOW, kind="feed", lane="short", spread=SPREAD)
        for e, o in zip(batch.entries, (REJECT, DONE, AGAIN), strict=False)
    ]
    pack.apply_results(batch, [*results, STILL_IN_FLIGHT], NOW)
    outlook = pack.messages.summary()

    assert (outlook.asleep, outlook.held, outlook.parked, outlook.running) == (2, 2, 1, 1)


@pytest.mark.parametrize(("end", "phase"), [(DONE, "done"), (Stop("enough"), "stopped")])
def test_a_finished_message_is_remembered_for_a_day(end: Outcome | Signal, phase: str) -> None:
    """With its payload, for whoever looks at it, and so that it is not started twice; then it makes way."""
    pack = hold(entry("a", payload="x" * 100))
    if isinstance(end, Outcome):
        run(pack, end)
    else:
        pack.steer(["a"], end, NOW)
    state = find(pack, "a")

    assert (state.phase, state.payload, [s.id for s in pack.messages.finished()], len(pack.messages)) == (
        phase,
        "x" * 100,
        ["a"],
        0,
    )
    assert admit(pack, entry("a"), now=NOW + FINISHED_KEPT_SECONDS)["known"] == [0]
    assert admit(pack, entry("b"), now=NOW + FINISHED_KEPT_SECONDS + 1)["known"] == []
    assert (pack.messages.find("a"), count_bytes(pack)) == (None, pack.limits.bytes)


def test_no_more_finished_messages_are_remembered_than_a_pack_holds() -> None:
    """The oldest make way."""
    pack = hold(*(entry(f"m{n}", NOW + n) for n in range(5)), size=5)
    for n in range(5):
        run(pack, DONE, now=NOW + n)
    admit(pack, entry("last", NOW + 5))
    run(pack, DONE, now=NOW + 5)

    assert [state.id for state in pack.messages.finished()] == ["last", "m1", "m2", "m3", "m4"]


def test_a_pack_passes_on_what_it_was_given() -> None:
    """What one run writes loads in the next, means the same there, and is what that one writes."""
    pack = PackState(json.loads(json.dumps(WIRE)))

    assert dump(pack) == WIRE
    assert WIRE["bytes"] == count_bytes(pack)
    assert (phases(pack, "abc"), find(pack, "c").result) == (["active", "parked", "done"], 7)
    assert pack.receipts.find("0f") == {"known": [0, 1], "refused": {"3": "full"}, "moved": {}}
    assert pack.receipts.find("1f") == {"missing": [1], "moved": {}}


def test_a_wire_form_with_unknown_keys_loads_without_them() -> None:
    """Newer code writes more; this code reads what it knows."""
    assert dump(PackState({**WIRE, "mood": "sleepy"})) == WIRE


@pytest.mark.parametrize("wire", [None, [], {}, {**HEADING, "v": 2}, {"v": 1}])
def test_an_input_that_is_no_pack_is_refused(wire: Any) -> None:
    """The sentence says what one looks like."""
    with pytest.raises(TypeError, match="the wire form of a pack has v=1 and a kind"):
        PackState(wire)


def test_a_held_message_is_never_taken() -> None:
    """Parked or paused, however long it is due; once it is released it goes at once."""
    pack = hold(entry("a", NOW - 9), entry("b", NOW - 9, parked_reason="gone"))
    pack.steer(["a"], Pause(), NOW)

    assert pack.take(list(LANES), NOW, "t") is None
    pack.steer(["b"], RunNow(), NOW)
    assert take(pack).ids == ["b"]
