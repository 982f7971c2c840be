"""Messages that leave a pack: those whose handlers are at work leave when these have ended, in whatever run that is."""

from shared.messages.json_value import decode_json
from shared.messages.placement import pack_index
from shared.packs.cycle import STILL_IN_FLIGHT
from shared.packs.entry import to_heading
from workflows.packs.state import PackState

NOW = 1_000.0
KIND = "leaving"
DUE = 1_000_000


def test_a_message_at_work_leaves_for_its_new_pack_after_its_pack_has_gone_on_in_a_new_run() -> None:
    """The next run knows that it leaves, as long as its call is in flight, and sends it away at its end."""
    moving = next(f"m{n}" for n in range(100) if pack_index(f"m{n}", 2) == 1)
    heading = to_heading(KIND, "short", index=0, packs=1, size=10, coalesce=0.0)
    pack = PackState({**heading, "entries": [[moving, DUE, 0, 0, 0, None, []]]})
    batch = pack.take(["short"], NOW, "token")
    assert batch is not None
    batch.queue = "queue"
    pack.apply_results(batch, [STILL_IN_FLIGHT], NOW)
    pack.resize(2)

    following = PackState(decode_json(pack.encode()))
    assert following.leaving == {moving: 1}

    (batch,) = following.in_flight.batches.values()
    following.apply_results(batch, [None], NOW)
    assert len(following) == 0
    assert len(following.forwarding) == 1
