"""Replicas: the real workflow code of one run, driven by the events of its history."""
