"""Each paper's recipe takes two steps on images and captions in its own format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from kedro.framework.session import KedroSession
from safetensors.torch import load_file
from tests.published import layouts, world

from compo_pipeline.models.weights import WEIGHTS_FILE

IMAGES = 12
DEAD_KEY = f"train-{layouts.DEAD:09}"

# By environment: the data's format and its dead link, the base, the method, and the towers that
# it trains.
RECIPES = {
    "coco": (layouts.coco, None, "tiny_clip", "clic", {"text"}),
    "redcaps": (layouts.pixelprose, None, "tiny_clip", "clic", {"text"}),
    "cc12m": (layouts.pixelprose, None, "tiny_clip", "clic", {"text"}),
    "laion": (layouts.cogvlm_laion, None, "tiny_clip", "clic", {"text"}),
    "fsc_coco": (layouts.neg_clip, None, "tiny_clip", "fsc_clip", {"image", "text"}),
    "fsc_cc3m": (layouts.img2dataset, DEAD_KEY, "tiny_clip", "fsc_clip", {"image", "text"}),
    "fsc_laion_coco": (layouts.img2dataset, DEAD_KEY, "tiny_clip", "fsc_clip", {"image", "text"}),
    "siglip_cc3m": (layouts.dreamlip, DEAD_KEY, "tiny_siglip", "c2lip", {"image", "text"}),
    "sparcl_coco": (layouts.coco_2014, None, "tiny_clip", "sparcl", {"image", "text"}),
}


def write_data(layout: Callable[..., int], root: Path) -> int:
    """Writes images of the split that trains, and held-out ones; the rows that train."""
    return layout(root, world.rows(0, IMAGES), world.rows(90, 10))


STAGES = ("raw", "ingest", "validation", "foils", "counterfactuals", "views", "training")


def two_steps(root: Path, base: Path) -> dict[str, Any]:
    """`--params` of a training of two steps on a small base."""
    return {
        "data": {"root": str(root)},
        "model": {"name": f"local-dir:{base}", "pretrained": None},
        "training": {
            "max_steps": 2,
            "optimizer": {"warmup_steps": 1},
            "batch_size": 5,  # of 12 images one may be carved
            "contrast_group": None,
            "workers": 0,
            "log_every": 1,
            "device": "cpu",
        },
        "benchmarks": {"root": None},
        # Images of counterfactuals take a diffusion model.
        "counterfactuals": {"image_generator": None},
        # FSC-CLIP's take WordNet.
        "fsc_clip": {"views": {"replacements": "lexicon"}},
    }


@pytest.mark.slow
@pytest.mark.usefixtures("bootstrapped")
@pytest.mark.parametrize("env", RECIPES)
def test_two_steps_on_data_in_the_recipes_own_format(
    workspace, request, tmp_path, monkeypatch, env
):
    """Data to a checkpoint by Kedro's own session; only the sizes are not the recipe's."""
    monkeypatch.chdir(workspace)
    layout, dead, base, method, trains = RECIPES[env]
    tiny = request.getfixturevalue(base)
    rows = write_data(layout, tmp_path)
    runtime = two_steps(tmp_path, tiny)
    with KedroSession.create(workspace, env=env, runtime_params=runtime) as session:
        session.run(pipeline_names=STAGES)
        catalog = session.load_context().catalog
    captions = catalog.load("valid_captions")
    train = [row for row in captions if row.split in ("train", "carved")]
    assert ("carved" in {row.split for row in captions}) == (env != "fsc_coco")
    assert len(train) == rows, catalog.load("quarantine")
    quarantined = [row.sample_id for row in catalog.load("quarantine")]
    assert quarantined == ([dead] if dead else [])
    curves = catalog.load("training_curves")
    assert list(curves["step"]) == [1, 2]
    assert np.isfinite(curves["loss"]).all()
    assert catalog.load("run")["method"] == method
    checkpoint = catalog.load("checkpoint")
    assert moved_towers(tiny / WEIGHTS_FILE, checkpoint / WEIGHTS_FILE) == trains
    last = max(catalog.load("views").glob("epoch=*.parquet"))
    views = pd.read_parquet(last)
    drawn = 1 if env in ("redcaps", "cc12m", "laion", "siglip_cc3m") else 5
    assert last.name == f"epoch={drawn - 1:02}.parquet"
    if method == "c2lip":
        assert all(len(phrases) >= 2 for phrases in views["phrases"])
    else:
        negatives = [text for row in views["negatives"] for text in row]
        assert sum(text is not None for text in negatives) > 0.7 * len(negatives)


def moved_towers(before: Path, after: Path) -> set[str]:
    """The towers in which a weight changed."""
    old, new = load_file(before), load_file(after)
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    return {"image" if name.startswith("visual.") else "text" for name in moved}


@pytest.mark.slow
@pytest.mark.usefixtures("bootstrapped")
def test_siglip_s_token_embedding_stays_where_the_recipe_freezes_it(
    workspace, tiny_siglip, tmp_path, monkeypatch
):
    """By the name that it has in CLIP, which the demo's recipe freezes."""
    monkeypatch.chdir(workspace)
    write_data(layouts.dreamlip, tmp_path)
    runtime = {**two_steps(tmp_path, tiny_siglip), "variant": "frozen"}
    runtime["training"]["frozen"] = ["token_embedding"]
    with KedroSession.create(workspace, env="siglip_cc3m", runtime_params=runtime) as session:
        session.run(pipeline_names=STAGES)
        checkpoint = session.load_context().catalog.load("checkpoint")
    old, new = (load_file(each / WEIGHTS_FILE) for each in (tiny_siglip, checkpoint))
    kept = {name for name in old if torch.equal(old[name], new[name])}
    assert "text.token_embedding.weight" in kept
    assert "text.positional_embedding" not in kept
