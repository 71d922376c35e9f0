"""The packages of pipelines.

A node's function names the settings that it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from kedro.pipeline import Node, node

# Keys of arguments that are not named as their setting is.
_KEYS = {"language_model": "language.model", "root": "data.root", "split": "views.split"}


def step(
    function: Callable[..., Any],
    inputs: Sequence[str],
    outputs: str | list[str] | None,
    name: str = "",
    **keys: str,
) -> Node:
    """A node: its function's first arguments are entries of the catalog, the others are settings.

    Args:
        function: function that the node runs. An argument `evaluation` is the setting of this name.
            Keyword-only arguments keep their default.
        inputs: entries, in the order of the function's arguments.
        outputs: entries that the function returns.
        name: name of the node. By default that of the function.
        keys: settings of arguments that have another name.
    """
    named = {**_KEYS, **keys}
    arguments = [*inspect.signature(function).parameters.values()][len(inputs) :]
    settings = [
        f"params:{named.get(each.name, each.name)}"
        for each in arguments
        if each.kind is not each.KEYWORD_ONLY
    ]
    return node(function, [*inputs, *settings], outputs, name=name or function.__name__)
