"""A small world in which trials really train."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from PIL import Image

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods.contract import Objective, ViewContext
from compo_pipeline.methods.negclip import NegClip, NegClipViews
from compo_pipeline.methods.views import write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings
from compo_pipeline.tuning.settings import (
    GuardedFigures,
    ObjectiveSettings,
    StudySettings,
    TrialSettings,
    TuningSettings,
)
from compo_pipeline.tuning.study import StudyPlan, open_study
from compo_pipeline.tuning.trial import TrialInputs, TrialObjective

LR = "training.optimizer.lr"
COLOURS = ("red", "blue", "green", "white")
THINGS = ("cat", "dog", "cup")
UPOS = ("DET", "ADJ", "NOUN", "VERB", "DET", "ADJ", "NOUN", "PUNCT")
TAGS = ("DT", "JJ", "NN", "VBZ", "DT", "JJ", "NN", ".")
PAIRS, KNOWN = "play/accuracy/pairs", "play/accuracy/known"
OBJECTIVE = ObjectiveSettings((PAIRS,), GuardedFigures((KNOWN,)))
RECIPE = {
    "epochs": 2,
    "batch_size": 4,
    "max_steps": None,
    "optimizer": {"lr": 1e-3, "lr_start": 1e-6, "lr_end": 1e-6, "warmup": 0.1},
    "device": "cpu",
    "precision": "fp32",
    "workers": 0,
    "cache_features": True,
    "save_every": 2,
    "log_every": 1,
}


@dataclass(frozen=True)
class World:
    """Twelve images whose captions train a tiny NegCLIP for six steps, and twelve to ask about.

    The base answers all of the subtask `known` rightly.
    """

    inputs: TrialInputs
    view_context: ViewContext
    items: tuple[Subtask, ...]

    def objective(self, folder: Path, **changes: Any) -> TrialObjective:
        """Of trials with a learning rate, with looks after steps 2 and 4 and at the end."""
        objective = TrialObjective(
            self.inputs.for_trials(TrialSettings(looks=3)),
            {LR: FloatDistribution(1e-7, 1e35, log=True)},
            OBJECTIVE,
            self.items,
            folder / "trials",
        )
        return replace(objective, **changes)

    def plan(self, objective: TrialObjective, folder: Path, *rates: float) -> StudyPlan:
        """A study whose trials have these learning rates."""
        settings = TuningSettings(StudySettings("toy", len(rates)), BenchmarksSettings())
        plan = replace(objective.plan(settings, folder), configured={LR: rates[0]})
        study = open_study(plan)
        for rate in rates[1:]:
            study.enqueue_trial({LR: rate})
        return plan


@pytest.fixture(autouse=True, scope="session")
def databases(quick_databases: None) -> None:
    """Those of studies are quick, too."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> World:
    root = tmp_path_factory.mktemp("world")
    noise = np.random.default_rng(0)
    for name in (f"{kind}{number:02d}" for kind in "sq" for number in range(12)):
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), np.uint8)).save(root / f"{name}.png")
    rows = [_row(number) for number in range(12)]
    captions, parses = [row for row, _ in rows], {row.sample_id: row for _, row in rows}
    view_context = ViewContext(parses, "hand", 0, 0)
    method = NegClip(NegClipViews(), Objective(("text",)))
    write(method, captions, view_context, 2, root / "views")
    optimizer = OptimizerSettings(**RECIPE["optimizer"])
    plan = TrainingInputs(
        *(captions, "data", root / "views", root, ModelSettings(f"local-dir:{tiny_clip}")),
        *(TrainingSettings(**{**RECIPE, "optimizer": optimizer}), 0, root / "resume"),
        features=root / "features",
    )
    own = {"views": {}, "objective": {"trains": ["text"]}}
    scoring = EvaluationSettings(device="cpu", workers=1)
    inputs = TrialInputs("negclip", {"training": RECIPE, "negclip": own}, plan, scoring)
    subtasks = [Subtask("play", name, ("image_to_text",), root, ()) for name in ("pairs", "known")]
    pairs = replace(subtasks[0], items=tuple(_item(number) for number in range(12)))
    known = _known(replace(subtasks[1], items=pairs.items), load(tiny_clip), scoring)
    return World(inputs, view_context, (pairs, known))


def _row(number: int) -> tuple[Caption, Parse]:
    """A caption whose things, colours or noun phrases can change places."""
    name, one, other = f"s{number:02d}", COLOURS[number % 4], COLOURS[(number + 1) % 4]
    thing, further = THINGS[number // 4], THINGS[(number // 4 + 1) % 3]
    words = ("A", one, thing, "chases", "a", other, further, ".")
    text = " ".join(words).replace(" .", ".")
    starts = [0]
    for word in words[:-2]:
        starts.append(starts[-1] + len(word) + 1)
    offsets = (*starts, len(text) - 1)
    parse = Parse(name, 0, text, words, offsets, UPOS, TAGS, (0, 3, 4, 7))
    return Caption(name, name, f"{name}.png", 32, 32, (text,), "world", "train"), parse


def _item(number: int) -> Item:
    one, other, thing = COLOURS[number % 4], COLOURS[(number + 1) % 4], THINGS[number // 4]
    right, wrong = f"a {one} {thing} by a {other} cup", f"a {other} {thing} by a {one} cup"
    return Item(f"{number}", f"q{number:02d}.png", (right,), (wrong,))


def _known(task: Subtask, base: LoadedModel, settings: EvaluationSettings) -> Subtask:
    """The same with what the model takes for right in the right's place."""
    (found,) = score("base", task, Embedder([task], settings)(base, "base"))
    right = {row.item for row in found.rows if row.correct}
    items = (
        one if one.item in right else replace(one, positives=one.negatives, negatives=one.positives)
        for one in task.items
    )
    return replace(task, items=tuple(items))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each step that is trained."""
    done: list[int] = []
    loss = NegClip.loss

    def counting(self: NegClip, *given: Any) -> Any:
        done.append(len(done))
        return loss(self, *given)

    monkeypatch.setattr(NegClip, "loss", counting)
    return done
