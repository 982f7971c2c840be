"""What the tests of kafka-message-scheduler need to run against dormice: its runner replaced, and a kind of handler."""

import os
from dataclasses import replace
from datetime import timedelta

from activities.handlers.topic import topic
from shared.messages.encoding import Pack

KIND_VARIABLE = "RUNNER_KIND"
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))

if kind := os.environ.get(KIND_VARIABLE):
    # each run of a test has a kind of its own, because all of them use the same keys
    record = replace(topic, kind=kind, encoding=PACK) if kind.endswith("pack") else replace(topic, kind=kind)
