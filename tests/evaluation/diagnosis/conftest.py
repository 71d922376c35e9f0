"""Captions of scenes, with their parses."""

import itertools
from functools import partial

import pytest

from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.evaluation.diagnosis.negatives import Sample
from compo_pipeline.language.parsing import SHIPPED, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_scenes.captions import sentences
from compo_scenes.world import World


@pytest.fixture(scope="session")
def sample() -> Sample:
    """The first sentences of scenes."""
    captions = [
        Caption(
            sample_id=scene.scene_id,
            image_id=scene.scene_id,
            image=f"{scene.scene_id}.png",
            width=64,
            height=64,
            sentences=(sentences(scene, rng("told", scene.scene_id))[0],),
            source="scenes",
            split="train",
        )
        for scene in itertools.islice(World().scenes(0, "train"), 60)
    ]
    items = ((row.sample_id, 0, row.sentences[0]) for row in captions)
    context = ViewContext.from_parses(parse_by(SHIPPED, items), "x", 0, {})
    return Sample(captions, context, partial(parses_of, SHIPPED))
