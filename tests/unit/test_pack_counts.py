"""Counts of packs: what they hold of the entries, what they make of what is due, and what they never claim."""

import json
import random
from datetime import UTC, datetime

import pytest

from shared.packs.counts import FIRST, PackCounts, count_entries, read_counts
from shared.packs.entry import Entry
from starter.steering.selection import Selection
from starter.steering.stored.memo_counts import CountedPack, MemoCounts, MessageCount

AT = 1_800_000_000.0
HOUR = 3600.0


def entry(number: int, due: float = AT, **others: object) -> Entry:
    """Make an entry that is due at a moment."""
    plain: Entry = [f"m{number}", round(due * 1000), 0, 0, 0, None, []]
    return [*plain, others] if others else plain


def count(entries: list[Entry], *running: Entry) -> PackCounts:
    """Count entries, by way of the wire."""
    counts = read_counts(json.loads(json.dumps(count_entries(entries, running, "short", AT))))
    assert counts is not None
    return counts


def test_each_message_is_counted_on_its_lane_and_in_its_state() -> None:
    """As `overview` does: what is parked and paused is parked, and what has ended is nothing."""
    counts = count(
        [
            entry(1, AT + 60),
            entry(2, AT + 30, lane="long"),
            entry(3, is_paused=True),
            entry(4, is_paused=True, parked_reason="broken"),
            entry(5, parked_reason="broken", lane="long"),
            entry(6, ended="stopped"),
            entry(7, AT + 90, priority=1),
        ],
        entry(8, lane="medium"),
    )

    short, medium, long = (counts.lanes[name] for name in ("short", "medium", "long"))
    assert (short.asleep, short.paused, short.parked, short.running) == (2, 1, 1, 0)
    assert (long.asleep, long.parked, medium.running) == (1, 1, 1)
    assert (short.next_due, long.next_due, medium.next_due) == (AT + 60, AT + 30, None)
    assert counts.alive == 7


@pytest.mark.parametrize("shape", ["even", "herd", "few", "far"])
def test_what_is_due_is_about_right_at_every_moment(shape: str) -> None:
    """Within a twelfth of the messages for any distribution, and a herd stays a herd."""
    chance = random.Random(3)
    dues = {
        "even": [AT + 4 * HOUR * chance.random() for _ in range(1000)],
        "herd": [AT + 7 * HOUR] * 600 + [AT + 24 * HOUR * chance.random() for _ in range(400)],
        "few": [AT + HOUR * n for n in range(5)],
        "far": [AT + 365 * 24 * HOUR * chance.random() ** 4 for _ in range(800)],
    }[shape]
    lane = count([entry(n, due) for n, due in enumerate(dues)]).lanes["short"]

    for moment in (AT + HOUR * n / 2 for n in range(80)):
        assert abs(lane.count_due(moment) - sum(due < moment for due in dues)) <= len(dues) / 12 + 2
    if shape == "herd":
        assert lane.count_due(AT + 7 * HOUR + 1) - lane.count_due(AT + 7 * HOUR - 60) >= 500


def test_counts_are_small() -> None:
    """A server warns at two kilobytes of memo; three lanes of a large pack, due in ten years, take a third of that."""
    lanes = ("short", "medium", "long")
    far = AT + 10 * 365 * 24 * HOUR
    entries = [entry(n, far + n, lane=lanes[n % 3], priority=1) for n in range(5000)]
    entries += [entry(n, is_paused=True) for n in range(99)] + [entry(n, parked_reason="x") for n in range(99)]

    assert len(json.dumps(count_entries(entries, entries, "short", AT))) < 800


@pytest.mark.parametrize(
    "wire",
    [None, 7, [], {}, {"at": "soon"}, {"lanes": {}}, {"at": float("nan")}],
)
def test_what_are_no_counts_is_unknown(wire: object) -> None:
    """A memo of an older pack, or of somebody else."""
    assert read_counts(wire) is None


def test_counts_of_a_newer_version_are_read_as_far_as_they_are_known() -> None:
    """Unknown lanes and fields are passed over, missing ones are zero, wrong ones too."""
    lane = {"asleep": 3, "parked": "many", "due": [5, "x", 1], "snoring": 2}
    counts = read_counts({"at": AT, "lanes": {"short": lane, "huge": {"asleep": 9}, "long": 4}, "by": "v9"})

    assert counts is not None
    assert list(counts.lanes) == ["short"]
    assert (counts.alive, counts.lanes["short"].due, counts.is_first) == (3, [AT + 1, AT + 5], False)
    assert read_counts({"at": AT, FIRST: True}) == PackCounts(AT, {}, is_first=True)


def pack_of(dues: list[float], ran_until: float) -> CountedPack:
    """Make a counted pack of messages that are due then."""
    return CountedPack("kind", count([entry(n, due) for n, due in enumerate(dues)]), ran_until)


def test_an_old_count_raises_no_false_alarm() -> None:
    """What was due since then has run and come back: as many are due in the next hour as at the time of the count."""
    dues = [AT + 4 * HOUR * n / 1000 for n in range(1000)]
    now = AT + 10 * HOUR
    memos = MemoCounts(now=now, packs=1, counted=[pack_of(dues, now)], uncounted=0)

    due = memos.count_due([now + HOUR * n for n in range(1, 6)])["kind", "short"]

    assert [due[n] for n in range(4)] == pytest.approx([250] * 4, abs=5)
    assert sum(due.values()) == 1000


def test_what_waits_by_the_index_is_overdue() -> None:
    """The index says that the pack is due since two hours: what was due before has run, what was due then waits."""
    dues = [AT + 4 * HOUR * n / 1000 for n in range(1000)]
    now = AT + 3 * HOUR
    memos = MemoCounts(now=now, packs=1, counted=[pack_of(dues, AT + HOUR)], uncounted=0)

    due = memos.count_due([now + 1, now + HOUR])["kind", "short"]

    assert due[0] == pytest.approx(500, abs=5)
    assert due[1] == pytest.approx(250 + 62, abs=5)


def test_counts_by_kind_name_each_kind_that_has_packs() -> None:
    """A kind of whose packs nothing could be read has no message that is known, and its count says so."""
    packs = [CountedPack(name, count([entry(n, AT + n) for n in range(10)]), AT) for name in ("a", "b", "b")]
    memos = MemoCounts(now=AT, packs=4, counted=packs, uncounted=1, kinds=["a", "b", "c"])

    found = memos.count_kinds(Selection(state="active"))

    assert {kind: counted.number for kind, counted in found.items()} == {"a": 10, "b": 20, "c": 0}
    assert not any(counted.is_exact for counted in found.values())


def test_counts_from_memos_never_claim_more_than_about() -> None:
    """Whatever the selection, the number says "about", and the sentence how old the oldest count is."""
    pack = CountedPack("kind", count([entry(n, AT + n) for n in range(10)]), AT, weight=2.0)
    memos = MemoCounts(now=AT + 2 * HOUR, packs=3, counted=[pack], uncounted=1)
    selections = [Selection(), Selection(lane="short"), Selection(state="active"), Selection(state="parked")]
    selections += [Selection(due_before=datetime.fromtimestamp(AT + 3 * HOUR, UTC))]

    for found in map(memos.count, selections):
        assert not found.is_exact
        assert found.describe().startswith("about ")
        assert "up to 2 h ago" in found.explain()
        assert "1 packs could not be read" in found.explain()
    assert [memos.count(selection).number for selection in selections] == [20, 20, 20, 0, 20]
    assert (MessageCount(1).describe(), MessageCount(1).explain()) == ("1 message", "")
