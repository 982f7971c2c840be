"""Kafka security: a client's login and TLS options, from the settings and checked as a whole."""

import asyncio
import importlib
import importlib.util
import ssl
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from shared.errors import InvalidSetting, Misconfigured
from shared.settings import Settings, find_secret, read_secret

WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

LOGIN_SETTINGS = {
    "kafka_username": WITH_PASSWORD,
    "kafka_password": WITH_PASSWORD,
    "kafka_password_file": WITH_PASSWORD,
    "kafka_token_file": ("OAUTHBEARER",),
    "kafka_token_extensions": ("OAUTHBEARER",),
    "kafka_kerberos_service_name": ("GSSAPI",),
    "kafka_kerberos_domain_name": ("GSSAPI",),
}
"""The mechanisms that use a setting; with any other one the setting would have no effect."""

TLS_SETTINGS = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file", "kafka_key_password_file")


class TokenUnreadable(OSError):
    """The token's file has no token at the moment of a login; an OSError, because aiokafka retries after those."""


class TokenFile:
    """Gives aiokafka the token of OAUTHBEARER, read from its file at each login, so that a renewed one is used."""

    def __init__(self, path: Path, extensions: Mapping[str, str]) -> None:
        self._path = path
        self._extensions = dict(extensions)

    async def token(self) -> str:
        """Give the token that the file has now; raises TokenUnreadable."""
        try:
            return await asyncio.to_thread(read_secret, "kafka_token_file", self._path)
        except InvalidSetting as exc:
            raise TokenUnreadable(str(exc)) from exc

    def extensions(self) -> dict[str, str]:
        """Give the SASL extensions that are sent beside the token."""
        return self._extensions


def security_options(settings: Settings) -> dict[str, Any]:
    """Give aiokafka's arguments for TLS and login; raises InvalidSetting for settings that don't go together."""
    _refuse_unused(settings)
    options: dict[str, Any] = {"security_protocol": settings.kafka_security_protocol}
    if _has_tls(settings):
        options["ssl_context"] = _tls_context(settings)
    if mechanism := _mechanism(settings):
        options |= {"sasl_mechanism": mechanism, **_login_options(settings, mechanism)}
    return options


def _has_tls(settings: Settings) -> bool:
    return settings.kafka_security_protocol in ("SSL", "SASL_SSL")


def _mechanism(settings: Settings) -> str | None:
    return settings.kafka_sasl_mechanism if settings.kafka_security_protocol.startswith("SASL_") else None


def _refuse_unused(settings: Settings) -> None:
    """Refuse settings without effect: with an unused login the client is not who its owner thinks."""
    protocol = settings.kafka_security_protocol
    mechanism = _mechanism(settings)

    given = {f.name for f in fields(Settings) if getattr(settings, f.name) != f.default}
    for name in filter(given.__contains__, (*TLS_SETTINGS, "kafka_sasl_mechanism", *LOGIN_SETTINGS)):
        users = LOGIN_SETTINGS.get(name, ())
        if name in TLS_SETTINGS and not _has_tls(settings):
            flaw = f"is set, but {protocol} has no TLS; set kafka_security_protocol to SSL or SASL_SSL"
        elif name not in TLS_SETTINGS and mechanism is None:
            flaw = f"is set, but {protocol} has no login; set kafka_security_protocol to SASL_SSL"
        elif users and mechanism not in users:
            flaw = f"is not used by {mechanism}; set kafka_sasl_mechanism to {' or '.join(users)}"
        else:
            continue
        raise InvalidSetting(f"{name}: {flaw}, or leave {name} out")


def _login_options(settings: Settings, mechanism: str) -> dict[str, Any]:
    if mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise Misconfigured("kafka_sasl_mechanism: GSSAPI needs the package gssapi, which is missing; install it")
        return {
            "sasl_kerberos_service_name": settings.kafka_kerberos_service_name,
            "sasl_kerberos_domain_name": settings.kafka_kerberos_domain_name or None,
        }

    if mechanism == "OAUTHBEARER":
        return {"sasl_oauth_token_provider": _token_provider(settings)}
    if not settings.kafka_username:
        raise InvalidSetting(f"kafka_username: is missing, {mechanism} needs it; set it and a password")

    if not (password := find_secret(settings, "kafka_password")):
        raise InvalidSetting(
            f"kafka_password: is missing, {mechanism} needs it; set DORMICE_KAFKA_PASSWORD or kafka_password_file"
        )

    return {"sasl_plain_username": settings.kafka_username, "sasl_plain_password": password}


def _token_provider(settings: Settings) -> TokenFile:
    if not settings.kafka_token_file:
        raise InvalidSetting("kafka_token_file: is missing, OAUTHBEARER needs it; set the file that has the token")

    path = Path(settings.kafka_token_file)
    read_secret("kafka_token_file", path)
    extensions: dict[str, str] = {}

    for given in settings.kafka_token_extensions:
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise InvalidSetting(f"kafka_token_extensions: {given!r} is no extension; write NAME=VALUE")
        extensions[name] = value

    # aiokafka accepts only its own providers, and it is an extra, so this module does not import it
    importlib.import_module("aiokafka.abc").AbstractTokenProvider.register(TokenFile)
    return TokenFile(path, extensions)


def _tls_context(settings: Settings) -> ssl.SSLContext:
    trusted = settings.kafka_ca_file
    certificate = settings.kafka_certificate_file

    for name in ("kafka_key_file", "kafka_key_password_file"):
        if getattr(settings, name) and not certificate:
            raise InvalidSetting(
                f"{name}: is set without a certificate; set kafka_certificate_file, or leave {name} out"
            )

    context = _trusting_context(trusted)
    if certificate:
        _load_certificate(context, settings)
    return context


def _trusting_context(trusted: str) -> ssl.SSLContext:
    if not trusted or Path(trusted).is_dir():
        return ssl.create_default_context(capath=trusted or None)
    _check_readable("kafka_ca_file", trusted)
    try:
        return ssl.create_default_context(cafile=trusted)
    except ssl.SSLError as exc:
        raise InvalidSetting(
            f"kafka_ca_file: {trusted} has no certificate that can be read; give a file in PEM format"
        ) from exc


def _load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    certificate = settings.kafka_certificate_file
    key = settings.kafka_key_file
    for name, file in (("kafka_certificate_file", certificate), ("kafka_key_file", key)):
        if file:
            _check_readable(name, file)

    is_encrypted = False

    def give_password() -> str:
        """Replace OpenSSL's own prompt, which would wait for a person at a terminal."""
        nonlocal is_encrypted
        is_encrypted = True
        if settings.kafka_key_password_file:
            return read_secret("kafka_key_password_file", Path(settings.kafka_key_password_file))
        raise InvalidSetting(
            f"kafka_key_password_file: is missing, the key in {key or certificate} is encrypted; "
            "set the file of its password"
        )

    try:
        context.load_cert_chain(certificate, key or None, give_password)
    except ssl.SSLError as exc:
        raise InvalidSetting(_explain_pair(exc, certificate, key, is_encrypted=is_encrypted)) from exc


def _explain_pair(exc: ssl.SSLError, certificate: str, key: str, *, is_encrypted: bool) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH":
        return (
            f"kafka_key_file: the key in {key or certificate} is not that of the certificate in {certificate}; "
            "give its own"
        )

    if is_encrypted:
        return f"kafka_key_password_file: the key in {key or certificate} does not open with this password; correct it"
    if key:
        return f"kafka_key_file: {certificate} and {key} are no certificate with its key; give files in PEM format"

    return (
        f"kafka_certificate_file: {certificate} is no certificate with its key, in PEM format; set kafka_key_file too"
    )


def _check_readable(name: str, path: str) -> None:
    try:
        Path(path).open("rb").close()
    except OSError as exc:
        raise InvalidSetting(f"{name}: {path} can't be read ({exc.strerror}); correct the path or its rights") from exc
