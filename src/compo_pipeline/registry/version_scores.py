"""Scores of registered versions and of their bases: stored ones, or computed and stored."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.compute import choose_device
from compo_pipeline.configuration import PlainError
from compo_pipeline.evaluation.benchmarks.items import Subtask, titles
from compo_pipeline.evaluation.comparison import BASE
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices
from compo_pipeline.evaluation.verdicts import check_verdicts
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.records import Score
from compo_pipeline.registry import scores, tracking
from compo_pipeline.registry.run_log import RunLog
from compo_pipeline.registry.scores import ScoresFingerprint, ScoresInvalid
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.verification import VerifiedVersion, load_base, verified

# Names of the models in computed scores.
VERSION = "version"

log = logging.getLogger(__name__)


class ScoresMissing(PlainError, RuntimeError):
    """A version has no comparable scores, and `promotion.reevaluate` is off."""


@dataclass
class VersionScores:
    """Scores of versions and of their bases under today's fingerprints.

    Attributes:
        subtasks: to score.
        evaluation: settings of scoring.
        base: the base model's settings.
        reevaluate: whether missing scores are computed.
        store: whether computed scores are stored with the version's run.
        signing: the configured keys. Stored scores that a version's evidence names must be those;
            with keys, others are not used.
        slices: of the items, for the gate's rules.
    """

    subtasks: Sequence[Subtask]
    evaluation: EvaluationSettings
    base: ModelSettings
    reevaluate: bool = True
    store: bool = True
    signing: SigningSettings = field(default_factory=SigningSettings)
    slices: ItemSlices = field(default_factory=dict)
    _embedders: dict[tuple[str, ...], Embedder] = field(init=False, default_factory=dict)
    _folder: tempfile.TemporaryDirectory[str] = field(
        init=False, default_factory=tempfile.TemporaryDirectory
    )
    _verified: dict[str, VerifiedVersion] = field(init=False, default_factory=dict)

    @cached_property
    def fingerprints(self) -> dict[str, ScoresFingerprint]:
        """Fingerprints that cached scores must have, by benchmark."""
        return scores.scores_fingerprints(self.subtasks, self.evaluation)

    @property
    def titles(self) -> dict[str, str]:
        """Titles of benchmarks that are not the official ones."""
        return titles(self.subtasks)

    def verified(self, version: ModelVersion) -> VerifiedVersion:
        """A version's verified files, copied once.

        Raises:
            VersionError: they are not those that were registered.
        """
        if version.version not in self._verified:
            folder = Path(self._folder.name) / str(version.version)
            self._verified[version.version] = verified(version, folder, self.signing)
        return self._verified[version.version]

    def of(self, version: ModelVersion) -> list[Score]:
        """A version's scores.

        Raises:
            ScoresMissing: none are cached, and `reevaluate` is off.
            ScoresInvalid: the cached ones were changed.
            VersionError: its files are not those that were registered.
        """
        files = self.verified(version)
        return self._scores(
            files,
            files.lineage.fingerprint or "",
            f"version {version.version}",
            lambda: files.model.to(self._device),
        )

    def base_of(self, version: ModelVersion) -> list[Score]:
        """The scores of the base that a version was fine-tuned from.

        Raises:
            ScoresMissing, ScoresInvalid, VersionError: as `of`.
            SettingsError: `model` names another base.
        """
        files = self.verified(version)
        return self._scores(
            files,
            files.lineage.base_fingerprint or "",
            f"the base of version {version.version}",
            lambda: load_base(files.lineage, self.base, self._device),
        )

    def compute(self, version: ModelVersion, run: RunLog) -> list[Score]:
        """Scores of a version, then of its base, computed anew and stored with a run.

        Raises:
            VersionError: its files are not those that were registered.
            SettingsError: `model` names another base.
        """
        files = self.verified(version)
        base = load_base(files.lineage, self.base, self._device)
        embedder = Embedder(self.subtasks, self.evaluation)
        found: list[Score] = []
        for name, loaded in ((VERSION, files.model.to(self._device)), (BASE, base)):
            rows = score_model(self.subtasks, embedder(loaded, name), name).rows
            scores.store_scores(run, self.fingerprints, {loaded.fingerprint: rows})
            found += rows
        return found

    def overlaps(self, version: ModelVersion) -> list[Overlap]:
        """Contamination of sets of subtasks by a version's training data, from its files.

        Raises:
            VersionError: the files are not those that were registered.
        """
        return self.verified(version).evidence.overlaps_of(self.subtasks)

    @property
    def _device(self) -> str:
        return str(choose_device(self.evaluation.device, key="evaluation.device"))

    def _scores(
        self, files: VerifiedVersion, weights: str, name: str, load: Callable[[], LoadedModel]
    ) -> list[Score]:
        run_id = tracking.stored_run(files.lineage.run_id)
        # What promotion scored after the registration is stored too, and cannot be signed.
        others = self.signing.public_key is None
        found: dict[str, list[Score]] = {}
        missing: dict[str, str] = {}
        for benchmark, fingerprint in self.fingerprints.items():
            table = scores.stored_scores(
                run_id, fingerprint, weights, files.evidence.scores, others=others
            )
            if table is None:
                missing[benchmark] = scores.why_not_stored(run_id, fingerprint)
            else:
                found[benchmark] = table
        try:
            check_verdicts([score for table in found.values() for score in table], self.subtasks)
        except ValueError as error:
            raise ScoresInvalid(f"the stored scores of {name}: {error}") from None
        if missing:
            found |= self._computed(name, missing, load, run_id)
        return [score for benchmark in self.fingerprints for score in found.get(benchmark, ())]

    def _computed(
        self,
        name: str,
        missing: Mapping[str, str],
        load: Callable[[], LoadedModel],
        run_id: str | None,
    ) -> dict[str, list[Score]]:
        """Scores on the benchmarks that have none cached, by benchmark; they are stored."""
        reasons = "; ".join(
            f"{why} ({', '.join(each for each in missing if missing[each] == why)})"
            for why in dict.fromkeys(missing.values())
        )
        if not self.reevaluate:
            raise ScoresMissing(
                f"{name} has no scores to compare: {reasons}; set promotion.reevaluate to true"
            )
        log.info("Scoring %s: %s.", name, reasons)
        subtasks = [task for task in self.subtasks if task.benchmark in missing]
        # Versions with one image tower share the images' embeddings.
        embedder = self._embedders.setdefault(tuple(missing), Embedder(subtasks, self.evaluation))
        loaded = load()
        rows = score_model(subtasks, embedder(loaded, name), name).rows
        if self.store and run_id:
            fingerprints = {each: self.fingerprints[each] for each in missing}
            scores.store_scores(RunLog(run_id), fingerprints, {loaded.fingerprint: rows})
        return scores.by_benchmark(rows)
