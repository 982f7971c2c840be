"""The command `worker`."""

from shared.settings import Settings
from starter.cli.arguments import Arguments
from starter.cli.program import program
from worker.options import worker_options


@program.command("worker", prints_data=False)
@worker_options
def run(args: Arguments, settings: Settings) -> int:
    """Run handlers until SIGTERM or Ctrl-C, then drain."""
    from shared.telemetry.logs import set_up_logs
    from worker.main import read_options
    from worker.processes import serve

    options = read_options(args, settings)
    set_up_logs(settings)
    return serve(options)
