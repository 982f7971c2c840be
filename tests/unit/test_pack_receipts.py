"""Receipts of a pack: small for the pack that carries them, in full for whoever asks."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.packs.entry import measure
from workflows.packs.requests.receipts import KEPT_SECONDS, RECEIPTS_BYTES_MAX, PackReceipts

NOW = 1_795_291_200.0
SENTENCE = "the payload finds no room in pack 3 of kind 'feed'; spread the kind over more packs"

fates = st.lists(st.sampled_from(["started", "known", "full", "too big", "moved"]), max_size=30)


@settings(max_examples=100, database=None)
@given(fates)
def test_a_receipt_tells_of_every_position_what_was_noted(fates: list[str]) -> None:
    """Also after the next run has read it from JSON."""
    at = {fate: [n for n, f in enumerate(fates) if f == fate] for fate in ("known", "full", "too big", "moved")}
    receipts = PackReceipts({})
    receipts.note_chunk("c", {why: at[why] for why in ("known", "full", "too big")}, NOW, moved_by=len(at["moved"]))
    receipts.note_signal("s", at["known"], {}, NOW)
    loaded = PackReceipts(json.loads(json.dumps(receipts)))

    told: dict[str, Any] = {"known": at["known"], "moved": {}}
    told |= {"moved_by": len(at["moved"])} if at["moved"] else {}
    told |= {"refused": {str(n): "too big" for n in at["too big"]}}
    told |= {"full": at["full"]} if at["full"] else {}
    assert loaded.find("c") == told
    assert loaded.find("s") == {"missing": at["known"], "moved": {}}
    assert (loaded.find("other"), "s" in loaded, "other" in loaded) == (None, True, False)


def test_a_thousand_refusals_take_no_more_room_than_one() -> None:
    """A full pack that is sent chunk after chunk stays small: a reason is written once, positions as runs."""
    receipts = PackReceipts({})
    for n in range(100):
        receipts.note_chunk(f"{n:032}", {SENTENCE: range(1000)}, NOW)

    assert measure(receipts) < 250 * 100
    told: dict[str, Any] = {"known": [], "refused": dict.fromkeys(map(str, range(1000)), SENTENCE), "moved": {}}
    assert [receipts.find(f"{n:032}") for n in (0, 99)] == [told, told]


def test_receipts_are_kept_for_as_long_as_somebody_may_ask() -> None:
    """However many have come meanwhile from others; then they are forgotten, the next run's too."""
    receipts = PackReceipts({})
    for n in range(400):
        receipts.note_signal(f"{n:032}", [], {}, NOW + n)
    receipts = PackReceipts(receipts)
    receipts.forget_old(NOW + 99 + KEPT_SECONDS)

    assert list(receipts) == [f"{n:032}" for n in range(99, 400)]
    receipts.forget_old(NOW + 400 + KEPT_SECONDS)
    assert receipts == {}


def test_scattered_receipts_are_forgotten_before_they_burst_a_pack() -> None:
    """The oldest go first, the latest always stays."""
    receipts = PackReceipts({})
    for n in range(20):
        receipts.note_signal(f"t{n}", range(0, 2000, 2), {}, NOW)
    dumped = dict(receipts)
    receipts.note_signal("large", range(0, 20_000, 2), {}, NOW)

    assert RECEIPTS_BYTES_MAX * 0.8 < measure(dumped) <= RECEIPTS_BYTES_MAX
    assert list(dumped)[-1] == "t19"
    assert list(receipts) == ["large"]
