"""Commands to type next, and values of `--params`, as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from compo_pipeline.core.settings import leaves, masked


def kedro_run(pipeline: str, env: str | None, params: Mapping[str, Any]) -> str:
    """The `kedro run` command of a pipeline, as the user would type it.

    Args:
        pipeline: name of the pipeline.
        env: Kedro environment. None is Kedro's default.
        params: parameters by dotted key, or nested.
    """
    return f"kedro run --pipeline={pipeline}{options(env, params)}"


def options(env: str | None, params: Mapping[str, Any]) -> str:
    """Command-line options ` --env=... --params ...` as text, with passwords masked.

    Args:
        env: Kedro environment. None is Kedro's default.
        params: parameters by dotted key, or nested.
    """
    command = "" if env is None else f" --env={shlex.quote(env)}"
    if params:
        given = ",".join(
            f"{name}={masked(_quote_value(value), name)}" for name, value in leaves(params)
        )
        command += f" --params {shlex.quote(given)}"
    return command


def arguments(env: str | None, params: Mapping[str, Any]) -> list[str]:
    """Command-line arguments `--env` and `--params` for a subprocess, with passwords unmasked."""
    given = ",".join(f"{name}={_quote_value(value)}" for name, value in leaves(params))
    return [*([] if env is None else [f"--env={env}"]), *([f"--params={given}"] if given else [])]


def quote_unreadable(value: str) -> str:
    """A value of `--params`, quoted if YAML cannot read it: `{key}.jpg` and `*.tar` are texts."""
    import yaml
    from omegaconf import OmegaConf

    try:
        OmegaConf.from_dotlist([f"value={value}"])
    except yaml.YAMLError:
        return json.dumps(value)
    return value


def _quote_value(value: Any) -> str:
    """A value for `--params` as text, quoted if it would be parsed as another type."""
    from omegaconf import OmegaConf

    if not isinstance(value, str):
        return json.dumps(value)
    quoted = quote_unreadable(value)
    read = OmegaConf.from_dotlist([f"value={quoted}"])
    return quoted if read == {"value": value} else json.dumps(value)
