"""Counterfactuals: edits of captions, and the images made for them, as a table and a folder."""
