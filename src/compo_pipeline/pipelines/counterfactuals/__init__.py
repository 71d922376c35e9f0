"""Counterfactuals: edits of captions, and the pictures made for them, as a table and a folder."""
