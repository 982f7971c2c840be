"""The commands `dormice spark …`; the command line finds this module by its entry point."""

from spark.cli import prepare, reconcile, report, start

__all__ = ["prepare", "reconcile", "report", "start"]
