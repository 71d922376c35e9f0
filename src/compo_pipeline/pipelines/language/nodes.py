"""Nodes of the pipeline `language`."""

from __future__ import annotations

import logging
from pathlib import Path

from spacy.tokens import DocBin

from compo_pipeline.artefacts import accuracy, compo_en
from compo_pipeline.artefacts.settings import LanguageModelSettings
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.parsing import load

log = logging.getLogger(__name__)


def convert_treebank(root: str, folder: str) -> Path:
    """The treebank's splits in spaCy's format."""
    compo_en.prepare(root, Path(folder))
    return Path(folder)


def train_networks(treebank: Path, settings: LanguageModelSettings, folder: str) -> Path:
    """The trained networks, best and last."""
    compo_en.train(treebank, Path(folder), settings)
    return Path(folder)


def assemble_pipeline(networks: Path, folder: str) -> Path:
    """The pipeline that the package ships."""
    compo_en.assemble(networks, Path(folder))
    return Path(folder)


def judge_pipeline(pipeline: Path, treebank: Path) -> dict[str, dict[str, float]]:
    """Accuracy on the treebank's test split and on the hand-tagged captions."""
    nlp = load(str(pipeline))
    test = list(DocBin().from_disk(treebank / "test.spacy").get_docs(nlp.vocab))
    figures = accuracy.report(nlp, test, accuracy.read_gold(RESOURCES / "gold_captions.txt"))
    for part, values in figures.items():
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in values.items())
        log.info("%s: %s", part, shown)
    return figures
