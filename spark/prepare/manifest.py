"""The manifest: a folder with the messages of one bulk start, the rejected rows, and a description of both."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import GiveUp
from spark.tables import RECEIPTS_DDL, count_values, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA_VERSION = 1
DESCRIPTION = "manifest.json"

MESSAGES_DDL = (
    "row long, kind string, id string, scheduled_at timestamp, tolerance_seconds double, priority int, tenant string, "
    "payload string, correlation_id string, idempotency_key string, expires_at timestamp, lane string"
)
"""Columns of `messages/`, which is partitioned into folders by `lane`."""

REJECTS_DDL = "row long, field string, flaw string, reason string, original string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of one bulk start: its folder, its source, and how many of its rows became what."""

    folder: Path
    id: str  # of this one start
    created_at: str
    source: str
    source_digest: str
    content_digest: str  # the same for the same messages, however they were prepared
    rows: int
    messages: int
    duplicates: int
    rejects: int
    options: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read the description of a manifest; raises GiveUp with a sentence for a folder that holds none."""
        path = folder / DESCRIPTION
        try:
            found = json.loads(path.read_text("utf-8"))
            version = found.pop("schema_version")
            if version != SCHEMA_VERSION:
                raise GiveUp(f"{path}: has schema_version {version}; this version of dormice reads {SCHEMA_VERSION}")
            return cls(folder=folder.resolve(), **found)
        except OSError as exc:
            raise GiveUp(
                f"{folder}: is no manifest ({DESCRIPTION}: {exc.strerror}); make one with 'dormice spark prepare'"
            ) from exc
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise GiveUp(f"{path}: can't be read ({exc}); prepare the manifest anew") from exc

    def describe(self) -> dict[str, Any]:
        """Give the content of manifest.json."""
        described = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {"schema_version": SCHEMA_VERSION, **described}

    def read_messages(self, spark: "SparkSession") -> "DataFrame":
        """Give the messages, in the columns of MESSAGES_DDL."""
        return read_table(spark, self.folder / "messages", MESSAGES_DDL)

    def count_kinds(self) -> dict[str, int]:
        """Give the kinds of the messages, in order, and how many each has; without a job of Spark."""
        return dict(sorted(count_values(self.folder / "messages", "kind").items()))

    def read_rejects(self, spark: "SparkSession") -> "DataFrame":
        """Give the rows that can't become messages, in the columns of REJECTS_DDL."""
        return read_table(spark, self.folder / "rejects", REJECTS_DDL)

    def read_receipts(self, spark: "SparkSession") -> "DataFrame":
        """Give the receipts of all starts so far, in the columns of RECEIPTS_DDL."""
        return read_table(spark, self.folder / "receipts", RECEIPTS_DDL)

    def read_last_receipts(self, spark: "SparkSession") -> "DataFrame":
        """Give kind and id of each message that has receipts, and as `receipt` the outcome and run_id of one."""
        # a later run may have started what was rejected, so any other outcome goes before `rejected`
        receipt = "struct(outcome <> 'rejected' accepted, outcome, run_id) receipt"
        found = self.read_receipts(spark).selectExpr("kind", "id", receipt)
        return found.groupBy("kind", "id").agg({"receipt": "max"}).toDF("kind", "id", "receipt")
