"""Fixtures of the tests of pipelines."""

from collections.abc import Callable
from typing import Any

import pytest

from compo_pipeline.project.settings import Parameters


@pytest.fixture(scope="session")
def shipped(context: Callable[..., Any]) -> Parameters:
    """The settings of conf/base, as nodes get them."""
    return context().settings
