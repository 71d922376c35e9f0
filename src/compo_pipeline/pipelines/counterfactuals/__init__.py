"""Counterfactuals: edits of captions, and images of them, as a table and a folder."""
