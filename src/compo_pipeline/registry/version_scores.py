"""Scores of registered versions under one stamp: kept ones where there are, else made anew."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from click import ClickException

from compo_pipeline.compute import choose_device
from compo_pipeline.evaluation.benchmarks import Subtask, titles
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel, ModelSettings
from compo_pipeline.records import Score
from compo_pipeline.registry import kept_scores, stamp
from compo_pipeline.registry.record import Record
from compo_pipeline.registry.stamp import Stamp
from compo_pipeline.registry.versions import load_base, load_version, run_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)


class ScoresMissing(ClickException, RuntimeError):
    """A version has no scores that can be compared, and making them is switched off."""


@dataclass
class VersionScores:
    """Where the scores of versions and of their bases come from.

    Attributes:
        subtasks: what is scored.
        evaluation: how.
        base: the base model's settings.
        reevaluate: whether scores are made where there are none under today's stamp.
        keep: whether scores made here are kept with the version's run.
    """

    subtasks: Sequence[Subtask]
    evaluation: EvaluationSettings
    base: ModelSettings
    reevaluate: bool = True
    keep: bool = True
    _embedder: Embedder = field(init=False)

    def __post_init__(self) -> None:
        """Versions that share an image tower share the images' embeddings."""
        self._embedder = Embedder(self.subtasks, self.evaluation)

    @cached_property
    def stamp(self) -> Stamp:
        """What scores must have been made of."""
        return stamp.make(self.subtasks, self.evaluation)

    @property
    def titles(self) -> dict[str, str]:
        """Of benchmarks that are not the official ones."""
        return titles(self.subtasks)

    def of(self, version: ModelVersion) -> list[Score]:
        """A version's scores.

        Raises:
            ScoresMissing: there are none under today's stamp, and none may be made.
        """
        what, weights = f"version {version.version}", version.tags.get("fingerprint")
        with tempfile.TemporaryDirectory() as temporary:
            loaded = None
            if weights is None:
                loaded = load_version(version, Path(temporary), self._device)
                weights = loaded.fingerprint
            known = self._kept(version, weights, what)
            if known is not None:
                return known
            return self._made(
                version, loaded or load_version(version, Path(temporary), self._device), what
            )

    def base_of(self, version: ModelVersion) -> list[Score]:
        """The scores of the base that a version was fine-tuned from.

        Raises:
            ScoresMissing: as `of`.
            SettingsError: `model` names another base.
        """
        weights = version.tags.get("base_fingerprint")
        known = None
        if weights is not None:
            known = self._kept(version, weights, f"the base of version {version.version}")
        if known is not None:
            return known
        return self._made(version, load_base(version, self.base, self._device), "base")

    def overlaps(self, version: ModelVersion) -> list[Overlap]:
        """What a version's training shares with the questions, where its run has looked."""
        run_id = run_of(version)
        return kept_scores.overlaps(run_id, self.subtasks) if run_id else []

    @property
    def _device(self) -> str:
        return str(choose_device(self.evaluation.device, key="evaluation.device"))

    def _kept(self, version: ModelVersion, weights: str, what: str) -> list[Score] | None:
        run_id = run_of(version)
        known = kept_scores.find(run_id, self.stamp, weights) if run_id else None
        if known is not None:
            return known
        reason = kept_scores.why_not(run_id, self.stamp) if run_id else "its run is not there"
        if not self.reevaluate:
            raise ScoresMissing(
                f"{what} has no scores to compare: {reason}; set promotion.reevaluate to true"
            )
        log.info("Scoring %s anew: %s.", what, reason)
        return None

    def _made(self, version: ModelVersion, loaded: LoadedModel, name: str) -> list[Score]:
        scores = score_model(self.subtasks, self._embedder(loaded, name), name).rows
        run_id = run_of(version)
        if self.keep and run_id:
            kept_scores.keep(Record(run_id), self.stamp, {loaded.fingerprint: scores})
        return scores
