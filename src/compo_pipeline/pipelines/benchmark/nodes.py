"""Score a list of models, and show the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.records import Score

if TYPE_CHECKING:
    from compo_pipeline.evaluation.contamination import TrainingRows
    from compo_pipeline.evaluation.settings import EvaluationSettings, TrainingTables


def score_list(
    models: str,
    model_lists: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    data: Mapping[str, Any],
    scenes: Mapping[str, Any],
    registration: Mapping[str, Any],
    suite: Mapping[str, Any],
    embeddings: str,
) -> tuple[list[Score], dict[str, Any]]:
    """Scores of every item, and the comparison of the models with the first one."""
    from dataclasses import replace

    from compo_pipeline.compute import choose_device, environment
    from compo_pipeline.configuration import SettingsError, parse
    from compo_pipeline.evaluation.benchmarks import from_files
    from compo_pipeline.evaluation.references import read_references
    from compo_pipeline.evaluation.settings import (
        BenchmarksSettings,
        EvaluationSettings,
        SuiteSettings,
    )
    from compo_pipeline.evaluation.suite import listed_models, score_suite
    from compo_pipeline.registry.settings import RegistrationSettings
    from compo_pipeline.registry.versions import load_model

    settings = parse(EvaluationSettings, evaluation, "evaluation")
    wanted = parse(BenchmarksSettings, benchmarks, "benchmarks")
    asked = parse(SuiteSettings, suite, "suite")
    chosen = listed_models(models, model_lists)
    references, unmatched = read_references(asked.references)
    known = _training_rows(asked.training, Path(data["root"]), settings)
    render_benchmarks(data, scenes, benchmarks)
    subtasks = from_files(wanted)
    if not subtasks:
        raise SettingsError("benchmarks: none is enabled; name one at benchmarks.sets")
    device = choose_device(settings.device, key="evaluation.device")
    signing = parse(RegistrationSettings, registration, "registration").signing
    loaders = {name: partial(load_model, each, device, signing) for name, each in chosen.items()}
    scores, found = score_suite(subtasks, loaders, settings, wanted, Path(embeddings), known)
    found = replace(
        found, references=references, unmatched=unmatched, environment=environment(device)
    )
    return scores, found.to_json()


def _training_rows(
    tables: TrainingTables, root: Path, settings: EvaluationSettings
) -> TrainingRows | None:
    """What identifies the rows of these tables; None if none are named."""
    from compo_pipeline.configuration import SettingsError
    from compo_pipeline.evaluation.contamination import training_rows
    from compo_pipeline.records import Caption, Fact
    from compo_pipeline.tables import read_rows

    if tables.captions is None or tables.facts is None:
        return None
    try:
        captions = read_rows(Path(tables.captions), Caption)
        return training_rows(captions, read_rows(Path(tables.facts), Fact), root, settings)
    except (OSError, ValueError) as error:
        raise SettingsError(f"suite.training: {error}") from error


def render_benchmarks(
    data: Mapping[str, Any], scenes: Mapping[str, Any], benchmarks: Mapping[str, Any]
) -> None:
    """Render the scenes whose benchmarks are asked for; nothing is done for other data."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.datasets.settings import SCENES, DataSettings
    from compo_pipeline.scenes.dataset import SceneSettings, write

    settings = parse(DataSettings, data, "data")
    root = benchmarks["root"]
    if settings.format == SCENES and root is not None and settings.root in Path(root).parents:
        write(parse(SceneSettings, scenes, "scenes"), settings.root)


def write_suite_page(
    suite: Mapping[str, Any],
    suite_scores: list[Score],
    models: str,
    benchmarks: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    command: Mapping[str, Any],
    folder: str,
) -> Path:
    """Write the page of a list of models, and print its headline metrics."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.evaluation.benchmarks import from_files
    from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
    from compo_pipeline.evaluation.suite import Suite
    from compo_pipeline.presentation import suite_page
    from compo_pipeline.registry.tracking import provenance

    found = Suite.from_json(suite)
    facts = {
        **provenance(command, "benchmark"),
        "list": models,
        "benchmarks": str(benchmarks["root"] or "folders of their own"),
        "precision": found.precision,
        "ties": found.ties,
        "EXIF orientation": "applied" if found.exif else "ignored",
        "environment": found.environment,
        "training rows": "counted among the items" if found.overlaps else "none (suite.training)",
    }
    cards = suite_page.cards_of(
        found,
        suite_scores,
        from_files(parse(BenchmarksSettings, benchmarks, "benchmarks")),
        parse(EvaluationSettings, evaluation, "evaluation").gallery,
    )
    suite_page.show(found)
    return suite_page.write(found, f"Models of the list {models}", facts, Path(folder), cards)
