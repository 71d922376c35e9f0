"""Foils of a user's own captions: benchmark items of held-out rows, by kind of change."""
