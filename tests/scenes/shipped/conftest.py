"""A small world, two scenes placed by hand, and a model with random weights."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest

from compo_pipeline.models.loading import LoadedModel
from compo_scenes.base_model.image_tower import build
from compo_scenes.world import Scene, Thing, World


@pytest.fixture(scope="session")
def world() -> World:
    return World(("ball", "box", "star", "key"), ("red", "green", "blue", "pink"))


@pytest.fixture(scope="session")
def wide() -> Scene:
    things = (
        Thing("box", "blue", "medium", "solid", 48, 72, 48),
        Thing("star", "pink", "large", "dotted", 144, 108, 72),
    )
    return Scene("hand-placed", 192, 144, "white", things)


@pytest.fixture(scope="session")
def tall(wide: Scene) -> Scene:
    return replace(wide, width=144, height=192, things=wide.things[:1])


@pytest.fixture(scope="session")
def fresh() -> LoadedModel:
    """Not to be trained: `copy` is."""
    return build(0)


@pytest.fixture
def copy(fresh: LoadedModel) -> Callable[[], LoadedModel]:
    return lambda: replace(fresh, model=deepcopy(fresh.model))
