"""The demonstration's Spark job: does what `dormice spark prepare` and `dormice spark start` do, in one session."""

import os
import sys
from pathlib import Path

from activities.registry import envelope_rules, load_registry
from shared.errors import RetryLater
from shared.settings import load_settings
from spark.prepare.prepare import PrepareOptions, prepare
from spark.session.faults import told_of_spark
from spark.session.session import build_session
from spark.source.source import Source
from spark.start import start_manifest


def main(rows: str, manifest: str) -> None:
    """Make a manifest of a file of envelopes, and start all its messages."""
    settings = load_settings({}, os.environ)
    options = PrepareOptions(rules=envelope_rules(settings, load_registry(settings)))
    session = build_session(settings)
    with told_of_spark():
        prepared = prepare(session, Source(place=rows, form="jsonl"), Path(manifest), options)
        summary = start_manifest(session, prepared, settings, os.environ)
    session.stop()
    if not summary.is_clean:
        raise RetryLater(f"not every message was started: {summary.in_all.describe()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
