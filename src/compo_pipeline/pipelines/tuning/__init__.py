"""Tuning: a search over a method's settings, and the confirmation of its best values."""
