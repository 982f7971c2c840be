"""The signature of a webhook's request, and the keys that it is made with."""

import hashlib
import hmac
from functools import lru_cache
from pathlib import Path

from shared.errors import InvalidSetting
from shared.settings import Settings, read_secret

SETTING = "webhook_key_file"
KEYS_MAX = 2  # the present key, and while it is replaced the other one
KEY_MIN_CHARACTERS = 16
SIGNATURE_HEADER = "Dormice-Signature"


def sign(body: bytes, timestamp: int, keys: tuple[bytes, ...]) -> str:
    """Give the signature header: HMAC-SHA256 of "TIMESTAMP.BODY" with each key, as hexadecimal digits."""
    signed = b"%d.%b" % (timestamp, body)
    return ",".join([f"t={timestamp}", *(f"v1={hmac.digest(key, signed, hashlib.sha256).hex()}" for key in keys)])


def read_signing_keys(settings: Settings) -> tuple[bytes, ...]:
    """Give the keys, read again whenever their file has changed; none without the setting. Raises InvalidSetting."""
    if not settings.webhook_key_file:
        return ()
    path = Path(settings.webhook_key_file)
    try:
        found = path.stat()
    except OSError as exc:
        raise InvalidSetting(f"{SETTING}: {path} can't be read ({exc.strerror}); correct the path") from exc
    return _read_keys(path, (found.st_mtime_ns, found.st_ino, found.st_size))


@lru_cache(maxsize=4)
def _read_keys(path: Path, _stamp: tuple[int, ...]) -> tuple[bytes, ...]:
    lines = [line.strip() for line in read_secret(SETTING, path).splitlines()]
    keys = [line.encode() for line in lines if line and not line.startswith("#")]
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidSetting(f"{SETTING}: {path} holds {len(keys)} keys; write one a line, at most {KEYS_MAX}")
    if any(len(key) < KEY_MIN_CHARACTERS for key in keys):
        raise InvalidSetting(
            f"{SETTING}: {path} holds a key of less than {KEY_MIN_CHARACTERS} characters; "
            "make one with 'openssl rand -hex 32'"
        )

    return tuple(keys)
