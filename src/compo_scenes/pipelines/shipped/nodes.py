"""Nodes of the pipeline `shipped`: of compo_en, the parser, and of scenes-base, the base model."""

from __future__ import annotations

import itertools
import logging
from functools import partial
from pathlib import Path
from typing import Any

from spacy.tokens import DocBin

from compo_pipeline.core.compute import Compute, resolve
from compo_pipeline.core.files import FolderWriter
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.parsing import load
from compo_pipeline.models.loading import export
from compo_scenes.base_model import text_tower as base
from compo_scenes.base_model.image_tower import build, load_tower, train_tower
from compo_scenes.dataset import SceneSettings
from compo_scenes.language_model import accuracy, compo_en
from compo_scenes.settings import BaseRecipe, PretrainingSettings, TowerRecipe

log = logging.getLogger(__name__)

TOWER, BASE = TowerRecipe(), BaseRecipe()
SEED = 0  # of scenes, captions and initial weights
PROBED = 3000  # training scenes that linear probes are fitted on, and unseen ones that judge them


def convert_treebank(root: str) -> FolderWriter:
    """Return a function that writes the treebank's splits in spaCy's format."""
    return partial(compo_en.prepare, root)


def train_networks(treebank: Path) -> FolderWriter:
    """Return a function that writes the trained spaCy networks, best and last."""
    return partial(compo_en.train, treebank)


def assemble_pipeline(networks: Path) -> FolderWriter:
    """Return a function that writes the shipped spaCy pipeline compo_en."""
    return partial(compo_en.assemble, networks)


def judge_pipeline(pipeline: Path, treebank: Path) -> dict[str, dict[str, float]]:
    """Accuracy of the spaCy pipeline on the treebank's test split and on tagged captions."""
    nlp = load(str(pipeline))
    test = list(DocBin().from_disk(treebank / "test.spacy").get_docs(nlp.vocab))
    figures = accuracy.report(nlp, test, accuracy.read_gold(RESOURCES / "gold_captions.txt"))
    for part, values in figures.items():
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in values.items())
        log.info("%s: %s", part, shown)
    return figures


def train_image_tower(pretraining: PretrainingSettings, scenes: SceneSettings) -> FolderWriter:
    """Return a function that trains the image tower on rendered ground truth, and writes it."""
    compute, world = _resolve_compute(pretraining), scenes.world.world()
    loaded = build(SEED, compute.device)
    train = partial(train_tower, loaded, world, TOWER, compute, seed=SEED)
    return lambda folder: train(file=folder / "tower.safetensors")


def train_base_model(
    tower: Path, pretraining: PretrainingSettings, scenes: SceneSettings
) -> tuple[FolderWriter, dict[str, Any]]:
    """Train the base model: function that writes its folder, and a report with probes."""
    compute, world = _resolve_compute(pretraining), scenes.world.world()
    loaded = build(SEED, compute.device)
    readouts = load_tower(loaded, tower / "tower.safetensors", world)
    curve = base.train_base(loaded, readouts, world, BASE, compute, seed=SEED)
    shown = list(itertools.islice(world.scenes(SEED, "train", "probe"), PROBED))
    unseen = list(itertools.islice(world.scenes(SEED, "val", "probe", 2), PROBED))
    probes = base.probe(
        base.embed_scenes(loaded, shown, compute, "embedding scenes to probe"),
        shown,
        base.embed_scenes(loaded, unseen, compute, "embedding unseen scenes"),
        unseen,
        world,
    )
    metadata = {"linear probes": probes, "compute": compute.facts()}
    write = partial(export, loaded, precision="fp16", metadata=metadata)
    return write, {"linear probes": probes, "curve": curve}


def _resolve_compute(settings: PretrainingSettings) -> Compute:
    """Device of the settings, in its fastest precision."""
    return resolve(settings.device, "auto", key="pretraining")
