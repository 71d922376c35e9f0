"""Scores of registered versions: cached with the version's run, or computed and cached.

Artefacts of a run:

    scores/<fingerprint>/<weights>.parquet    scores of one model on one benchmark
    scores/<fingerprint>/<weights>.sha256     digest of that file
    scores/<fingerprint>/fingerprint.json     what the fingerprint covers
    overlaps/<set>_<exact or near>.json       contamination of a set of subtasks
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from click import ClickException

import compo_pipeline
from compo_pipeline.compute import choose_device
from compo_pipeline.configuration import parse
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.benchmarks import Subtask, titles
from compo_pipeline.evaluation.benchmarks.items import sets_of
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, Estimate, Row
from compo_pipeline.evaluation.conclusions import main_metric
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.scoring import check_verdicts, score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices
from compo_pipeline.images.decoding import ImageError, locate
from compo_pipeline.models.loading import LoadedModel, ModelSettings
from compo_pipeline.records import Score, from_table, to_table
from compo_pipeline.registry import tracking
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.tracking import RunLog
from compo_pipeline.registry.verification import VerifiedVersion, verified
from compo_pipeline.registry.versions import OVERLAPS, SCORES, load_base, run_of
from compo_pipeline.storage import file_sha256, files_fingerprint
from compo_pipeline.untrusted import parse_json

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_FINGERPRINT_FILE = "fingerprint.json"
# How images were compared, by EvaluationSettings.perceptual_hash. Each result has its own file, so
# that a comparison of bytes alone does not replace one that also found near-duplicates.
_KINDS = {False: "exact", True: "near"}
_DIGITS = 16
_DIGEST = ".sha256"
Stored = TypeVar("Stored", Overlap, "ScoresFingerprint")
_Row = TypeVar("_Row", Subtask, Score)

log = logging.getLogger(__name__)


class ScoresMissing(ClickException, RuntimeError):
    """A version has no comparable scores, and `promotion.reevaluate` is off."""


class ScoresInvalid(ClickException, RuntimeError):
    """Stored scores were changed after they were computed."""


@dataclass(frozen=True, slots=True)
class ScoresFingerprint:
    """Hashes of everything that scores of a benchmark depend on, except weights and versions of
    libraries.

    Attributes:
        benchmark: its name.
        items: of all its items, as its adapter reads them, and how images are turned.
        images: of their images' bytes.
        code: of the code that scores.
        settings: precision of the towers and kind of device.
    """

    benchmark: str
    items: str
    images: str
    code: str
    settings: Mapping[str, str]

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits of all fields."""
        return _hash(json.dumps(asdict(self), sort_keys=True))

    def differences(self, other: ScoresFingerprint) -> list[str]:
        """Names of the fields that differ."""
        ours, theirs = asdict(self), asdict(other)
        return [name for name in ours if ours[name] != theirs[name]]


def scores_fingerprints(
    subtasks: Sequence[Subtask], settings: EvaluationSettings
) -> dict[str, ScoresFingerprint]:
    """Fingerprints of scores computed now, on this machine, with these settings, by benchmark."""
    kind = choose_device(settings.device, key="evaluation.device").type
    precision = {"image": settings.image_precision, "text": settings.text_precision}
    code = files_fingerprint(_code_files())
    return {
        name: ScoresFingerprint(
            benchmark=name,
            items=_items_hash(own),
            images=_images_hash(own),
            code=code,
            settings={"device": kind, **precision},
        )
        for name, own in _by_benchmark(subtasks).items()
    }


def _by_benchmark(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Subtasks or scores of each benchmark, in their order."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.benchmark, []).append(row)
    return found


def set_fingerprint(subtasks: Sequence[Subtask]) -> str:
    """Sixteen hexadecimal digits of the items of a set of subtasks and of their images' bytes."""
    return _hash(f"{_items_hash(subtasks)} {_images_hash(subtasks)}")


def store_evaluation(
    run: RunLog,
    scores: Sequence[Score],
    comparison: Comparison,
    subtasks: Sequence[Subtask],
    root: str | None,
    settings: EvaluationSettings,
) -> None:
    """Store an evaluation's scores of the fine-tuned model and of its base with the run.

    Args:
        run: of the training.
        scores: of all models.
        comparison: of the models; has their fingerprints and the measured contamination.
        subtasks: that were scored.
        root: folder of the benchmarks; None if only the dataset's own captions were scored.
        settings: of the evaluation.
    """
    by_weights = {
        comparison.fingerprints[role]: [s for s in scores if s.model == comparison.models[role]]
        for role in (BASE, FINE_TUNED)
    }
    # Before the scores: after a kill, no scores may seem to be unchecked for contamination.
    sets = sets_of(subtasks)
    for overlap in comparison.overlaps:
        own = set_fingerprint(sets[overlap.benchmark, overlap.subtask])
        name = f"{OVERLAPS}/{own}_{_KINDS[settings.perceptual_hash]}.json"
        run.document(asdict(overlap), name)
    scored = scores_fingerprints(subtasks, settings)
    store_scores(run, scored, by_weights)
    every = _hash(f"{[(each.items, each.images) for each in scored.values()]}")
    run.dataset("benchmarks", every, root, "evaluation")


def store_scores(
    run: RunLog,
    fingerprints: Mapping[str, ScoresFingerprint],
    by_weights: Mapping[str, Iterable[Score]],
) -> None:
    """Store the scores of models with a run.

    Args:
        run: of the training.
        fingerprints: of the scored benchmarks, by name.
        by_weights: scores on all these benchmarks, by the fingerprint of the model's weights.
    """
    import pyarrow.parquet as pq

    own = {weights: _by_benchmark(scores) for weights, scores in by_weights.items()}
    for name, fingerprint in fingerprints.items():
        folder = f"{SCORES}/{fingerprint.id}"
        # Before the scores: after a kill, no scores may lack it.
        run.document(asdict(fingerprint), f"{folder}/{_FINGERPRINT_FILE}")
        with tempfile.TemporaryDirectory() as temporary:
            for weights, scores in own.items():
                file = Path(temporary) / f"{weights[:_DIGITS]}.parquet"
                pq.write_table(to_table(scores.get(name, []), Score), file)
                file.with_suffix(_DIGEST).write_text(file_sha256(file), encoding="utf-8")
            run.artefact(Path(temporary), folder)


def digests(run_id: str) -> dict[str, str]:
    """sha256 of every table of scores that is stored with a run, by its path in the artefacts.

    Raises:
        ScoresInvalid: a table is not the one that was stored.
    """
    if tracking.find(run_id) is None:
        return {}
    names = [name for scored in _artefacts(run_id, SCORES) for name in _artefacts(run_id, scored)]
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: _table(run_id, name, Path(folder))[1]
            for name in names
            if name.endswith(".parquet")
        }


def run_metrics(rows: Sequence[Row], role: str) -> dict[str, float]:
    """All figures of one model as MLflow metrics, per cent.

    `headline/...` are the figures of the summary; `headline_vs_base/...`, of the fine-tuned model,
    their differences from the base in points; `test/...` are all figures. The base's own figures
    are the same in every run: they are in the artefact comparison.json.

    Args:
        rows: of the comparison.
        role: control or fine_tuned.
    """
    values: dict[Row, Estimate] = {
        row: estimate for row in rows if (estimate := getattr(row, role)) is not None
    }
    found = {}
    for row, estimate in values.items():
        # Dots: MLflow shows a section of charts for each prefix before the last slash.
        name = f"{row.benchmark}.{row.metric}.{row.name}"
        if row.headline:
            found[f"headline/{name}"] = estimate.value
        if row.headline and role == FINE_TUNED:
            found[f"headline_vs_base/{name}"] = row.vs_base.value
        found[f"test/{row.benchmark}/{row.metric}/{row.name}"] = estimate.value
    return {name: round(value, 3) for name, value in found.items()}


def headline(rows: Sequence[Row]) -> str:
    """The main figure and, in brackets, its difference from the base; empty without one."""
    row = main_metric(rows)
    if row is None:
        return ""
    return f"{row.label} {row.fine_tuned.value:.1f} ({row.vs_base.format()})"


@dataclass
class VersionScores:
    """Scores of versions and of their bases under today's fingerprints.

    Attributes:
        subtasks: to score.
        evaluation: settings of scoring.
        base: the base model's settings.
        reevaluate: whether missing scores are computed.
        store: whether computed scores are stored with the version's run.
        signing: the configured keys; with keys, only stored scores that were signed with a version
            are used.
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
        return scores_fingerprints(self.subtasks, self.evaluation)

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
            VersionError: its files are needed and are not those that were registered.
        """
        weights = version.tags.get("fingerprint", "")
        return self._scores(
            version,
            weights,
            f"version {version.version}",
            lambda: self.verified(version).model.to(self._device),
        )

    def base_of(self, version: ModelVersion) -> list[Score]:
        """The scores of the base that a version was fine-tuned from.

        Raises:
            ScoresMissing, ScoresInvalid, VersionError: as `of`.
            SettingsError: `model` names another base.
        """
        weights = version.tags.get("base_fingerprint", "")
        return self._scores(
            version,
            weights,
            f"the base of version {version.version}",
            lambda: load_base(version, self.base, self._device),
        )

    def overlaps(self, version: ModelVersion) -> list[Overlap]:
        """Contamination of sets of subtasks by a version's training data, as its run measured it.

        Of several measurements of a set the one that found most counts.
        """
        run_id = run_of(version)
        stored = _artefacts(run_id, OVERLAPS) if run_id else []
        found = []
        for own in sets_of(self.subtasks).values():
            prefix = f"{OVERLAPS}/{set_fingerprint(own)}_"
            names = [f"{prefix}{kind}.json" for kind in _KINDS.values()]
            measured = [
                overlap
                for name in names
                if run_id and name in stored and (overlap := _read(Overlap, run_id, name))
            ]
            if measured:
                found.append(max(measured, key=lambda overlap: overlap.known_images))
        return found

    @property
    def _device(self) -> str:
        return str(choose_device(self.evaluation.device, key="evaluation.device"))

    def _scores(
        self, version: ModelVersion, weights: str, name: str, load: Callable[[], LoadedModel]
    ) -> list[Score]:
        run_id = run_of(version)
        signed = None if self.signing.public_key is None else self.verified(version).scores
        found: dict[str, list[Score]] = {}
        missing: dict[str, str] = {}
        for benchmark, fingerprint in self.fingerprints.items():
            table = _cached(run_id, fingerprint, weights, signed) if run_id else None
            if table is not None:
                found[benchmark] = table
            elif run_id:
                missing[benchmark] = _why_not_cached(run_id, fingerprint)
            else:
                missing[benchmark] = "the store has no run"
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
        scores = score_model(subtasks, embedder(loaded, name), name).rows
        if self.store and run_id:
            fingerprints = {each: self.fingerprints[each] for each in missing}
            store_scores(RunLog(run_id), fingerprints, {loaded.fingerprint: scores})
        return _by_benchmark(scores)


def _cached(
    run_id: str, fingerprint: ScoresFingerprint, weights: str, signed: Mapping[str, str] | None
) -> list[Score] | None:
    """A run's stored scores of a model; None if there are none with this fingerprint.

    `signed` has the digests of the tables that a version's signature covers; others do not count.
    """
    import pyarrow.parquet as pq

    folder = f"{SCORES}/{fingerprint.id}"
    name = f"{folder}/{weights[:_DIGITS]}.parquet"
    if name not in _artefacts(run_id, folder):
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path, digest = _table(run_id, name, Path(temporary))
        if signed is not None and signed.get(name) != digest:
            log.info("The scores %s of the run %s are not signed.", name, run_id)
            return None
        try:
            return list(from_table(pq.read_table(path), Score))
        except ValueError as error:
            log.warning("The scores %s of the run %s cannot be read: %s", name, run_id, error)
            return None


def _table(run_id: str, name: str, folder: Path) -> tuple[Path, str]:
    """A copy of a stored table, and its sha256.

    Raises:
        ScoresInvalid: it is not the digest that was stored with it.
    """
    import mlflow

    client = mlflow.MlflowClient()
    recorded = str(Path(name).with_suffix(_DIGEST))
    table = Path(client.download_artifacts(run_id, name, str(folder)))
    digest = file_sha256(table)
    known = recorded in _artefacts(run_id, str(Path(name).parent))
    if not known or mlflow.artifacts.load_text(f"runs:/{run_id}/{recorded}") != digest:
        raise ScoresInvalid(
            f"the scores {name} of the run {run_id} do not have the sha256 in "
            f"{Path(recorded).name}; delete them from the run's artefacts to score again"
        )
    return table, digest


def _why_not_cached(run_id: str, fingerprint: ScoresFingerprint) -> str:
    """What differs between the scores that a run has of a benchmark and those of a fingerprint."""
    folders = _artefacts(run_id, SCORES)
    if not folders:
        return "no scores are stored with its run"
    if f"{SCORES}/{fingerprint.id}" in folders:
        return "its run has only scores of other weights (it is not registered in fp32?)"
    files = (file for folder in folders for file in _artefacts(run_id, folder))
    stored = (
        _read(ScoresFingerprint, run_id, file)
        for file in files
        if file.endswith(f"/{_FINGERPRINT_FILE}")
    )
    known = [each for each in stored if each]
    if not known:
        return "the fingerprints of its scores cannot be read"
    own = [each for each in known if each.benchmark == fingerprint.benchmark]
    if not own:
        return "its run has only scores of other benchmarks"
    closest = min((fingerprint.differences(each) for each in own), key=len)
    return f"its scores were computed with other {', '.join(closest)}"


def _artefacts(run_id: str, folder: str) -> list[str]:
    """Paths in a folder of a run's artefacts."""
    import mlflow

    return [file.path for file in mlflow.MlflowClient().list_artifacts(run_id, folder)]


def _read(row: type[Stored], run_id: str, name: str) -> Stored | None:
    """Content of a stored JSON file; None if it is not of this version's format."""
    import mlflow

    text = mlflow.artifacts.load_text(f"runs:/{run_id}/{name}")
    try:
        return parse(row, parse_json(text), Path(name).name)
    except ValueError as error:
        log.warning("%s of the run %s cannot be read: %s", name, run_id, error)
        return None


def _items_hash(subtasks: Sequence[Subtask]) -> str:
    content = hashlib.sha256()
    for task in subtasks:
        fields = asdict(task)
        # A folder of this machine, and what is for readers.
        for key in ("images", "dropped", "title", "limits"):
            del fields[key]
        if not task.limits.exif:
            fields["exif"] = False
        content.update(json.dumps(fields, sort_keys=True).encode())
    return content.hexdigest()[:_DIGITS]


def _images_hash(subtasks: Sequence[Subtask]) -> str:
    """Hash of the images and of the names of missing ones, whose items are skipped."""
    present: set[tuple[str, Path]] = set()
    missing: set[str] = set()
    places = {place for task in subtasks for item in task.items for place in task.places(item)}
    for root, image, limits in places:
        try:
            path = locate(root, image, limits)
            # Of an image in an archive, the archive's.
            present.add((f"{path.relative_to(root)}", path))
        except ImageError:
            missing.add(image)
    return _hash(f"{files_fingerprint(sorted(present))} {sorted(missing)}")


def _code_files() -> Iterator[tuple[str, Path]]:
    package = Path(compo_pipeline.__file__).parent
    for name in scoring.CODE:
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield str(file.relative_to(package)), file


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
