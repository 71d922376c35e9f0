"""Confirmation of tuned values: base, configured and tuned recipe on the reported items.

The best trial of a study was chosen by the same items that scored it. Both recipes are therefore
trained as `train_eval` would train them, with seeds and views that no trial has had.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from compo_pipeline.benchmarks.averages import Key
from compo_pipeline.benchmarks.items import Subtask, titles
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.comparison import BASE, Row, compare
from compo_pipeline.evaluation.conclusions import summary_lines
from compo_pipeline.evaluation.contamination import items_fingerprint
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.mixture import Mixture
from compo_pipeline.methods.registry import method_type
from compo_pipeline.methods.views import ViewSettings, write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.run import compute
from compo_pipeline.run.seeding import digest
from compo_pipeline.storage.annotations import NO_ANNOTATIONS
from compo_pipeline.storage.records import Score
from compo_pipeline.storage.table_files import read_rows, write_rows
from compo_pipeline.training import fingerprint
from compo_pipeline.training.run import Trainer
from compo_pipeline.tuning.space import Value
from compo_pipeline.tuning.trial import TrialInputs

CONFIGURED, TUNED = "configured", "tuned"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredConfirmation:
    """Stored result of a confirmation: seeds, and the recipes' comparison or why it is missing."""

    seeds: tuple[int, ...] = ()
    """Both recipes were trained with each."""
    comparison: Comparison | None = None
    """Of base, configured and tuned recipe."""
    reason: str | None = None
    """Why there is no comparison."""


@dataclass(frozen=True)
class Confirmation:
    """Trains the configured and the tuned recipe with several seeds, and scores both."""

    inputs: TrialInputs
    """With the parameters of a whole run."""
    view_context: ViewContext
    """Inputs for sampling views; the seed is replaced."""
    views: ViewSettings
    """Epochs of views, and their share of whole captions."""
    items: Sequence[Subtask]
    """The reported items."""
    folder: Path
    """Folder of the scores, and of views and states until all scores are stored."""
    mixture: Mixture | None = None
    """Of several sources; the seed is replaced."""

    def run(
        self, tuned: Mapping[str, Value], seeds: Sequence[int], processes: int = 1
    ) -> list[Row]:
        """Compare base, configured and tuned recipe over all seeds, after training where needed.

        Args:
            tuned: the values to confirm, by dotted key.
            seeds: to train with.
            processes: trainings at the same time.
        """
        settings = self.inputs.evaluation
        base = load(self.inputs.training.model, Trainer(self.inputs.training).device)
        work = self.folder / f"{self._fingerprint(base):016x}"
        scorer = _RunScorer(self.items, Embedder(self.items, settings))
        untrained = scorer(BASE, base)
        recipes: dict[str, Mapping[str, Value]] = {CONFIGURED: {}, TUNED: tuned}
        trainings = [
            _Training(self, work / f"seed={seed}", seed, name, values)
            for seed, (name, values) in product(seeds, recipes.items())
        ]
        missing = [training for training in trainings if not training.file.exists()]
        if missing and processes > 1:
            _run_in_processes(missing, processes)
        tables: dict[int, list[Score]] = {seed: list(untrained) for seed in seeds}
        for training in trainings:
            tables[training.seed] += training.scores(scorer)
        for training in trainings:
            shutil.rmtree(training.work, ignore_errors=True)
        named = titles(self.items)
        names = {name: name for name in (BASE, CONFIGURED, TUNED)}
        pairs = [(TUNED, BASE), (TUNED, CONFIGURED)]
        return compare(list(tables.values()), names, pairs, scorer.chance, named)

    def _fingerprint(self, base: LoadedModel) -> int:
        """Hash of everything that determines the scores, besides tuned values and seed."""
        training, evaluation = self.inputs.training, self.inputs.evaluation
        resolved, method = Trainer(training).compute, method_type(self.inputs.method)
        return digest(
            f"{fingerprint.code_version(method)} {scoring.SCORING}",
            training.data_hash,
            digest(*(row.sample_id for row in training.captions)),
            base.fingerprint,
            items_fingerprint(self.items),
            json.dumps(self.inputs.parameters, sort_keys=True),
            resolved.precision,
            resolved.device.type,
            self.views.epochs,
            str(self.views.long_share),
            self.view_context.language,
            evaluation.image_precision,
            evaluation.text_precision,
            *([] if self.mixture is None else [str(self.mixture)]),
        )


@dataclass(frozen=True)
class _Training:
    """One training of the confirmation: a recipe (configured or tuned) under one seed."""

    confirmation: Confirmation
    folder: Path
    seed: int
    name: str
    values: Mapping[str, Value]

    @property
    def file(self) -> Path:
        """Path of the file with the training's score rows."""
        return self.folder / f"{self.name}-{digest(json.dumps(self.values)):016x}.parquet"

    @property
    def work(self) -> Path:
        """Folder of the seed's views and training states."""
        return self.folder / "work"

    def scores(self, scorer: _RunScorer) -> list[Score]:
        """The training's score rows, either stored ones or of a model that is trained now."""
        if not self.file.exists():
            write_rows(self.file, self._train(scorer), Score)
        return read_rows(self.file, Score)

    def views(self) -> Path:
        """Folder of the seed's views, written if missing; both recipes train on the same views."""
        folder = self.work / "views"
        if not folder.is_dir():
            confirmation = self.confirmation
            method, _ = confirmation.inputs.build()
            view_context = confirmation.view_context._replace(seed=self.seed)
            captions, views = confirmation.inputs.training.captions, confirmation.views
            mixture = confirmation.mixture and replace(confirmation.mixture, seed=self.seed)
            write(
                method,
                captions,
                view_context,
                views.epochs,
                folder,
                long_share=views.long_share,
                mixture=mixture,
            )
        return folder

    def _train(self, scorer: _RunScorer) -> list[Score]:
        """Train the recipe with the seed, and score the model on the benchmarks."""
        inputs = self.confirmation.inputs
        log.info("confirming: training with the %s values, seed %d", self.name, self.seed)
        method, recipe = inputs.build(self.values)
        state = self.work / self.file.stem  # other values are another training
        training = replace(
            inputs.training, settings=recipe, seed=self.seed, views=self.views(), resume=state
        )
        trainer = Trainer(training)
        trainer.train(method, self.name, state / "checkpoint", lambda point: None)
        return scorer(self.name, load(state / "checkpoint", trainer.device))


def _run_in_processes(trainings: Sequence[_Training], processes: int) -> None:
    """Run the missing trainings in several processes, and store their scores."""
    for training in trainings:
        training.views()
    confirmation = trainings[0].confirmation
    light = replace(
        confirmation,
        view_context=confirmation.view_context._replace(
            parses={}, sentences={}, counterfactuals={}, annotations=NO_ANNOTATIONS
        ),
    )
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, compute.use_cores, (processes,)) as pool:
        log.info("confirming: %d trainings, %d at a time", len(trainings), processes)
        jobs = [
            pool.submit(_train_in_process, replace(each, confirmation=light)) for each in trainings
        ]
        for done in as_completed(jobs):
            log.info("confirming: trained and scored the %s values, seed %d", *done.result())


def _train_in_process(training: _Training) -> tuple[str, int]:
    """Main function of a process: runs one training, and returns its recipe's name and seed."""
    items, evaluation = training.confirmation.items, training.confirmation.inputs.evaluation
    training.scores(_RunScorer(items, Embedder(items, evaluation)))
    return training.name, training.seed


@dataclass
class _RunScorer:
    """Callable that scores models on the same benchmark items, and keeps their chance levels."""

    items: Sequence[Subtask]
    embedder: Embedder
    chance: dict[Key, float] = field(default_factory=dict)
    """Chance levels of the metrics."""

    def __call__(self, name: str, model: LoadedModel) -> list[Score]:
        found = score_model(self.items, self.embedder(model, name), name)
        self.chance |= found.chance
        return found.rows


def as_comparison(rows: Sequence[Row], dataset: str, titles: Mapping[str, str]) -> Comparison:
    """Convert the rows of a confirmation to a Comparison of base, configured and tuned recipe."""
    return Comparison(
        dataset=dataset,
        models={name: ComparedModel(name, name) for name in (BASE, CONFIGURED, TUNED)},
        conclusions=summary_lines(rows),
        rows=tuple(rows),
        titles=dict(titles),
    )
