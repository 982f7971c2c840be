"""Certificates for brokers on loopback, and the listener that asks for one's trust and a password."""

import asyncio
from pathlib import Path

PASSWORD = 'with "quotes", \\ and ü'  # noqa: S105 — of a broker that lives as long as its tests
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


async def make_certificate(folder: Path, name: str) -> None:
    """Make NAME.pem and NAME.key, valid for a broker at 127.0.0.1, and NAME.both with both of them."""
    key = folder / f"{name}.key"
    certificate = folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    _, said = await process.communicate()
    assert process.returncode == 0, said
    (folder / f"{name}.both").write_text(key.read_text() + certificate.read_text())


def login_module() -> str:
    """Give the one that lets alice in with the password, as a broker's properties write it."""
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    return f'{PLAIN_LOGIN} required user_alice="{quoted}";'


def secure(port: int, keystore: Path) -> dict[str, str]:
    """Give the properties of a listener with TLS and passwords."""
    return {
        "listeners": f"SECURE://127.0.0.1:{port}",
        "listener.security.protocol.map": "SECURE:SASL_SSL",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": login_module(),
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(keystore),
    }
