"""Presentation: what all HTML pages and figures share."""
