"""A small world in which trials really train."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from tests.training.conftest import COLOURS, THINGS
from tests.training.conftest import World as TrainingWorld
from tests.training.conftest import world as photos

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
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

__all__ = ["photos"]

LR = "training.optimizer.lr"
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
    """Twelve images whose captions train a tiny NegCLIP for six steps, and questions about them.

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
def world(
    photos: TrainingWorld, tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path
) -> World:
    root = tmp_path_factory.mktemp("trials")
    view_context = ViewContext(photos.parses, "hand", 0, 0)
    method = NegClip(NegClipViews(), Objective(("text",)))
    write(method, photos.captions, view_context, 2, root / "views")
    optimizer = OptimizerSettings(**RECIPE["optimizer"])
    plan = TrainingInputs(
        *(photos.captions, "data", root / "views", photos.root),
        ModelSettings(f"local-dir:{tiny_clip}"),
        *(TrainingSettings(**{**RECIPE, "optimizer": optimizer}), 0, root / "resume"),
        features=root / "features",
    )
    own = {"views": {}, "objective": {"trains": ["text"]}}
    scoring = EvaluationSettings(device="cpu", workers=1)
    inputs = TrialInputs("negclip", {"training": RECIPE, "negclip": own}, plan, scoring)
    subtasks = [
        Subtask("play", name, ("image_to_text",), photos.root, ()) for name in ("pairs", "known")
    ]
    pairs = replace(subtasks[0], items=tuple(_item(number) for number in range(12)))
    known = _known(replace(subtasks[1], items=pairs.items), load(tiny_clip), scoring)
    return World(inputs, view_context, (pairs, known))


def _item(number: int) -> Item:
    one, other, thing = COLOURS[number % 4], COLOURS[(number + 1) % 4], THINGS[number // 4]
    right, wrong = f"a {one} {thing} by a {other} cup", f"a {other} {thing} by a {one} cup"
    return Item(f"{number}", f"s{number:02d}.png", (right,), (wrong,))


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
