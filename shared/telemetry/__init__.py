"""Logs, metrics and spans; `sdk` alone touches OpenTelemetry's SDK."""
