"""What a pack is read as, held against what it is."""

from shared.messages.message import ENDS
from starter.steering.stored.stored_pack import StoredPack

PAYLOADS = {"has_payloads": True}


def check_claims(found: StoredPack, own: StoredPack) -> None:
    """Check that a state that is claimed to be current is right, and so are ids that are claimed to be known."""
    if found.is_current:
        assert found.list(PAYLOADS) == own.list(PAYLOADS)
    if found.knows_ids:
        assert _list_ids(found) == _list_ids(own)


def _list_ids(pack: StoredPack) -> set[tuple[str, bool]]:
    """Give each message's id and whether it has ended: which of the others are parked, only a current state tells."""
    return {(message_id, state in ENDS) for message_id, state in pack.list_known()}
