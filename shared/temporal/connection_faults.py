"""Connection failures: turns the SDK's text into the sentence that says what to change."""

import re
import socket
import ssl
import tempfile

from temporalio.service import TLSConfig

from shared.errors import Misconfigured, ServerUnreachable

PROBE_SECONDS = 3.0
WEB_UI_PORTS = ("8233", "8080")  # usual ports of Temporal's Web UI: beside its development server and in its image

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(?P<port>[0-9]{1,5})")
_EXAMPLE = "write for example localhost:7233"
_CERTIFICATE = "TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
_LASTING = {
    # text of the SDK's core → what is wrong on the server's side, and what to do
    "InvalidCertificate(UnknownIssuer": (
        "shows a certificate of no CA that is trusted; set TEMPORAL_TLS_SERVER_CA_CERT_PATH to its CA"
    ),
    "InvalidCertificate(NotValidForName": (
        "shows a certificate for another host; give a host of it in TEMPORAL_ADDRESS or TEMPORAL_TLS_SERVER_NAME"
    ),
    "InvalidCertificate(Expired": "shows a certificate that has expired; renew it there",
    "InvalidCertificate(": (
        "shows a certificate that can't be accepted; correct it there, or TEMPORAL_TLS_SERVER_CA_CERT_PATH here"
    ),
    "InvalidMessage(InvalidContentType)": (
        "does not speak TLS; leave TEMPORAL_TLS… and TEMPORAL_API_KEY, which means TLS too, out"
    ),
    "InconsistentKeys": f"was not asked, because the key is not that of the client certificate; correct {_CERTIFICATE}",
    "Must have both client cert and private key": (
        f"was not asked, because a client certificate needs its key; set both {_CERTIFICATE}"
    ),
    "code: Unauthenticated": "refuses this client; correct TEMPORAL_API_KEY or the client certificate",
    "code: PermissionDenied": "refuses this client; correct TEMPORAL_API_KEY or the client certificate",
}
_PASSING = {
    # the same for failures that may pass by themselves; the first match wins
    "ConnectionRefused": "nothing listens there",
    "dns error": "the name of its host is not known",
    "NetworkUnreachable": "its network can't be reached",
    "HostUnreachable": "its host can't be reached",
    **dict.fromkeys(("timed out", "TimedOut", "DeadlineExceeded"), "it did not answer in time"),
    "code: Unavailable": "it is not available",
    "after connection": "it hung up",
}
_NOT_GRPC = ("code: Unimplemented", "HTTP/2 was not negotiated")
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")


def check_address(address: str) -> None:
    """Raise Misconfigured unless it is HOST:PORT, with a port from 1 to 65535 and an IPv6 address in brackets."""
    found = _ADDRESS.fullmatch(address)
    if found is not None and 1 <= int(found["port"]) <= 65535:
        return

    wrong = f"{address!r}, which is no HOST:PORT with a port from 1 to 65535"
    remedy = _EXAMPLE

    if not address:
        wrong = "empty"
        remedy = f"{_EXAMPLE}, or leave it out, which means the same"
    elif "[" not in address and address.count(":") > 1 and "/" not in address:
        remedy = "write an IPv6 address in brackets before its port, for example [::1]:7233"

    raise Misconfigured(f"TEMPORAL_ADDRESS: is {wrong}; {remedy}")


def explain_failure(address: str, said: str, *, tls: TLSConfig | bool | None) -> Misconfigured | ServerUnreachable:
    """Give what a person must change, or ServerUnreachable where the failure may pass by itself."""
    for mark, wrong in _LASTING.items():
        if mark in said:
            return Misconfigured(f"the server at {address} {wrong}")

    if any(mark in said for mark in _NOT_GRPC):
        return _no_temporal(address)

    # this text does not say why the server hung up, so it is contacted again, for at most twice PROBE_SECONDS
    if "after connection" in said or "AlertReceived" in said:
        config = tls if isinstance(tls, TLSConfig) else TLSConfig()
        alert = _find_alert(address, config)
        if alert is None and _answers_http(address):
            return _no_temporal(address)
        if alert is not None and (fault := _explain_alert(address, alert, config, is_tls_set=bool(tls))):
            return fault

    why = next((words for mark, words in _PASSING.items() if mark in said), "the connection failed")
    return ServerUnreachable(
        f"no Temporal server answers at {address} ({why}); start one with 'dormice dev' or set TEMPORAL_ADDRESS"
    )


def _no_temporal(address: str) -> Misconfigured:
    port = address.rpartition(":")[2]
    hint = f"{port} is usually the port of its Web UI: " if port in WEB_UI_PORTS else ""
    return Misconfigured(
        f"what answers at {address} is no Temporal server, which speaks gRPC; {hint}set TEMPORAL_ADDRESS to the "
        "server's own port, usually 7233"
    )


def _explain_alert(address: str, alert: str, config: TLSConfig, *, is_tls_set: bool) -> Misconfigured | None:
    server = f"the server at {address}"
    if not is_tls_set:
        return Misconfigured(f"{server} wants TLS; set TEMPORAL_TLS=true, and its CA where it has its own")
    if not any(word in alert for word in _REFUSALS):
        return None
    if config.client_cert is None:
        return Misconfigured(f"{server} wants a client certificate, and none is set; set {_CERTIFICATE}")
    return Misconfigured(f"{server} refuses the client certificate ({alert.lower()}); correct {_CERTIFICATE}")


def _find_alert(address: str, config: TLSConfig) -> str | None:
    """Give the server's TLS alert about our client certificate; empty if it accepts it, None if it speaks no TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is sent here; the real connection checks the name
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    try:
        _show_certificate(context, config)
        with (
            socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=config.domain or host) as channel,
        ):
            try:
                channel.recv(1)  # with TLS 1.3 a refused certificate shows only at the first read
            except TimeoutError:
                return ""
    except ssl.SSLError as exc:
        reason = exc.reason or ""
        return reason if "ALERT" in reason else None  # an alert proves TLS; any server may cause other errors
    except (OSError, ValueError):
        return None

    return ""


def _answers_http(address: str) -> bool:
    """Return whether an HTTP/1 server answers there; a gRPC server's answer begins otherwise."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS) as plain:
            plain.sendall(f"HEAD / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            return plain.recv(5) == b"HTTP/"
    except OSError:
        return False


def _show_certificate(context: ssl.SSLContext, config: TLSConfig) -> None:
    """Load the client certificate; the standard library reads certificates only from files."""
    if config.client_cert is None or config.client_private_key is None:
        return
    with tempfile.NamedTemporaryFile() as file:  # nobody else may read it, and it is deleted with the block
        file.write(config.client_cert + b"\n" + config.client_private_key)
        file.flush()
        context.load_cert_chain(file.name)
