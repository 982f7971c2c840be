"""Tests by cost: fundamentals (the tutorial), unit, integration, acceptance, replay."""
