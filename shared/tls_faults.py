"""Faults of TLS and login: what a connection to Temporal failed for, as the sentence that says what to set."""

import socket
import ssl
import tempfile

from temporalio.service import TLSConfig

from shared.errors import Misconfigured

PROBE_SECONDS = 3.0

_CERTIFICATE = "TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
_TOLD = {
    # what the SDK's core says, in its own words → what is wrong with the server's side, and what to do
    "InvalidCertificate(UnknownIssuer": "shows a certificate of no CA that is trusted; set TEMPORAL_TLS_SERVER_CA_CERT_PATH to its CA",
    "InvalidCertificate(NotValidForName": "shows a certificate for another host; give a host of it in TEMPORAL_ADDRESS or TEMPORAL_TLS_SERVER_NAME",
    "InvalidCertificate(Expired": "shows a certificate that has expired; renew it there",
    "InvalidCertificate(": "shows a certificate that can't be accepted; correct it there, or TEMPORAL_TLS_SERVER_CA_CERT_PATH here",
    "InvalidMessage(InvalidContentType)": "does not speak TLS; leave TEMPORAL_TLS… and TEMPORAL_API_KEY, which means TLS too, out",
    "InconsistentKeys": f"was not asked, because the key is not that of the client certificate; correct {_CERTIFICATE}",
    "Must have both client cert and private key": f"was not asked, because a client certificate needs its key; set both {_CERTIFICATE}",
    "code: Unauthenticated": "refuses this client; correct TEMPORAL_API_KEY or the client certificate",
    "code: PermissionDenied": "refuses this client; correct TEMPORAL_API_KEY or the client certificate",
}
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")


def explain_tls(address: str, said: str, *, tls: TLSConfig | bool | None) -> Misconfigured | None:
    """Give what a person must set, None where the failure may pass by itself.

    `said` is the text of the SDK's failure. It does not tell why a server has hung up on us, so then the server is asked
    once more, which takes `PROBE_SECONDS` at most.
    """
    for mark, wrong in _TOLD.items():
        if mark in said:
            return Misconfigured(f"the server at {address} {wrong}")
    if "after connection" not in said and "AlertReceived" not in said:
        return None
    config = tls if isinstance(tls, TLSConfig) else TLSConfig()
    alert = _find_alert(address, config)
    if alert is None:
        return None
    if not tls:
        return Misconfigured(
            f"the server at {address} wants TLS; set TEMPORAL_TLS=true, and its CA where it has its own"
        )
    if not any(word in alert for word in _REFUSALS):
        return None
    if config.client_cert is None:
        return Misconfigured(f"the server at {address} wants a client certificate, and none is set; set {_CERTIFICATE}")
    return Misconfigured(
        f"the server at {address} refuses the client certificate ({alert.lower()}); correct {_CERTIFICATE}"
    )


def _find_alert(address: str, config: TLSConfig) -> str | None:
    """Give what the server says to our client certificate; empty where it is content, None where it speaks no TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is sent: the connection that counts has checked, or will
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _show_certificate(context, config)
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=config.domain or host) as channel:
                    channel.recv(1)  # TLS 1.3 tells only then what it thinks of a certificate
            except ssl.SSLError as exc:
                return (
                    None if exc.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING") else exc.reason or ""
                )
            except TimeoutError:
                return ""
    except (OSError, ValueError):
        return None
    return ""


def _show_certificate(context: ssl.SSLContext, config: TLSConfig) -> None:
    """Load the client certificate, which the standard library does from files alone."""
    if config.client_cert is None or config.client_private_key is None:
        return
    with tempfile.NamedTemporaryFile() as file:  # nobody else may read it, and it is gone with the block
        file.write(config.client_cert + b"\n" + config.client_private_key)
        file.flush()
        context.load_cert_chain(file.name)
