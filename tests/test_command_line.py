"""Commands shown to the user do what the run before them was told."""

import shlex
from typing import Any

import pytest
from kedro.framework.cli.utils import _split_params

from compo_pipeline.command_line import options


@pytest.mark.parametrize(
    ("env", "params", "shown"),
    [
        (None, {}, ""),
        ("smoke", {}, " --env=smoke"),
        (
            None,
            {"seed": 1, "model": {"pretrained": None}},
            " --params seed=1,model.pretrained=null",
        ),
        ("a b", {"data": {"root": "/my photos"}}, " --env='a b' --params 'data.root=/my photos'"),
        (None, {"variant": "1e3"}, """ --params 'variant="1e3"'"""),
    ],
)
def test_options_are_as_they_were_typed(
    env: str | None, params: dict[str, Any], shown: str
) -> None:
    assert options(env, params) == shown
    if params:
        assert _split_params(None, None, shlex.split(shown)[-1]) == params
