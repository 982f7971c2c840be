"""Encryption: payloads leave this process encrypted, and only holders of the key can read them."""

# ruff: noqa: PLC0415 — an extra, imported where a key is set

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
)

from shared.errors import InvalidSetting, PayloadKeyMissing, check_extra
from shared.settings import Settings, find_secret
from shared.temporal.converter import DATA_CONVERTER, ENCODING, UNOPENED

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_ID = "encryption-key-id"
KEY_BYTES = 32
NONCE_BYTES = 12
SETTING = "encryption_keys"

_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")
_FORM = "write ID:KEY, the key 32 random bytes in base64, as 'openssl rand -base64 32' gives them"


def read_keys(settings: Settings) -> dict[str, bytes]:
    """Give the keys of the settings by id, in their order: the first one encrypts, all decrypt; none means off.

    Commas or line ends separate keys; lines that begin with # are comments. Raises InvalidSetting, which shows no key.
    """
    keys: dict[str, bytes] = {}
    source = f"{SETTING}_file" if settings.encryption_keys_file else SETTING
    lines = find_secret(settings, SETTING).splitlines()

    given = [part.strip() for line in lines if not line.lstrip().startswith("#") for part in line.split(",")]
    if lines and not any(given):
        raise InvalidSetting(f"{source}: has no key; {_FORM}")

    for number, text in enumerate(filter(None, given), 1):
        key_id, _, encoded = text.partition(":")
        if not encoded or not _ID.fullmatch(key_id):
            raise InvalidSetting(
                f"{source}: key {number} has no id of at most 32 letters, digits, '.', '_' and '-'; {_FORM}"
            )

        if key_id in keys:
            raise InvalidSetting(f"{source}: two keys have the id {key_id!r}; give each an id of its own")

        try:
            keys[key_id] = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            # from None: the cause contains the key's text
            raise InvalidSetting(f"{source}: key {key_id!r} is not in base64; {_FORM}") from None

        if (size := len(keys[key_id])) != KEY_BYTES:
            raise InvalidSetting(f"{source}: key {key_id!r} has {size} bytes and needs {KEY_BYTES}; {_FORM}")

    return keys


def write_keys(keys: Mapping[str, bytes]) -> str:
    """Give keys as text that `read_keys` reads back, for a process of our own elsewhere."""
    return ",".join(f"{key_id}:{base64.b64encode(key).decode()}" for key_id, key in keys.items())


def build_converter(settings: Settings) -> DataConverter:
    """Give every client's converter, which encrypts if there are keys; raises as `read_keys` and `EncryptionCodec`."""
    keys = read_keys(settings)
    sealed = replace(DATA_CONVERTER, payload_codec=EncryptionCodec(keys))
    return replace(sealed, failure_converter_class=DefaultFailureConverterWithEncodedAttributes) if keys else sealed


def build_worker_converter(converter: DataConverter) -> DataConverter:
    """Give a worker's converter, made from its client's: workflows get payloads of unknown keys as they came."""
    codec = converter.payload_codec
    return replace(converter, payload_codec=WorkerCodec(codec)) if isinstance(codec, EncryptionCodec) else converter


class EncryptionCodec(PayloadCodec):
    """Encrypts with AES-256-GCM and a random nonce, without keys nothing; decrypts with any of its keys.

    Plain payloads pass. Raises Misconfigured when there are keys, and the package that encrypts is missing.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = _make_ciphers(keys)
        self._first = next(iter(keys), None)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt with the first key."""
        return list(payloads) if self._first is None else [self._seal(payload, self._first) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt encrypted payloads; raises PayloadKeyMissing."""
        return [self.open(payload) for payload in payloads]

    def _seal(self, payload: Payload, key_id: str) -> Payload:
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[key_id].encrypt(nonce, payload.SerializeToString(), None)
        metadata = {"encoding": ENCODING, KEY_ID: key_id.encode()}
        return Payload(metadata=metadata, data=nonce + sealed)

    def open(self, payload: Payload) -> Payload:
        """Decrypt one payload if it is encrypted; raises PayloadKeyMissing."""
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        key_id = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadKeyMissing(
                f"{SETTING}: this process lacks key {key_id[:64]!r}, by which what it reads is encrypted; add that key"
            )
        from cryptography.exceptions import InvalidTag

        try:
            return Payload.FromString(cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], None))
        except (InvalidTag, DecodeError, ValueError) as exc:
            raise PayloadKeyMissing(
                f"{SETTING}: key {key_id!r} does not open what bears its id: it is another key, "
                "or the data was changed; give the key that encrypted it"
            ) from exc


class WorkerCodec(PayloadCodec, WithSerializationContext):
    """The codec of a worker: activities refuse what can't be decrypted, workflows get it together with the reason.

    A workflow whose task fails because of one signal would stop with all its messages: it decides about such a signal
    in `workflows.guards.sealed_signals`. Everything else that can't be decrypted fails where it is converted.
    """

    def __init__(self, strict: EncryptionCodec) -> None:
        self._strict = strict

    def with_context(self, context: SerializationContext) -> PayloadCodec:  # pyright: ignore[reportIncompatibleMethodOverride] — another codec is what activities need
        """Give the codec for a workflow or for an activity."""
        return self._strict if isinstance(context, ActivitySerializationContext) else self

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt with the first key."""
        return await self._strict.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt encrypted payloads, or add the reason why that failed."""
        return list(map(self._open_or_mark, payloads))

    def _open_or_mark(self, payload: Payload) -> Payload:
        try:
            return self._strict.open(payload)
        except PayloadKeyMissing as exc:
            return Payload(metadata={**payload.metadata, UNOPENED: str(exc).encode()}, data=payload.data)


def _make_ciphers(keys: Mapping[str, bytes]) -> "dict[str, AESGCM]":
    if not keys:
        return {}
    check_extra("encryption", SETTING, "cryptography")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return {key_id: AESGCM(key) for key_id, key in keys.items()}
