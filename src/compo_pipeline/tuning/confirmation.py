"""What tuned values are worth: trained anew beside the configured ones, on the reported questions.

The trial that a study calls its best was chosen by the questions that measured it. So both recipes
are trained as `train_eval` would, with seeds and views that no trial has seen.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq

from compo_pipeline import compute
from compo_pipeline.evaluation.benchmarks import Key, Subtask, titles
from compo_pipeline.evaluation.comparison import BASE, CONTROL, FINE_TUNED, Row, compare
from compo_pipeline.evaluation.conclusions import summary_lines
from compo_pipeline.evaluation.contamination import items_fingerprint
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.methods.contract import Drawing
from compo_pipeline.methods.view_tables import write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.records import Score, from_table, to_table
from compo_pipeline.seeding import digest
from compo_pipeline.training import fingerprint
from compo_pipeline.training.run import Runner
from compo_pipeline.tuning.space import Value, applied
from compo_pipeline.tuning.trial import Material

CONFIGURED, TUNED = "configured", "tuned"
# The roles that `compare` knows: differences are the tuned recipe's, to the base and to the
# configured one.
ROLES = {BASE: BASE, CONTROL: CONFIGURED, FINE_TUNED: TUNED}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Confirmation:
    """Trains two recipes under several seeds and scores them. What is done is not done again.

    Attributes:
        material: with the parameters of a whole run.
        drawing: what views are drawn from; each seed has its own.
        epochs: of views.
        questions: the reported ones.
        folder: for views and states, which go when they have served, and for the scores, which
            stay.
    """

    material: Material
    drawing: Drawing
    epochs: int
    questions: Sequence[Subtask]
    folder: Path

    def run(
        self, tuned: Mapping[str, Value], seeds: Sequence[int], processes: int = 1
    ) -> list[Row]:
        """Base, configured and tuned recipe side by side, over all seeds.

        Args:
            tuned: the values to confirm, by dotted key.
            seeds: to train with.
            processes: that train at once.
        """
        plan, settings = self.material.plan, self.material.evaluation
        base = load(plan.model, Runner(plan).device)
        work = self.folder / f"{self._key(base):016x}"
        scorer = _Scorer(self.questions, Embedder(self.questions, settings))
        untrained = scorer(BASE, base)
        recipes: dict[str, Mapping[str, Value]] = {CONFIGURED: {}, TUNED: tuned}
        jobs = [
            _Job(self, work / f"seed={seed}", seed, name, values)
            for seed, (name, values) in product(seeds, recipes.items())
        ]
        missing = [job for job in jobs if not job.file.exists()]
        if missing and processes > 1:
            _spread(missing, processes)
        tables: dict[int, list[Score]] = {seed: list(untrained) for seed in seeds}
        for job in jobs:
            tables[job.seed] += job.scores(scorer)
        for job in jobs:
            shutil.rmtree(job.work, ignore_errors=True)
        named = titles(self.questions)
        return compare(list(tables.values()), ROLES, settings.bootstrap, scorer.chance, named)

    def _key(self, base: LoadedModel) -> int:
        """Of all that decides the scores, beside values and seed."""
        plan, scoring = self.material.plan, self.material.evaluation
        compute = Runner(plan).compute
        return digest(
            fingerprint.of_code("evaluation", "language"),
            plan.data,
            digest(*(row.sample_id for row in plan.captions)),
            base.fingerprint,
            items_fingerprint(self.questions),
            json.dumps(self.material.parameters, sort_keys=True),
            compute.precision,
            compute.device.type,
            self.epochs,
            self.drawing.language,
            scoring.image_precision,
            scoring.text_precision,
        )


@dataclass(frozen=True)
class _Job:
    """One recipe under one seed."""

    of: Confirmation
    folder: Path
    seed: int
    name: str
    values: Mapping[str, Value]

    @property
    def file(self) -> Path:
        """Where its scores are kept."""
        return self.folder / f"{self.name}-{digest(json.dumps(self.values)):016x}.parquet"

    @property
    def work(self) -> Path:
        """For the seed's views and states."""
        return self.folder / "work"

    def scores(self, scorer: _Scorer) -> list[Score]:
        """Those that are kept, or else of a model that is trained now, or further."""
        return kept(self.file, partial(self._made, scorer))

    def views(self) -> Path:
        """Views of the seed; both recipes show the same, for only their losses differ."""
        folder = self.work / "views"
        if not folder.is_dir():
            material = self.of.material
            method, _ = material.built(material.parameters)
            drawing = self.of.drawing._replace(seed=self.seed)
            write(method, material.plan.captions, drawing, self.of.epochs, folder)
        return folder

    def _made(self, scorer: _Scorer) -> list[Score]:
        material, name = self.of.material, self.name
        log.info("confirming: training with the %s values, seed %d", name, self.seed)
        method, recipe = material.built(applied(material.parameters, self.values))
        state = self.work / self.file.stem  # other values are another training
        own = replace(material.plan, settings=recipe, seed=self.seed)
        runner = Runner(replace(own, views=self.views(), resume=state))
        runner.train(method, name, state / "checkpoint", lambda point: None)
        return scorer(name, load(state / "checkpoint", runner.device))


def _spread(jobs: Sequence[_Job], processes: int) -> None:
    """Do what is missing in several processes; what they make is found on disk."""
    for job in jobs:
        job.views()
    # With the views on disk, nobody draws: parses need not travel.
    drawn = jobs[0].of.drawing._replace(parses={}, counterfactuals={})
    light = replace(jobs[0].of, drawing=drawn)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, compute.use_cores, (processes,)) as pool:
        log.info("confirming: %d trainings, %d at a time", len(jobs), processes)
        for done in as_completed([pool.submit(_work, replace(job, of=light)) for job in jobs]):
            log.info("confirming: trained and scored the %s values, seed %d", *done.result())


def _work(job: _Job) -> tuple[str, int]:
    """What a process does."""
    questions = job.of.questions
    job.scores(_Scorer(questions, Embedder(questions, job.of.material.evaluation)))
    return job.name, job.seed


@dataclass
class _Scorer:
    """Scores models on the same questions; the chance levels are those of the last one."""

    questions: Sequence[Subtask]
    embedder: Embedder
    chance: dict[Key, float] = field(default_factory=dict)

    def __call__(self, name: str, model: LoadedModel) -> list[Score]:
        found = score_model(self.questions, self.embedder(model, name), name)
        self.chance |= found.chance
        return found.rows


@dataclass(frozen=True)
class Confirmed:
    """A confirmation as it is kept.

    Attributes:
        seeds: both recipes were trained with.
        comparison: of base, configured and tuned recipe.
        reason: why there is none.
    """

    seeds: tuple[int, ...] = ()
    comparison: Comparison | None = None
    reason: str | None = None


def report(
    rows: Sequence[Row], dataset: str, resamples: int, titles: Mapping[str, str]
) -> Comparison:
    """The rows as a comparison that can be shown; the tuned recipe is held to the configured."""
    return Comparison(
        dataset=dataset,
        models=ROLES,
        weights=ROLES,
        conclusions=summary_lines(rows, ROLES),
        resamples=resamples,
        rows=tuple(rows),
        audits=(),
        overlaps=(),
        titles=dict(titles),
    )


def kept(file: Path, make: Callable[[], Iterable[Score]]) -> list[Score]:
    """Scores of a file, which is made where there is none; a kill leaves it whole or away."""
    if not file.exists():
        partial_file = file.with_suffix(".partial")
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_table(make(), Score), partial_file)
        partial_file.replace(file)
    return list(from_table(pq.read_table(file), Score))
