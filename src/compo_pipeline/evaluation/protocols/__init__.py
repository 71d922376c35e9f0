"""Protocols: pure functions of similarities; they know no file format and no model."""
