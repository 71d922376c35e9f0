"""Act on the registry's aliases, and report the decision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.presentation.pages import Link, links

if TYPE_CHECKING:
    from compo_pipeline.registry.decision import Decision
    from compo_pipeline.registry.promotion import PromotionSettings


def act(
    promotion: Mapping[str, Any],
    registration: Mapping[str, Any],
    tracking: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    model: Mapping[str, Any],
    data_root: str,
    command: Mapping[str, Any],
    report: str,
) -> Path:
    """Promote, roll back or copy; return the folder of the page about it.

    Raises:
        PromotionError: the challenger was refused, or somebody else moved an alias meanwhile.
    """
    from compo_pipeline.configuration import SettingsError, parse
    from compo_pipeline.presentation import promotion_page
    from compo_pipeline.registry import copying
    from compo_pipeline.registry import promotion as promotions
    from compo_pipeline.registry.origin import origin
    from compo_pipeline.registry.registration import RegistrationSettings
    from compo_pipeline.registry.tracking import TrackingSettings, connect

    settings = parse(promotions.PromotionSettings, promotion, "promotion")
    registered = parse(RegistrationSettings, registration, "registration")
    # This pipeline logs into no run of its own, so no hook has set the store. Hooks have gone to
    # the project's folder.
    connect(parse(TrackingSettings, tracking, "tracking"), Path.cwd())
    folder = Path(report)
    folder.mkdir(parents=True, exist_ok=True)
    facts, related = origin(command, "promotion"), _links(folder)
    if settings.action == "copy":
        copied = copying.copy_version(registered.name, settings.copy, dry_run=settings.dry_run)
        promotion_page.write_copy(registered.name, settings, copied, facts, related, folder)
        return folder
    if settings.action == "rollback":
        decided = promotions.roll_back(registered.name, settings)
    else:
        if registered.alias is None:
            raise SettingsError(
                "registration.alias: expected the alias of the version to promote, got null"
            )
        parts = (evaluation, benchmarks, model, data_root)
        decided = _promoted(settings, registered.name, registered.alias, *parts)
    page = promotion_page.write_decision(decided, facts, related, folder)
    promotion_page.show(decided)
    if decided.failed:
        raise promotions.PromotionError(
            f"{decided.summary()} More in {page}; the rules: promotion.gate"
        )
    return folder


def _promoted(
    settings: PromotionSettings,
    name: str,
    alias: str,
    evaluation: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    model: Mapping[str, Any],
    data_root: str,
) -> Decision:
    from kedro.io import DatasetError

    from compo_pipeline.configuration import SettingsError, parse
    from compo_pipeline.datasets.rows import RowsDataset
    from compo_pipeline.evaluation import benchmarks as adapters
    from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
    from compo_pipeline.models.loading import ModelSettings
    from compo_pipeline.registry.promotion import promote
    from compo_pipeline.registry.version_scores import VersionScores

    scored = parse(EvaluationSettings, evaluation, "evaluation")
    wanted = parse(BenchmarksSettings, benchmarks, "benchmarks")
    # Read here and not through the catalog: rolling back and copying need no data.
    captions = RowsDataset(filepath=settings.captions, row="Caption")
    try:
        asked = [] if wanted.retrieval.split is None else captions.load()
    except DatasetError as error:
        raise SettingsError(f"promotion.captions: {error}") from None
    scorer = VersionScores(
        subtasks=adapters.gather(wanted, asked, Path(data_root)),
        evaluation=scored,
        base=parse(ModelSettings, model, "model"),
        reevaluate=settings.reevaluate,
        keep=not settings.dry_run,
    )
    return promote(name, alias, scorer, settings, scored.bootstrap)


def _links(folder: Path) -> list[Link]:
    """Reports of the runs of this dataset; the versions that were decided about are among them."""
    reports = sorted(folder.parent.glob("*/*/seed=*/report/report.html"))
    return links(folder, {" ".join(page.parts[-5:-2]): (page, "kedro run") for page in reports})
