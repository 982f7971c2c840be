"""The command `codec-server`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import signal
import threading

from shared.errors import InvalidSetting
from shared.settings import Settings, find_secret
from shared.stop_signals import find_stop_signals
from starter.cli import arguments
from starter.cli.arguments import Commands
from starter.cli.exit_codes import FINE
from starter.screen import echo_err

DEFAULT_PORT = 8234

HELP = """\
Needs the keys (encryption_keys or encryption_keys_file) and a token (codec_token or codec_token_file), which who \
asks gives as
a bearer token or as the first part of the path. Pages may ask from the origins in codec_origins alone."""


def add_codec_server(commands: Commands) -> None:
    """Add `codec-server`."""
    parser = commands.add(
        "codec-server", run_codec_server, "decrypt for the Web UI and Temporal's CLI until Ctrl-C", prints_data=False
    )
    parser.epilog = HELP
    add = parser.add_argument
    add("--port", type=arguments.port, default=DEFAULT_PORT, help=f"where to listen ({DEFAULT_PORT}); 0: a free one")
    add("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")


def run_codec_server(args: argparse.Namespace, settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM."""
    from shared.temporal.encryption import EncryptionCodec, read_keys
    from starter.local.codec_server import AccessPolicy, make_codec_server

    keys = read_keys(settings)
    if not keys:
        raise InvalidSetting("encryption_keys: none is set, so there is nothing to decrypt; set encryption_keys_file")
    policy = AccessPolicy(find_secret(settings, "codec_token"), settings.codec_origins)
    with make_codec_server((args.host, args.port), EncryptionCodec(keys), policy) as server:

        def end(_number: int, _frame: object) -> None:
            # in a thread, because shutdown waits for the loop that this handler interrupts
            threading.Thread(target=server.shutdown).start()

        for number in find_stop_signals():
            signal.signal(number, end)
        echo_err(
            f"codec server at http://{args.host}:{server.server_address[1]}, for pages of {', '.join(policy.origins)}"
        )
        server.serve_forever()
    return FINE
