"""Commands that are shown to the user, as they would be typed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any


def kedro_run(pipeline: str, env: str | None, params: Mapping[str, Any]) -> str:
    """The `kedro run` of a pipeline.

    Args:
        pipeline: its name.
        env: Kedro's environment; None is its default.
        params: by dotted key, or nested.
    """
    return f"kedro run --pipeline={pipeline}{options(env, params)}"


def options(env: str | None, params: Mapping[str, Any]) -> str:
    """` --env=... --params ...`, each left out where it says nothing.

    Args:
        env: Kedro's environment; None is its default.
        params: by dotted key, or nested.
    """
    words = [] if env is None else [f"--env={shlex.quote(env)}"]
    if params:
        given = ",".join(f"{name}={_typed(value)}" for name, value in leaves(params))
        words.append(f"--params {shlex.quote(given)}")
    return "".join(f" {word}" for word in words)


def leaves(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested mappings."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _typed(value: Any) -> str:
    """A value as `--params` reads it; a text that it would read as something else is quoted."""
    from omegaconf import OmegaConf

    if not isinstance(value, str):
        return json.dumps(value)
    read = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]))
    return value if read == {"value": value} else json.dumps(value)
