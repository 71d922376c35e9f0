"""Kedro pipelines that make the shipped models."""
