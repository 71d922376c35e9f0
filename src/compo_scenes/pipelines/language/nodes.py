"""Nodes of the pipeline `language`."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from spacy.tokens import DocBin

from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.parsing import load
from compo_pipeline.storage.files import FolderWriter
from compo_scenes.language_model import accuracy, compo_en
from compo_scenes.settings import LanguageModelSettings

log = logging.getLogger(__name__)


def convert_treebank(root: str) -> FolderWriter:
    """Return a function that writes the treebank's splits in spaCy's format."""
    return partial(compo_en.prepare, root)


def train_networks(treebank: Path, settings: LanguageModelSettings) -> FolderWriter:
    """Return a function that writes the trained spaCy networks, best and last."""
    return lambda folder: compo_en.train(treebank, folder, settings)


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
