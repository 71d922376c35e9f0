"""A small world to train on: images on disk, captions with parses, views, a tiny model."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from compo_pipeline.core.records import Caption, Counterfactual, Parse
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Method, ViewContext
from compo_pipeline.methods.views import ALL_ROWS, Mixture, write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.checkpoint import Point, read_matching_progress
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings

COLOURS = ("red", "blue", "green", "white")
THINGS = ("cat", "dog", "cup")
WORDS = ("A", None, None, "stands", "on", "the", "left", ".")
TAGS = ("DT", "JJ", "NN", "VBZ", "IN", "DT", "NN", ".")
UPOS = ("DET", "ADJ", "NOUN", "VERB", "ADP", "DET", "NOUN", "PUNCT")


@dataclass(frozen=True)
class World:
    """Twelve images, eight of them wide."""

    root: Path
    captions: list[Caption]
    parses: dict[str, Parse]

    def views(self, folder: Path, epochs: int = 2, **settings: str) -> Path:
        """Views of CLIC in a folder."""
        method = Clic(ClicViews(**settings), ClicObjective())  # type: ignore[arg-type]
        return self.drawn(method, folder, epochs)

    def drawn(
        self, method: Method, folder: Path, epochs: int = 2, mixture: Mixture | None = None
    ) -> Path:
        """Views of a method in a folder."""
        context = ViewContext(self.parses, "hand", 0, 0)
        write(method, self.captions, context, epochs, folder, mixture=mixture or ALL_ROWS)
        return folder

    def edits(self, image: str = "") -> dict[str, list[Counterfactual]]:
        """A negative and a positive text of each caption, by sample, with an image."""
        return {
            row.sample_id: [
                Counterfactual(
                    *(row.sample_id, 0, row.sentences[0], role, f"{word} {row.sentences[0]}"),
                    *(image, "editor", "generator", "0", "generated", ""),
                )
                for role, word in (("negative", "no"), ("positive", "yes"))
            ]
            for row in self.captions
        }

    def of_two_sources(self) -> "World":
        """The same rows, the last two of which are of another source."""
        few = {row.sample_id for row in self.captions[-2:]}
        captions = [
            replace(row, source="few" if row.sample_id in few else "many") for row in self.captions
        ]
        return replace(self, captions=captions)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    noise = np.random.default_rng(0)
    captions, parses = [], {}
    for number in range(12):
        name, words = f"s{number:02d}", list(WORDS)
        words[1:3] = COLOURS[number % 4], THINGS[number // 4]
        size = (40, 30) if number < 8 else (30, 40)
        pixels = noise.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{name}.png")
        text = " ".join(words).replace(" .", ".")
        offsets = tuple(text.index(word) for word in words)
        further = tuple(f"Thing {number} has part {part}." for part in range(3))
        captions.append(
            Caption(name, name, f"{name}.png", *size, (text, *further), "world", "train")
        )
        parses[name] = Parse(name, 0, text, tuple(words), offsets, UPOS, TAGS, (0, 3, 5, 7))
    return World(root, captions, parses)


@pytest.fixture(scope="session")
def views(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CLIC's views of two epochs."""
    return world.views(tmp_path_factory.mktemp("views") / "views")


@pytest.fixture
def tiny(tiny_clip: Path) -> LoadedModel:
    """A fresh copy of the tiny model, to be trained."""
    return load(tiny_clip)


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tokenizer of T5's kind: pieces of words, "</s>" behind a text and as padding."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["\u2581", *map(chr, range(33, 127)), "at", "og", "ed"]
    pieces += ["\u2581a", "\u2581red", "\u2581ca"]
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0), *((piece, -1.0 - len(piece)) for piece in pieces)]
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=0))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    inner.decoder = tokenizers.decoders.Metaspace(prepend_scheme="always")
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    folder = tmp_path_factory.mktemp("tokenizer") / "unigram"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def plan(world: World, views: Path, tiny_clip: Path, recipe: Any, tmp_path: Path) -> TrainingInputs:
    """Six steps of four rows."""
    inputs = world.captions, "data", views, world.root, ModelSettings(f"local-dir:{tiny_clip}")
    return TrainingInputs(*inputs, recipe(), 0, tmp_path / "resume")


def steps_done(plan: TrainingInputs, method: Method, name: str) -> int:
    """Number of steps that an earlier run of the same configuration has done."""
    mark, overwrite = fingerprint_of(plan, method), plan.settings.overwrite
    saved = read_matching_progress(plan.state(name), mark, overwrite=overwrite)
    return saved["progress"]["step"] if saved else 0


def weights(folder: Path) -> dict[str, Tensor]:
    """Those of a checkpoint."""
    return load_file(folder / "open_clip_model.safetensors")


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same tensors, to the bit."""
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def train_both(
    plan: TrainingInputs, method: Method, victim: str = "", step: int = 0
) -> dict[str, Path]:
    """Train a method and its control, and give their checkpoints.

    At a step of the victim the process is killed: without clean-up or warning, as by a crash or by
    a cluster that wants its machine back.
    """
    found = {}
    for name, learner in ((method.name, method), ("control", control_of(method))):

        def report(point: Point, name: str = name) -> None:
            if (name, point["step"]) == (victim, step):
                os.kill(os.getpid(), signal.SIGKILL)

        found[name] = plan.resume / "folders" / name
        train(plan, Job(learner, name, found[name]), report)
    return found


def train_with_threads(threads: int, *given: Any) -> None:
    """Train both in a process of its own."""
    torch.set_num_threads(threads)
    train_both(*given)


@pytest.fixture(scope="session")
def recipe() -> Callable[..., TrainingSettings]:
    """A recipe of a few quick steps; any setting may be another."""

    def make(**changes: object) -> TrainingSettings:
        optimizer = OptimizerSettings(lr=1e-2, lr_start=1e-3, lr_end=1e-4, clip_norm=None)
        plain = {"epochs": 2, "batch_size": 4, "optimizer": optimizer, "save_every": 2}
        plain |= {"device": "cpu", "precision": "fp32", "workers": 0, "log_every": 1}
        return TrainingSettings(**{**plain, **changes})  # type: ignore[arg-type]

    return make
