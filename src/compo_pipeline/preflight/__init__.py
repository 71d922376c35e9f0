"""Checks before the first node of a run: settings, inputs, data, models, folders."""
