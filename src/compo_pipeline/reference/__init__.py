"""The reference of parameters: every key of conf/base with default, type and meaning."""
