"""A search: the trials of a study, begun or joined, until all of them have finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline import compute
from compo_pipeline.evaluation.contamination import items_fingerprint
from compo_pipeline.evaluation.settings import BenchmarksSettings
from compo_pipeline.models.loading import load
from compo_pipeline.training import fingerprint
from compo_pipeline.training.run import Runner
from compo_pipeline.tuning import workers
from compo_pipeline.tuning.judging import ObjectiveSettings
from compo_pipeline.tuning.recording import Recorder
from compo_pipeline.tuning.settings import ConfirmationSettings, StudySettings, TrialSettings
from compo_pipeline.tuning.storage import connect
from compo_pipeline.tuning.study import Plan
from compo_pipeline.tuning.terminal import Board
from compo_pipeline.tuning.trial import Trials

if TYPE_CHECKING:
    import optuna

    from compo_pipeline.tuning.space import Value


@dataclass(frozen=True)
class TuningSettings:
    """The YAML key `tuning`.

    Attributes:
        study: where it is kept, how many trials, how they are proposed and pruned.
        benchmarks: the questions that lead it; they share nothing with the reported ones.
        objective: what is maximised, and what may not be lost for it.
        trial: how a trial's training differs from the recipe's.
        confirmation: of the best values, on the reported questions.
    """

    study: StudySettings
    benchmarks: BenchmarksSettings
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    trial: TrialSettings = field(default_factory=TrialSettings)
    confirmation: ConfirmationSettings = field(default_factory=ConfirmationSettings)


def plan_of(
    trials: Trials, settings: StudySettings, configured: Mapping[str, Value], folder: Path
) -> Plan:
    """The study of these trials.

    Args:
        trials: its objective.
        settings: of the study.
        configured: what the configuration says of the searched parameters.
        folder: for its file.
    """
    wanted, material = trials.wanted, trials.material
    count = settings.processes(Runner(material.plan).device)
    return Plan(
        settings=replace(settings, workers=count),
        folder=folder,
        directions=("maximize", "maximize") if wanted.second else ("maximize",),
        configured=configured,
        identity=_identity(trials),
        fits=trials.space.fits,
        seed=material.plan.seed,
    )


def search(trials: Trials, plan: Plan, recorder: Recorder) -> optuna.Study:
    """Run the trials, or those that are left, and show how they stand.

    Images are embedded before the first trial begins, once for all trials and workers.

    Args:
        trials: the objective.
        plan: of the study, from `plan_of`.
        recorder: of the study.

    Raises:
        SettingsError: the storage cannot be used, it holds another study of this name, or every
            trial ends with a configuration error.
        KeyboardInterrupt: it was told to stop; the same call goes on.
    """
    # First: embedding takes minutes, and a storage that cannot be used should not wait for it.
    connect(plan.settings.storage, plan.folder).engine.dispose()
    method, recipe = trials.material.built(trials.material.parameters)
    Runner(replace(trials.material.plan, settings=recipe)).embed_ahead(method)
    settings = plan.settings
    with Board(settings.trials, settings.retries) as board:
        prepare = partial(compute.use_cores, settings.workers or 1)
        return workers.run(plan, trials, recorder, prepare, board.show)


def _identity(trials: Trials) -> dict[str, str]:
    """What makes trials comparable: all that decides a trial's value beside its parameters."""
    material, wanted = trials.material, trials.wanted
    plan = material.plan
    parameters = dict(material.parameters)
    recipe = {
        key: value
        for key, value in parameters["training"].items()
        if key not in ("device", "workers", "log_every", "overwrite")
    }
    recipe["precision"] = Runner(plan).compute.precision
    return {
        "method": material.method,
        "configuration of the method": json.dumps(parameters[material.method], sort_keys=True),
        "recipe": json.dumps(recipe, sort_keys=True),
        "space": str(trials.space.parameters),
        "objective": json.dumps(asdict(wanted)),
        "validation questions": items_fingerprint(trials.questions),
        "scoring": f"{material.evaluation.image_precision} {material.evaluation.text_precision}",
        "data": plan.data,
        "views": fingerprint.of_folder(plan.views),
        "base model": load(plan.model).fingerprint,
        "training code": fingerprint.of_code(),
        "seed": str(plan.seed),
    }
