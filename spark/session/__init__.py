"""Spark itself: its session, its Java, its faults."""
