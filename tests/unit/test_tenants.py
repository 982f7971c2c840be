"""Weights of tenants, as they are set."""

import pytest

from shared.errors import InvalidSetting
from shared.settings import Settings
from worker.lanes.starting import read_weights


def test_weights_are_read_by_tenant() -> None:
    """A tenant's name may hold an equals sign: the last one counts."""
    assert read_weights(Settings(tenant_weights=("acme=3", "a=b = 0.5"))) == {"acme": 3.0, "a=b": 0.5}


@pytest.mark.parametrize("text", ["acme", "=3", " =3", "acme=", "acme=x", "acme=0", "acme=-1", "acme=1001", "acme=nan"])
def test_what_is_no_weight_is_refused_in_a_sentence(text: str) -> None:
    """It names the setting, shows the text and says what to write."""
    with pytest.raises(InvalidSetting) as refused:
        read_weights(Settings(tenant_weights=(text,)))

    assert str(refused.value) == (
        f"tenant_weights: {text!r} is no TENANT=WEIGHT with a weight from 0.001 to 1000; "
        "write for example acme=3,trial=0.2"
    )
