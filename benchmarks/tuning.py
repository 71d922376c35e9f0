"""What a trial costs beside a whole run, and whether it ranks recipes as whole runs do.

Ranking: recipes drawn from CLIC's search space, the configured one first, are trained at a trial's
length and in full, and scored on the validation items. Cost: the configured recipe at a trial's
length, from images to figures, as a run of its own and as a trial whose images are embedded
already. Run it on the raw, ingested and validated demo; what was done is not done again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from scipy.stats import spearmanr

from compo_pipeline.configuration.settings import parse
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import write
from compo_pipeline.models.loading import load
from compo_pipeline.storage.files import read_json
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Job, store_features, train
from compo_pipeline.tuning.settings import TuningSettings
from compo_pipeline.tuning.space import Space, Value, configured_values, read, searchable, suggest
from compo_pipeline.tuning.trial import Scorer, TrialInputs
from study import Study, configured
from tables import save, table

METHOD = "clic"
TRIAL, FULL = "trial", "full"


class Bench:
    """The demo's data, validation items and views, and measurements with them."""

    def __init__(self, seed: int) -> None:
        parameters = configured("base", "")
        self.study = Study("tuning", parameters, "val")
        self.settings = parse(TuningSettings, parameters["tuning"], "tuning")
        self.evaluation = parse(EvaluationSettings, parameters["evaluation"], "evaluation")
        space = parameters["spaces"][METHOD]
        self.space: Space = read(space, f"spaces.{METHOD}", parameters, searchable(METHOD))
        self.recipe = configured_values(self.space, parameters)
        self.seed, self.folder = seed, self.study.models / f"seed={seed}"
        study = self.study
        plan = TrainingInputs(
            captions=study.rows,
            data_hash=study.data,
            views=self.folder / "views",
            root=study.root,
            model=study.base,
            settings=study.training,
            seed=seed,
            resume=self.folder,
            features=self.folder / "features",
        )
        own = {key: parameters[key] for key in ("training", METHOD)}
        self.inputs = TrialInputs(METHOD, own, plan, self.evaluation)
        self._draw_views()

    def _draw_views(self) -> None:
        if not self.inputs.training.views.is_dir():
            study = self.study
            method, _ = self.inputs.build()
            view_context = ViewContext(study.parses, "", self.seed, 0)
            write(method, study.rows, view_context, study.views.epochs, self.inputs.training.views)

    def recipes(self) -> Iterator[Mapping[str, Value]]:
        """The configured recipe, then random ones."""
        yield self.recipe
        drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=7))
        while True:
            yield suggest(self.space, drawn.ask())

    def scorer(self) -> Scorer:
        """Scores models on the validation items; the base is scored now."""
        objective, base = self.settings.objective, load(self.study.base)
        return Scorer(self.study.subtasks, self.evaluation, objective, base)

    def trained(
        self, length: str, values: Mapping[str, Value], name: str, scorer: Scorer, **plan: Any
    ) -> dict[str, Any]:
        """Steps, seconds and score of a recipe at a length."""
        inputs = self.inputs if length == FULL else self.inputs.for_trials(self.settings.trial)
        method, recipe = inputs.build(values)
        resume = self.folder / name
        training = replace(inputs.training, settings=recipe, resume=resume, **plan)
        started = time.perf_counter()
        done = train(training, Job(method, METHOD, resume / "checkpoint"), lambda point: None)
        found = scorer(load(resume / "checkpoint", training.compute.device))
        return {
            "values": dict(values),
            "steps": done.step,
            "seconds": time.perf_counter() - started,
            "score": found.value,
            "excess": dict(found.constraints),
        }


def ranking(bench: Bench, count: int) -> dict[str, Any]:
    """Scores of recipes at both lengths, and how their ranks agree."""
    scorer = bench.scorer()
    rows = []
    for place, values in zip(range(count), bench.recipes(), strict=False):
        row = {}
        for length in (TRIAL, FULL):
            file = bench.study.output / f"{length}-{place}.json"
            if not file.exists():
                found = bench.trained(length, values, f"{length}-{place}", scorer)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(found), encoding="utf-8")
            row[length] = json.loads(file.read_text(encoding="utf-8"))
        rows.append(row)
    scores = [[row[length]["score"] for row in rows] for length in (TRIAL, FULL)]
    return {"recipes": rows, "spearman": float(spearmanr(*scores).statistic)}


def cost(bench: Bench) -> dict[str, Any]:
    """Seconds of the configured recipe at a trial's length, as a run and as a trial."""
    warm = bench.scorer()
    inputs = bench.inputs.for_trials(bench.settings.trial)
    method, recipe = inputs.build()
    store_features(replace(inputs.training, settings=recipe), method)
    trial = bench.trained(TRIAL, bench.recipe, f"trial-cost-{time.time():.0f}", warm)
    started = time.perf_counter()
    run = bench.trained(
        TRIAL, bench.recipe, f"run-cost-{time.time():.0f}", bench.scorer(), features=None
    )
    run["seconds"] = time.perf_counter() - started
    return {"trial": trial, "run": run, "ratio": trial["seconds"] / run["seconds"]}


def saved_by_stopping(study: Path, whole: int) -> dict[str, Any]:
    """Steps that a finished study's trials were trained for, beside those of as many whole ones."""
    found = read_json(study)
    ended = found["trials"].get("complete", 0) + found["trials"].get("pruned", 0)
    return {**found, "share": found["steps"] / (ended * whole)}


def main() -> None:
    """Measure cost and ranking, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=5, help="that are ranked")
    parser.add_argument("--seed", type=int, default=0)
    default = Path("data/07_model_output/scenes/clic/default/seed=0/study.json")
    parser.add_argument("--study", type=Path, default=default, help="a finished one")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    bench = Bench(arguments.seed)
    costs, ranks = cost(bench), ranking(bench, arguments.recipes)
    full = ranks["recipes"][0][FULL]["steps"]
    content: dict[str, Any] = {"cost": costs, "ranking": ranks}
    lines = [
        f"A trial at {costs['trial']['steps']} steps: {costs['trial']['seconds']:.0f} s; a run of "
        f"its own of as many steps, from images to figures: {costs['run']['seconds']:.0f} s. "
        f"Ratio {costs['ratio']:.2f}. A whole run has {full} steps: a trial's schedule is "
        f"{costs['trial']['steps'] / full:.2f} of it.",
        "",
    ]
    if arguments.study.exists():
        stopped = saved_by_stopping(arguments.study, costs["trial"]["steps"])
        content["study"] = stopped
        lines += [
            f"Stopping early left {stopped['share']:.2f} of the steps of the study "
            f"{stopped['name']} ({stopped['trials']}).",
            "",
        ]
    lines += [
        f"Validation scores of {len(ranks['recipes'])} recipes at both lengths; Spearman's rank "
        f"correlation {ranks['spearman']:.2f}.",
        "",
        *table(
            ["trial", "full", "rate", "contrastive", "s_neg", "unimodal", "positives"],
            [_line(place, row) for place, row in enumerate(ranks["recipes"])],
        ),
    ]
    save("tuning", "test", content, lines)
    print("\n".join(lines))


def _line(place: int, row: Mapping[str, Any]) -> list[str]:
    values = row[TRIAL]["values"]
    weights = [f"{values[f'clic.objective.weights.{name}']:.3g}"
               for name in ("contrastive", "s_neg", "unimodal")]  # fmt: skip
    return [
        "configured" if place == 0 else f"random {place}",
        f"{row[TRIAL]['score']:.1f}",
        f"{row[FULL]['score']:.1f}",
        f"{values['training.optimizer.lr']:.2g}",
        *weights,
        str(values["clic.objective.positives"]),
    ]


if __name__ == "__main__":
    main()
