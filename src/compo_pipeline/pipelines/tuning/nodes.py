"""Search a method's settings, confirm the best of them, and show both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.records import Caption, Counterfactual, Parse

if TYPE_CHECKING:
    from compo_pipeline.evaluation.benchmarks import Subtask
    from compo_pipeline.tuning.outcome import Run
    from compo_pipeline.tuning.search import TuningSettings
    from compo_pipeline.tuning.space import Space
    from compo_pipeline.tuning.trial import Material


def search_space(
    tuning: Mapping[str, Any],
    spaces: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    dataset: str,
    variant: str,
    paths: Mapping[str, str],
    command: Mapping[str, Any],
    **shared: Any,
) -> dict[str, Any]:
    """Run the study to its end, and write its best values; what it found."""
    from compo_pipeline.registry.tuning_record import TuningRecord
    from compo_pipeline.seeding import digest
    from compo_pipeline.tuning import outcome
    from compo_pipeline.tuning.search import plan_of, search
    from compo_pipeline.tuning.study import RUN
    from compo_pipeline.tuning.trial import Trials

    settings = _settings(tuning)
    material = _material(benchmarks=benchmarks, **shared)
    space = _space(spaces, material.method, material.parameters)
    tags = {"dataset": dataset, "method": material.method, "variant": variant}
    tags |= {"seed": str(material.plan.seed), "data_hash": material.plan.data}
    recorder = TuningRecord.here(tags)
    trials = Trials(
        material=material.as_trial(settings.trial),
        space=space,
        wanted=settings.objective,
        questions=_questions(
            tuning["benchmarks"],
            benchmarks,
            shared["valid_captions"],
            material.plan.root,
            material.evaluation.workers,
        ),
        folder=Path(paths["tuning_trials"]) / f"{digest(settings.study.name):016x}",
        recorder=recorder,
    )
    configured = space.configured(material.parameters)
    folder = Path(paths["tuning"])
    study = search(trials, plan_of(trials, settings.study, configured, folder), recorder)
    outcome.write(study, configured, folder, _run(command))
    best = outcome.best(study)
    return {
        "run_id": study.user_attrs[RUN],
        "name": study.study_name,
        "configured": configured,
        "best": None if best is None else {"trial": best.number, "values": best.params},
        **outcome.summary(study),
    }


def confirm_best(
    study: Mapping[str, Any],
    parses: list[Parse],
    counterfactuals: list[Counterfactual],
    tuning: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    views_settings: Mapping[str, Any],
    language_model: str,
    dataset: str,
    paths: Mapping[str, str],
    **shared: Any,
) -> dict[str, Any]:
    """Base, configured and tuned recipe on the reported questions; why not, where there is none."""
    from compo_pipeline.evaluation import benchmarks as adapters
    from compo_pipeline.evaluation.comparison import by_role
    from compo_pipeline.evaluation.settings import BenchmarksSettings
    from compo_pipeline.language.parsing import load, name_and_version
    from compo_pipeline.methods.contract import Drawing
    from compo_pipeline.methods.view_tables import ViewSettings, by_sample
    from compo_pipeline.presentation.tables import show_comparison
    from compo_pipeline.registry import tracking
    from compo_pipeline.training.run import Runner
    from compo_pipeline.tuning.confirmation import ROLES, Confirmation, report

    settings = _settings(tuning)
    seeds = settings.confirmation.seeds
    if reason := _nothing_to_confirm(study, seeds):
        return {"reason": reason}
    material = _material(benchmarks=benchmarks, **shared)
    reported = parse(BenchmarksSettings, benchmarks, "benchmarks")
    first = {row.sample_id: row for row in parses if row.sentence == 0}
    language = name_and_version(load(language_model)) if parses else ""
    confirmation = Confirmation(
        material=material,
        drawing=Drawing(first, language, 0, 0, by_sample(counterfactuals)),
        epochs=parse(ViewSettings, views_settings, "views").epochs,
        questions=adapters.gather(reported, shared["valid_captions"], material.plan.root),
        folder=Path(paths["tuning_confirmed"]),
    )
    chosen = [material.plan.seed + 1 + place for place in range(seeds)]
    processes = settings.study.processes(Runner(material.plan).device)
    rows = confirmation.run(study["best"]["values"], chosen, min(processes, 2 * seeds))
    resamples = material.evaluation.bootstrap.resamples
    comparison = report(rows, dataset, resamples, adapters.titles(confirmation.questions))
    with tracking.adopt(study["run_id"]) as record:
        record.metrics({ROLES[role]: figures for role, figures in by_role(rows).items()})
        record.document(comparison.to_json(), "confirmation.json")
    show_comparison(comparison)
    return {"seeds": chosen, "comparison": comparison.to_json()}


def show_study(
    study: Mapping[str, Any],
    confirmation: Mapping[str, Any],
    tuning: Mapping[str, Any],
    spaces: Mapping[str, Any],
    paths: Mapping[str, str],
    command: Mapping[str, Any],
    method: str,
    method_settings: Mapping[str, Any],
    training: Mapping[str, Any],
) -> Path:
    """The page, kept with the study's run together with the best values and every plot."""
    from compo_pipeline.presentation import study_page as page
    from compo_pipeline.registry import tracking
    from compo_pipeline.tuning.confirmation import Confirmed
    from compo_pipeline.tuning.study import read

    kept, report = Path(paths["tuning"]), Path(paths["tuning_report"])
    page.write(
        read(_settings(tuning).study, kept),
        study["configured"],
        report,
        _space(spaces, method, {"training": training, method: method_settings}),
        _run(command),
        parse(Confirmed, confirmation, "confirmation"),
    )
    with tracking.adopt(study["run_id"]) as record:
        # The storage's URL may hold a password.
        settings = {key: value for key, value in tuning.items() if key != "study"}
        record.params({"tuning": settings, "configured": study["configured"], **_best(study)})
        record.artefact(report, "study")
        for found in sorted(kept.glob("*.yml")):
            record.artefact(found)
    return report


def _settings(tuning: Mapping[str, Any]) -> TuningSettings:
    from compo_pipeline.tuning.search import TuningSettings

    return parse(TuningSettings, tuning, "tuning")


def _material(
    valid_captions: list[Caption],
    views: Path,
    counterfactual_images: Path,
    manifest: Mapping[str, Any],
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    split: str,
    root: str,
    seed: int,
    method: str,
    features: str,
    benchmarks: Mapping[str, Any],
    method_settings: Mapping[str, Any],
) -> Material:
    from compo_pipeline.datasets.splits import training_rows
    from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
    from compo_pipeline.models.loading import ModelSettings
    from compo_pipeline.training.run import Plan
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.training.validation import held_out
    from compo_pipeline.tuning.trial import Material

    recipe = parse(TrainingSettings, training, "training")
    reported = parse(BenchmarksSettings, benchmarks, "benchmarks")
    plan = Plan(
        captions=training_rows(valid_captions, split),
        data=str(manifest["data_hash"]),
        views=views,
        root=Path(root),
        model=parse(ModelSettings, model, "model"),
        settings=recipe,
        seed=seed,
        resume=Path(features),
        made=counterfactual_images,
        features=Path(features),
        held_out=held_out(recipe.validation, valid_captions, Path(root), split, reported),
    )
    parameters = {"training": training, method: method_settings}
    return Material(method, parameters, plan, parse(EvaluationSettings, evaluation, "evaluation"))


def _questions(
    leading: Mapping[str, Any],
    reported: Mapping[str, Any],
    captions: list[Caption],
    root: Path,
    workers: int,
) -> list[Subtask]:
    """The questions that lead a study, none of them among the reported ones."""
    from compo_pipeline.evaluation import benchmarks as adapters
    from compo_pipeline.evaluation.contamination import without_reported
    from compo_pipeline.evaluation.settings import BenchmarksSettings

    key = "tuning.benchmarks"
    try:
        asked = adapters.gather(parse(BenchmarksSettings, leading, key), captions, root)
    except SettingsError as error:
        raise SettingsError(f"{key}, the questions that lead a study: {error}") from None
    published = adapters.gather(parse(BenchmarksSettings, reported, "benchmarks"), captions, root)
    return without_reported(asked, published, workers, key)


def _space(spaces: Mapping[str, Any], method: str, configured: Mapping[str, Any]) -> Space:
    from compo_pipeline.tuning import space

    if method not in spaces:
        raise SettingsError(
            f"spaces: there is none for '{method}' (there are: {', '.join(spaces)}); add "
            f"conf/base/parameters_spaces/{method}.yml"
        )
    settings = space.searchable(method)
    return space.read(spaces[method], f"spaces.{method}", configured, settings)


def _run(command: Mapping[str, Any]) -> Run:
    """How `train_eval` is told to train the best values: as this run was told, and where."""
    from compo_pipeline.registry.tracking import flatten
    from compo_pipeline.tuning.outcome import Run

    given = {key: value for key, value in command["params"].items() if key != "tuning"}
    return Run(command["env"], {**dict(flatten(given, ".")), "variant": "tuned"})


def _best(study: Mapping[str, Any]) -> dict[str, Any]:
    return {} if study["best"] is None else {"best": study["best"]["values"]}


def _nothing_to_confirm(study: Mapping[str, Any], seeds: int) -> str | None:
    if not seeds:
        return "tuning.confirmation.seeds is 0"
    if study["best"] is None:
        return "no trial meets every constraint"
    if study["best"]["values"] == study["configured"]:
        return "the configured values are the best that were tried"
    return None
