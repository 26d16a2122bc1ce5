"""Limits by plan: reading, comparing, applying, watching."""
