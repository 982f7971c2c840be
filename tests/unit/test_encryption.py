"""The key ring and the codec: what is a key, what is encrypted with which, and the error for a wrong one."""

import base64
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload

from shared.errors import InvalidSetting, PayloadKeyMissing
from shared.settings import Secret, Settings
from shared.temporal.encryption import (
    ENCODING,
    KEY_ID,
    EncryptionCodec,
    build_converter,
    read_keys,
    write_keys,
)
from starter.cli.main import run

GOOD = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(range(32, 64))).decode()
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"a secret"')

FLAWS = [
    (GOOD, "key 1 has no id"),
    (f":{GOOD}", "key 1 has no id"),
    (f"a b:{GOOD}", "key 1 has no id"),
    (f"{'k' * 33}:{GOOD}", "key 1 has no id"),
    (f"one:{GOOD},two:", "key 2 has no id"),
    (f"one:{GOOD},one:{OTHER}", "two keys have the id 'one'"),
    (f"one:{GOOD[:-8]}", "key 'one' "),
    ("one:c2hvcnQ=", "key 'one' has 5 bytes and needs 32"),
    ("one:not base64 at all", "key 'one' is not in base64"),
    ("# nothing", "has no key"),
]


def ring(*keys: str) -> Settings:
    """Give settings with these keys."""
    return Settings(encryption_keys=Secret(",".join(keys)))


@pytest.mark.parametrize(("text", "sentence"), FLAWS)
def test_what_is_no_key_is_refused_in_one_sentence_that_does_not_show_it(text: str, sentence: str) -> None:
    """Whatever is wrong with it, its bytes stay where they are."""
    with pytest.raises(InvalidSetting, match="encryption_keys: ") as caught:
        read_keys(Settings(encryption_keys=Secret(text)))

    assert sentence in str(caught.value)
    shown = f"{caught.value} {caught.value.__cause__} {caught.value.__context__ if caught.value.__cause__ else ''}"
    assert not any(secret in shown for secret in (GOOD, GOOD[:-8], OTHER, "c2hvcnQ=", "not base64 at all"))


def test_a_file_holds_a_key_on_each_line(tmp_path: Path) -> None:
    """Comments and empty lines say nothing; the order counts."""
    file = tmp_path / "keys"
    file.write_text(f"# the first encrypts\nnew:{GOOD}\n\nold:{OTHER}\n")

    keys = read_keys(Settings(encryption_keys_file=str(file)))

    assert list(keys) == ["new", "old"]
    assert read_keys(Settings(encryption_keys=Secret(write_keys(keys)))) == keys


def test_keys_in_both_places_are_refused(tmp_path: Path) -> None:
    """Nobody could say which of them count."""
    with pytest.raises(InvalidSetting, match="encryption_keys_file: is set beside encryption_keys"):
        read_keys(Settings(encryption_keys=Secret(f"a:{GOOD}"), encryption_keys_file=str(tmp_path)))


@pytest.mark.parametrize("how", ["environment", "file", "flag"])
def test_a_command_with_a_wrong_key_ends_with_one_sentence(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it connects, with exit code 2, and without showing the key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    wrong = f"mine:{GOOD[:-4]}"
    (tmp_path / "keys").write_text(wrong)
    flags = {"file": ["--set", "encryption_keys_file=keys"], "flag": ["--set", f"encryption_keys={wrong}"]}
    if how == "environment":
        monkeypatch.setenv("DORMICE_ENCRYPTION_KEYS", wrong)

    code = run(["list", "--verbose", *flags.get(how, [])])

    err = capsys.readouterr().err
    assert code == 2
    assert "key 'mine' has 30 bytes and needs 32" in err or "key 'mine' is not in base64" in err
    assert GOOD[:-4] not in err


async def test_what_is_sealed_bears_the_marks_of_temporals_samples() -> None:
    """Encoding, id of the key, nonce before the sealed payload: so that codec servers of others understand it."""
    sealed, again = await EncryptionCodec(read_keys(ring(f"k1:{GOOD}"))).encode([PLAIN, PLAIN])

    assert dict(sealed.metadata) == {"encoding": ENCODING, KEY_ID: b"k1"}
    assert b"secret" not in sealed.data
    assert len(sealed.data) == 12 + len(PLAIN.SerializeToString()) + 16
    assert sealed.data[:12] != again.data[:12]


async def test_the_first_key_seals_and_all_of_them_open() -> None:
    """A ring that was turned opens what it has sealed before; what is plain passes."""
    before, after = (
        EncryptionCodec(read_keys(ring(*keys))) for keys in ([f"old:{GOOD}"], [f"new:{OTHER}", f"old:{GOOD}"])
    )
    old, new = *await before.encode([PLAIN]), *await after.encode([PLAIN])

    assert new.metadata[KEY_ID] == b"new"
    assert await after.decode([old, new, PLAIN]) == [PLAIN, PLAIN, PLAIN]
    with pytest.raises(PayloadKeyMissing, match="lacks key 'new'"):
        await before.decode([new])


@pytest.mark.parametrize("damage", ["another key", "a changed byte", "cut off", "empty"])
async def test_what_does_not_open_is_told(damage: str) -> None:
    """Changed data is never taken for what was written."""
    (sealed,) = await EncryptionCodec(read_keys(ring(f"k:{GOOD}"))).encode([PLAIN])
    changed = {
        "another key": sealed.data,
        "a changed byte": sealed.data[:-1] + bytes([sealed.data[-1] ^ 1]),
        "cut off": sealed.data[:20],
        "empty": b"",
    }
    keys = ring(f"k:{OTHER if damage == 'another key' else GOOD}")

    with pytest.raises(PayloadKeyMissing, match="key 'k' does not open what bears its id"):
        await EncryptionCodec(read_keys(keys)).decode([Payload(metadata=sealed.metadata, data=changed[damage])])


async def test_without_keys_nothing_changes_but_what_is_sealed_is_refused() -> None:
    """A process without keys writes what it always wrote, and takes nothing sealed for data."""
    plain = build_converter(Settings())
    sealing = build_converter(ring(f"k:{GOOD}"))

    assert await plain.encode(["a secret"]) == [PLAIN]
    with pytest.raises(PayloadKeyMissing, match="lacks key 'k'"):
        await plain.decode(await sealing.encode(["a secret"]))


def test_keys_are_never_shown() -> None:
    """Neither by the settings' own text nor by what is made of them."""
    settings = ring(f"k:{GOOD}")

    assert GOOD not in f"{settings!r} {build_converter(settings)!r}"
