"""Studies in memory, made trial by trial, and a small world in which trials really train."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState
from PIL import Image

from compo_pipeline.evaluation.benchmarks import Item, Subtask
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.evaluation.settings import Bootstrap, EvaluationSettings
from compo_pipeline.methods.contract import Drawing
from compo_pipeline.methods.negclip import NegClip, NegClipObjective, NegClipViews
from compo_pipeline.methods.view_tables import write
from compo_pipeline.models.loading import LoadedModel, ModelSettings, load
from compo_pipeline.records import Caption, Parse
from compo_pipeline.training import run as training
from compo_pipeline.training.run import Plan, Runner
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings
from compo_pipeline.tuning.judging import Guarded, ObjectiveSettings
from compo_pipeline.tuning.recording import NoRecorder, Recorder
from compo_pipeline.tuning.search import plan_of
from compo_pipeline.tuning.settings import PrunerSettings, StudySettings, TrialSettings
from compo_pipeline.tuning.space import Parameter, Space
from compo_pipeline.tuning.study import Plan as StudyPlan
from compo_pipeline.tuning.study import open_study
from compo_pipeline.tuning.trial import Material, Trials

LR, POSITIVES = "training.optimizer.lr", "clic.objective.positives"
DISTRIBUTIONS = {LR: FloatDistribution(1e-4, 1e-2, log=True), POSITIVES: IntDistribution(1, 5)}


def _study(*trials, directions=("maximize",), names=None):
    """A study in memory that holds these trials."""
    study = optuna.create_study(
        study_name="clic-scenes",
        directions=directions,
        storage=optuna.storages.InMemoryStorage(),
    )
    if names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(names)
    study.add_trials(trials)
    return study


def _trial(*values, lr=1e-3, positives=2, drop=None, state=TrialState.COMPLETE, **more):
    """A trial of the two parameters; `drop` is its constraint."""
    return optuna.create_trial(
        state=state,
        values=list(values) or None,
        params={LR: lr, POSITIVES: positives},
        distributions=DISTRIBUTIONS,
        constraints=None if drop is None else {"drop": drop},
        **more,
    )


def _failed(why):
    """A trial that failed and says why."""
    return _trial(state=TrialState.FAIL, user_attrs={"failure": "error", "reason": why})


def _stopped(score, step):
    """A trial that its pruner stopped."""
    return _trial(
        state=TrialState.PRUNED, intermediate_values={step: score}, user_attrs={"score": score}
    )


@pytest.fixture(scope="session")
def made():
    """Makers of studies and trials; `configured` are the values of the configuration."""
    return SimpleNamespace(
        study=_study,
        trial=_trial,
        failed=_failed,
        stopped=_stopped,
        configured={LR: 2e-3, POSITIVES: 4},
    )


COLOURS = ("red", "blue", "green", "white")
THINGS = ("cat", "dog", "cup")
UPOS = ("DET", "ADJ", "NOUN", "VERB", "DET", "ADJ", "NOUN", "PUNCT")
TAGS = ("DT", "JJ", "NN", "VBZ", "DT", "JJ", "NN", ".")
PAIRS, KNOWN = "play/accuracy/pairs", "play/accuracy/known"
WANTED = ObjectiveSettings((PAIRS,), (), Guarded((KNOWN,)), Guarded(), penalty=10)
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

    material: Material
    drawing: Drawing
    questions: tuple[Subtask, ...]

    def trials(self, folder: Path, recorder: Recorder | None = None, **changes: Any) -> Trials:
        """Trials of a learning rate, with looks after steps 2 and 4 and at the end."""
        material = self.material.as_trial(TrialSettings(looks=3))
        space = Space((Parameter(LR, FloatDistribution(1e-7, 1e35, log=True)),))
        keeper = recorder or NoRecorder()
        trials = Trials(material, space, WANTED, self.questions, folder / "trials", keeper)
        return replace(trials, **changes)

    def study(self, trials: Trials, folder: Path, *rates: float, **settings: Any) -> StudyPlan:
        """A study whose trials have these learning rates."""
        plain = {"workers": 1, "pruner": PrunerSettings("none"), **settings}
        given = StudySettings("toy", len(rates), **plain)
        plan = plan_of(trials, given, {LR: rates[0]}, folder)
        opened = open_study(plan)
        for rate in rates[1:]:
            opened.study.enqueue_trial({LR: rate})
        return plan


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> World:
    root = tmp_path_factory.mktemp("world")
    noise = np.random.default_rng(0)
    for name in (f"{kind}{number:02d}" for kind in "sq" for number in range(12)):
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), np.uint8)).save(root / f"{name}.png")
    told = [_told(number) for number in range(12)]
    captions, parses = [one for one, _ in told], {one.sample_id: one for _, one in told}
    drawing = Drawing(parses, "hand", 0, 0)
    method = NegClip(NegClipViews(), NegClipObjective(("text",)))
    write(method, captions, drawing, 2, root / "views")
    optimizer = OptimizerSettings(**RECIPE["optimizer"])
    plan = Plan(
        *(captions, "data", root / "views", root, ModelSettings(f"local-dir:{tiny_clip}")),
        *(TrainingSettings(**{**RECIPE, "optimizer": optimizer}), 0, root / "resume"),
        features=root / "features",
    )
    own = {"views": {}, "objective": {"trains": ["text"]}}
    scoring = EvaluationSettings(
        device="cpu", image_precision="fp32", workers=1, bootstrap=Bootstrap(50)
    )
    material = Material("negclip", {"training": RECIPE, "negclip": own}, plan, scoring)
    asked = [Subtask("play", name, ("image_to_text",), root, ()) for name in ("pairs", "known")]
    pairs = replace(asked[0], items=tuple(_item(number) for number in range(12)))
    known = _known(replace(asked[1], items=pairs.items), load(tiny_clip), scoring)
    return World(material, drawing, (pairs, known))


def _told(number: int) -> tuple[Caption, Parse]:
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
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the states that trainings were called with, in their order."""
    names, train = [], Runner.train

    def noting(self: Runner, method: Any, name: str, *given: Any) -> Any:
        names.append(name)
        return train(self, method, name, *given)

    monkeypatch.setattr(Runner, "train", noting)
    yield names


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


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, trained: list[str]) -> list[str]:
    """`trained` with a word for each time that images are embedded."""
    embed = training.embed

    def noting(*given: Any, **named: Any) -> Any:
        trained.append("embedded")
        return embed(*given, **named)

    monkeypatch.setattr(training, "embed", noting)
    return trained
