"""Presentation: the common parts of all HTML pages and figures."""
