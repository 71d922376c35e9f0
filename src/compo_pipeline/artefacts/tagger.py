"""Training of compo_en, the shipped English pipeline, with spaCy's own training loop."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from compo_pipeline.artefacts import augmentation, treebank
from compo_pipeline.language import rules
from compo_pipeline.language.lexicon import load_lexicon

VERSION = "1.0.0"
META: Mapping[str, str] = {
    "name": "compo_en",
    "version": VERSION,
    "description": "Tagger and dependency parser for image captions, in any case.",
    "license": "CC BY-SA 4.0",
    "author": "the compo-pipeline authors",
    "spacy_version": ">=3.8.7,<4.0.0",
}
SOURCES = [
    {
        "name": "Universal Dependencies English Web Treebank (UD_English-EWT)",
        "url": "https://github.com/UniversalDependencies/UD_English-EWT",
        "license": "CC BY-SA 4.0",
    }
]


@dataclass(frozen=True)
class TrainingSettings:
    """How compo_en is trained.

    Attributes:
        steps: optimiser steps; some nine minutes for 4,000 on one core.
        evaluate_every: steps between two looks at the development set.
        seed: of initial weights, order and augmentation.
        lower_case: share of training sentences in lower case.
        caption_words: share of training sentences in which lexicon words replace others.
        replaced: share of words replaced in such a sentence.
    """

    steps: int = 4000
    evaluate_every: int = 500
    seed: int = 0
    lower_case: float = 0.3
    caption_words: float = 0.5
    replaced: float = 0.4


def prepare(root: str, folder: Path) -> None:
    """Write the splits of a UD treebank as `<split>.spacy`."""
    sources = treebank.files(root)
    folder.mkdir(parents=True, exist_ok=True)
    for split, source in sources.items():
        treebank.read(source).to_disk(folder / f"{split}.spacy")


def train(corpus: Path, output: Path, settings: TrainingSettings) -> None:
    """Train the networks; spaCy's table of losses and scores goes to the terminal.

    Args:
        corpus: folder with train.spacy and dev.spacy.
        output: gets model-best and model-last; what it held is replaced.
        settings: how.
    """
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import train as train_loop
    from spacy.util import load_config

    augmenter = "corpora.train.augmenter"
    overrides: dict[str, Any] = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "system.seed": settings.seed,
        "training.max_steps": settings.steps,
        "training.eval_frequency": settings.evaluate_every,
        f"{augmenter}.lower_case": settings.lower_case,
        f"{augmenter}.caption_words": settings.caption_words,
        f"{augmenter}.replaced": settings.replaced,
    }
    augmentation.register()
    with as_file(files(__package__) / "training.cfg") as path:
        config = load_config(path, overrides=overrides)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    train_loop(init_nlp(config), output)


def assemble(trained: Path, folder: Path) -> None:
    """Put together what is shipped: sentence splitter, trained networks, rules of the lexicon.

    Args:
        trained: the output folder of `train`.
        folder: gets the pipeline; what it held is replaced.
    """
    import spacy

    nlp = spacy.load(trained / "model-best")
    nlp.add_pipe("sentencizer", first=True)
    rules.add_rules(nlp, load_lexicon().entries)
    nlp.meta.update(META, sources=SOURCES, performance={})
    # Where the corpus lay is nobody's business but this machine's.
    nlp.config["paths"].update(train=None, dev=None)
    shutil.rmtree(folder, ignore_errors=True)
    nlp.to_disk(folder)
