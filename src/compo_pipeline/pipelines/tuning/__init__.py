"""Tuning: a search over a method's settings, and what its best values are worth."""
