"""A streaming job as people write one: records of a topic become messages, from where the checkpoint says."""

import json
import sys
from typing import Any

from shared.settings import Settings
from spark.format.data_source import register_temporal
from spark.session.session import build_session

COLUMNS = ("'echo' kind", "cast(key as string) id", "'short' lane", "cast(value as string) payload")


def main(order: dict[str, Any]) -> None:
    """Start what is in the topic by now, and end."""
    session = build_session(Settings(), master="local[2,4]", conf={"spark.driver.memory": "1g"})
    register_temporal(session)
    records = session.readStream.format("topic").options(**order["source"]).load()
    writing = records.selectExpr(*COLUMNS).writeStream.format("temporal").options(**order["options"])
    query = writing.option("checkpointLocation", order["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
