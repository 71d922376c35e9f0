"""What tuned values are worth: trained anew beside the configured ones, on the reported questions.

The trial that a study calls its best was chosen by the questions that measured it. So both recipes
are trained as `train_eval` would, with seeds and views that no trial has seen.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.comparison import BASE, CONTROL, FINE_TUNED, Row, compare
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.measures import Key
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.evaluation.verdict import verdict
from compo_pipeline.methods.contract import Drawing
from compo_pipeline.methods.view_tables import write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.records import Score, from_table, to_table
from compo_pipeline.seeding import digest
from compo_pipeline.training import fingerprint
from compo_pipeline.training.run import Runner
from compo_pipeline.tuning.questions import identity
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

    def run(self, tuned: Mapping[str, Value], seeds: Sequence[int]) -> list[Row]:
        """Base, configured and tuned recipe side by side, over all seeds.

        Args:
            tuned: the values to confirm, by dotted key.
            seeds: to train with.
        """
        plan, settings = self.material.plan, self.material.evaluation
        base = load(plan.model, Runner(plan).device)
        work = self.folder / f"{self._key(base):016x}"
        scorer = _Scorer(self.questions, Embedder(self.questions, settings))
        untrained = list(scorer(BASE, base))
        recipes: dict[str, Mapping[str, Value]] = {CONFIGURED: {}, TUNED: tuned}
        tables = []
        for seed in seeds:
            one = work / f"seed={seed}"
            table = list(untrained)
            for name, values in recipes.items():
                file = one / f"{name}-{digest(json.dumps(values)):016x}.parquet"
                table += kept(file, partial(self._made, one / "work", seed, name, values, scorer))
            tables.append(table)
            shutil.rmtree(one / "work", ignore_errors=True)
        return compare(tables, ROLES, settings.bootstrap, scorer.chance)

    def _key(self, base: LoadedModel) -> int:
        """Of all that decides the scores, beside values and seed."""
        plan, parameters = self.material.plan, json.dumps(self.material.parameters, sort_keys=True)
        questions = identity(self.questions)
        code = fingerprint.of_code()
        return digest(code, plan.data, base.fingerprint, questions, parameters, self.epochs)

    def _made(
        self, work: Path, seed: int, name: str, values: Mapping[str, Value], scorer: _Scorer
    ) -> Iterator[Score]:
        """Scores of a recipe that is trained now, or further."""
        log.info("confirming: training with the %s values, seed %d", name, seed)
        method, recipe = self.material.built(applied(self.material.parameters, values))
        views = work / "views"
        if not views.is_dir():
            drawing = self.drawing._replace(seed=seed)
            write(method, self.material.plan.captions, drawing, self.epochs, views)
        plan = replace(
            self.material.plan, settings=recipe, seed=seed, views=views, resume=work / name
        )
        runner = Runner(plan)
        runner.train(method, name, work / name / "checkpoint", lambda point: None)
        return scorer(name, load(work / name / "checkpoint", runner.device))


@dataclass
class _Scorer:
    """Scores models on the same questions; the chance levels are those of the last one."""

    questions: Sequence[Subtask]
    embedder: Embedder
    chance: dict[Key, float] = field(default_factory=dict)

    def __call__(self, name: str, model: LoadedModel) -> Iterator[Score]:
        embedded = self.embedder(model, name)
        for subtask in self.questions:
            for found in score(name, subtask, embedded):
                self.chance[found.benchmark, found.metric, found.subtask] = found.chance
                yield from found.rows


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


def report(rows: Sequence[Row], dataset: str, resamples: int) -> Comparison:
    """The rows as a comparison that can be shown; the tuned recipe is held to the configured."""
    return Comparison(
        dataset=dataset,
        models=ROLES,
        weights=ROLES,
        verdict=verdict(rows, ROLES),
        resamples=resamples,
        rows=tuple(rows),
        audits=(),
        overlaps=(),
    )


def kept(file: Path, make: Callable[[], Iterable[Score]]) -> list[Score]:
    """Scores of a file, which is made where there is none; a kill leaves it whole or away."""
    if not file.exists():
        partial_file = file.with_suffix(".partial")
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_table(make(), Score), partial_file)
        partial_file.replace(file)
    return list(from_table(pq.read_table(file), Score))
