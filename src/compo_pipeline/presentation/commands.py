"""Command lines that pages show."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import yaml

Scalar = str | int | float | bool | None


def kedro_run(pipeline: str, env: str | None, params: Mapping[str, Scalar]) -> str:
    """The `kedro run` command line.

    Args:
        pipeline: its name.
        env: Kedro's environment; None is its default.
        params: by dotted key.
    """
    words = [f"kedro run --pipeline={pipeline}"]
    if env is not None:
        words.append(f"--env={shlex.quote(env)}")
    if params:
        shown = ",".join(f"{name}={_scalar(value)}" for name, value in params.items())
        words.append(f"--params {shlex.quote(shown)}")
    return " ".join(words)


def _scalar(value: Scalar) -> str:
    """A value as `--params` reads it; a text that could be read as something else is quoted."""
    if isinstance(value, str) and not (value.isidentifier() and yaml.safe_load(value) == value):
        return json.dumps(value)
    return str(yaml.safe_dump(value)).splitlines()[0]
