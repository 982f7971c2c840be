"""Tests by cost: fundamentals (the tutorial), unit, integration, acceptance, replay; `support` is what they share."""
