"""Forecasts of due messages, plans of what they need, and the doctor's checks."""
