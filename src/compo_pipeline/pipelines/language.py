"""Pipeline `language`: trains, evaluates and assembles compo_en, the shipped spaCy pipeline."""

from __future__ import annotations

import logging
from pathlib import Path

from kedro.pipeline import Pipeline, node

from compo_pipeline.artefacts.settings import LanguageModelSettings

log = logging.getLogger(__name__)


def convert_treebank(root: str, folder: str) -> Path:
    """The treebank's splits in spaCy's format."""
    from compo_pipeline.artefacts import compo_en

    compo_en.prepare(root, Path(folder))
    return Path(folder)


def train_networks(treebank: Path, settings: LanguageModelSettings, folder: str) -> Path:
    """The trained networks, best and last."""
    from compo_pipeline.artefacts import compo_en

    compo_en.train(treebank, Path(folder), settings)
    return Path(folder)


def assemble_pipeline(networks: Path, folder: str) -> Path:
    """The pipeline that the package ships."""
    from compo_pipeline.artefacts import compo_en

    compo_en.assemble(networks, Path(folder))
    return Path(folder)


def judge_pipeline(pipeline: Path, treebank: Path) -> dict[str, dict[str, float]]:
    """Accuracy on the treebank's test split and on the hand-tagged captions."""
    from spacy.tokens import DocBin

    from compo_pipeline.artefacts import accuracy
    from compo_pipeline.language.lexicon import RESOURCES
    from compo_pipeline.language.parsing import load

    nlp = load(str(pipeline))
    test = list(DocBin().from_disk(treebank / "test.spacy").get_docs(nlp.vocab))
    figures = accuracy.report(nlp, test, accuracy.read_gold(RESOURCES / "gold_captions.txt"))
    for part, values in figures.items():
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in values.items())
        log.info("%s: %s", part, shown)
    return figures


def create_pipeline() -> Pipeline:
    """A treebank to the spaCy pipeline that the package ships, and its accuracy."""
    return Pipeline(
        [
            node(
                convert_treebank,
                inputs=["params:language.treebank.root", "params:language.folders.treebank"],
                outputs="treebank",
                name="convert_treebank",
            ),
            node(
                train_networks,
                inputs=["treebank", "params:language.training", "params:language.folders.trained"],
                outputs="language_networks",
                name="train_networks",
            ),
            node(
                assemble_pipeline,
                inputs=["language_networks", "params:language.folders.pipeline"],
                outputs="language_pipeline",
                name="assemble_pipeline",
            ),
            node(
                judge_pipeline,
                inputs=["language_pipeline", "treebank"],
                outputs="language_accuracy",
                name="judge_pipeline",
            ),
        ]
    )
