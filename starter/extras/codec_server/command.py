"""The command `codec-server`."""

import contextlib
import signal

from click import option

from shared.exit import FINE, find_stop_signals
from shared.settings import Settings, find_secret
from starter.cli.arguments import PORT, Arguments
from starter.cli.program import program
from starter.local.terminal import echo_err

DEFAULT_PORT = 8234

HELP = """\
Expands what is compressed, and decrypts with the keys (encryption_keys or encryption_keys_file). Who asks gives a token
(codec_token or codec_token_file) as a bearer token or as the first part of the path. Pages may ask from the origins in
codec_origins alone."""


@program.command("codec-server", epilog=HELP, prints_data=False)
@option("--port", **PORT, default=DEFAULT_PORT, help=f"where to listen ({DEFAULT_PORT}); 0: a free one")
@option("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")
def run(args: Arguments, settings: Settings) -> int:
    """Decrypt and expand for the Web UI and Temporal's CLI until Ctrl-C."""
    from shared.temporal.encryption import EncryptionCodec, read_keys
    from starter.extras.codec_server.codec_server import AccessPolicy, make_codec_server

    keys = read_keys(settings)
    policy = AccessPolicy(find_secret(settings, "codec_token"), settings.codec_origins)
    with (
        contextlib.suppress(KeyboardInterrupt),
        make_codec_server((args.host, args.port), EncryptionCodec(keys), policy) as server,
    ):
        for number in find_stop_signals():
            signal.signal(number, signal.default_int_handler)
        address = f"http://{args.host}:{server.server_address[1]}"
        echo_err(f"codec server at {address}, for pages of {', '.join(policy.origins)}")
        if not keys:
            echo_err("encryption_keys: none is set; it expands what is compressed, and decrypts nothing")
        server.serve_forever()
    return FINE
