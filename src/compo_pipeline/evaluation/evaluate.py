"""Evaluation of the models of a run: scores, comparison, and the state of the benchmark items."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compo_pipeline.benchmarks.items import Key, Subtask, sets_of, sources, titles
from compo_pipeline.benchmarks.loading import not_run_labels
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.compute import choose_device
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.records import Score, ScoredItem
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import (
    BASE,
    CONTROL,
    FINE_TUNED,
    Row,
    as_one_family,
    compare,
    compare_slices,
    run_pairs,
)
from compo_pipeline.evaluation.conclusions import summary_lines
from compo_pipeline.evaluation.contamination import (
    Overlap,
    TrainingRows,
    count_overlaps,
    images_hash,
    items_hash,
)
from compo_pipeline.evaluation.embed import Embedded, Embedder, Tokens
from compo_pipeline.evaluation.metrics import benchmark_labels
from compo_pipeline.evaluation.scorers import Scorer, score_pairs
from compo_pipeline.evaluation.scoring import SCORING, score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices, scored_items
from compo_pipeline.models.cost import ModelCost
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import CONFIG_FILE

SLICE_ITEMS = 50
"""The least number of scored items of a metric within a slice."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of a benchmark set's skipped, degenerate and truncated items and texts.

    They are those under the base's tokenizer. `reasons` counts the items whose image could not be
    used, by reason; `texts` are distinct; `dropped` counts items of the files that the official
    code leaves out; `deviations` say in what scoring differs from the official run. `content` is a
    hash of the items' texts, whatever their order and names.
    """

    benchmark: str
    subtask: str
    items: int
    skipped: int
    reasons: dict[str, int]
    texts: int
    truncated: int
    degenerate: int
    dropped: dict[str, int] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()
    content: str = ""


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """Names and weights' fingerprint of a model in a comparison.

    Attributes:
        name: name in the scores.
        label: name for readers.
        weights: the name of its weights.
        fingerprint: fingerprint of its weights.
        cost: its size and the operations of its towers, if they are known.
        not_measured: what of the benchmarks could not be measured of it, and why.
    """

    name: str
    label: str
    weights: str = ""
    fingerprint: str = ""
    cost: ModelCost | None = None
    not_measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoresFingerprint:
    """Fingerprint of what determines a benchmark's scores: items, images, code and settings.

    Weights and versions of libraries are left out.

    Attributes:
        benchmark: name of the benchmark.
        items: hash of all items, as the benchmark's adapter reads them, and of how images are
            turned.
        images: hash of the bytes of all images.
        code: version of scoring (`scoring.SCORING`).
        settings: precision of the towers and kind of device.
    """

    benchmark: str
    items: str
    images: str
    code: str
    settings: Mapping[str, str]

    @classmethod
    def of(
        cls, subtasks: Sequence[Subtask], settings: EvaluationSettings
    ) -> list[ScoresFingerprint]:
        """Fingerprint of each benchmark's scores, as they would be computed on this machine."""
        kind = choose_device(settings.device, key="evaluation.device").type
        precision = {"image": settings.precision, "text": settings.precision}
        by_benchmark: dict[str, list[Subtask]] = {}
        for task in subtasks:
            by_benchmark.setdefault(task.benchmark, []).append(task)
        return [
            cls(
                name, items_hash(own), images_hash(own), str(SCORING), {"device": kind, **precision}
            )
            for name, own in by_benchmark.items()
        ]

    def differences(self, other: ScoresFingerprint) -> list[str]:
        """Names of the fields in which two fingerprints differ."""
        ours, theirs = asdict(self), asdict(other)
        return [name for name in ours if ours[name] != theirs[name]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of several models on the same benchmark items.

    The first model is the reference, unless recipes of several bases are compared. A run has the
    models base, control and fine_tuned; a list of models, two of them, a challenger and its
    opponent, or recipes have names of their own. Values
    are per cent. `conclusions` are the lines of `conclusions.summary_lines`. `titles` are labels of
    benchmarks whose files are not the official ones. `scored` has a fingerprint of each benchmark's
    scores, and `sources` says where its items are from (`Subtask.source`). `suite` is
    `benchmarks.suite`, and `not_run` are the labels of optional benchmarks whose files are not
    there. `settings` of scoring that decide results, label to text.
    """

    models: dict[str, ComparedModel]
    rows: tuple[Row, ...]
    dataset: str = ""
    conclusions: tuple[str, ...] = ()
    audits: tuple[Audit, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    titles: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    slices: tuple[Row, ...] = ()
    scored: tuple[ScoresFingerprint, ...] = ()
    suite: str = ""
    not_run: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def benchmarks(self) -> dict[str, str]:
        """Labels of the benchmarks, by name."""
        return benchmark_labels(self.titles)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the models, by name."""
        return {name: model.label for name, model in self.models.items()}

    @property
    def reference(self) -> str:
        """Name of the first model, with which all further models are compared."""
        return next(iter(self.models))

    @property
    def against(self) -> dict[str, str]:
        """Name of the base or baseline of each further model, by the name of that model."""
        against: dict[str, str] = {}
        for each in (each for row in self.rows for each in row.differences):
            against.setdefault(each.model, each.against)
        return {name: against[name] for name in self.models if name in against}

    @property
    def headlines(self) -> list[Row]:
        """Rows of the headline metrics, or all rows if there is no headline metric."""
        return [row for row in self.rows if row.headline] or list(self.rows)

    @property
    def left_out(self) -> list[str]:
        """Lines about items left out, degenerate or truncated, and about what was not measured.

        A line per benchmark, also if it was scored in another way than in the official run.
        """
        lines = []
        for benchmark in dict.fromkeys(each.benchmark for each in self.audits):
            own = [each for each in self.audits if each.benchmark == benchmark]
            names = ("items", "skipped", "degenerate", "texts", "truncated")
            items, skipped, degenerate, texts, truncated = (
                sum(getattr(each, name) for each in own) for name in names
            )
            dropped: Counter[str] = sum((Counter(each.dropped) for each in own), Counter())
            parts = [f"{count:,} items are left out: {why}" for why, count in dropped.items()]
            if skipped:
                reasons = ", ".join(sorted({reason for each in own for reason in each.reasons}))
                parts.append(f"{skipped:,} of {items:,} items have no usable image ({reasons})")
            if degenerate:
                parts.append(f"{degenerate:,} degenerate items")
            if truncated:
                parts.append(f"{truncated:,} of {texts:,} texts were truncated")
            if why := dict.fromkeys(why for each in own for why in each.deviations):
                parts.append(f"no published values beside it: {', '.join(why)}")
            if parts:
                lines.append(f"{self.benchmarks.get(benchmark, benchmark)}: {'; '.join(parts)}")
        for model in self.models.values():
            if model.not_measured:
                lines.append(f"{model.label}: not measured: {', '.join(model.not_measured)}")
        if self.not_run:
            lines.append(f"Not run, as their files are not there: {', '.join(self.not_run)}")
        return lines

    @property
    def deviating(self) -> set[str]:
        """Names of the benchmarks that were not scored as in their official run.

        Their values are no counterparts of published ones.
        """
        return {each.benchmark for each in self.audits if each.deviations}

    def require(self, fingerprint: str) -> None:
        """Raise an error unless the scored fine-tuned model has this fingerprint.

        Raises:
            SettingsError: another one was scored.
        """
        scored = self.models[FINE_TUNED].fingerprint
        if scored != fingerprint:
            raise SettingsError(
                f"comparison: it is of weights with the fingerprint {scored[:16] or '(none)'}, the "
                f"checkpoint's is {fingerprint[:16]}; run `kedro run --pipeline=evaluation` again"
            )


@dataclass(frozen=True, slots=True)
class ScoredModels:
    """Score rows of several models on the same items, with chance levels and audits.

    Attributes:
        rows: rows of all models, on disk.
        models: models in the order in which they were scored: by role (the base first), or by name.
        chance: level of each metric of each subtask.
        audits: state of the items under the first model's tokenizer.
    """

    rows: Table[Score]
    models: dict[str, ComparedModel]
    chance: dict[Key, float]
    audits: tuple[Audit, ...]


def score_models(
    subtasks: Sequence[Subtask],
    models: Mapping[str, Callable[[], LoadedModel | Scorer]],
    settings: EvaluationSettings,
    store: Path | None = None,
    named: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> ScoredModels:
    """Score models one after another, and audit the items under the first model's tokenizer.

    Args:
        subtasks: subtasks to score.
        models: loaders by role or name. One model is in memory at a time.
        settings: batches, precision.
        store: folder of stored embeddings, and of the rows until the process ends; None stores no
            embeddings, and the rows in the system's folder of temporary files.
        named: name in the scores and label, where these are others than the key in `models`.
    """
    embedder = Embedder(subtasks, settings, store)
    compared: dict[str, ComparedModel] = {}
    rows, chances = [], []
    audits: list[Audit] = []

    used = {protocol for task in subtasks for protocol in task.protocols}

    def score(key: str, loaded: LoadedModel | Scorer) -> None:
        name, label = named.get(key, (key, key))
        if isinstance(loaded, Scorer):
            embedded: Embedded = score_pairs(loaded, name, subtasks, settings, store)
        else:
            embedded = embedder(loaded, name)
        own = score_model(subtasks, embedded, name)
        rows.append(Table.spilled(own.rows, Score, store))
        chances.append(own.chance)
        missing = tuple(why for each, why in embedded.unmeasured.items() if each in used)
        compared[key] = ComparedModel(
            name, label, loaded.name, loaded.fingerprint, loaded.cost, missing
        )
        audits.extend([] if audits else audit(subtasks, embedded))

    for key, load_model in models.items():
        score(key, load_model())
    every = {key: level for chance in reversed(chances) for key, level in chance.items()}
    return ScoredModels(Table.joined(rows), compared, every, tuple(audits))


def score_run(
    items: Sequence[Subtask],
    slices: ItemSlices,
    checkpoint: Path,
    control_checkpoint: Path,
    run: Mapping[str, Any],
    model: ModelSettings,
    settings: EvaluationSettings,
) -> tuple[Table[Score], list[ScoredItem], ScoredModels]:
    """Score base, control and fine-tuned model: score rows, item descriptions, models."""
    control = control_checkpoint if settings.control else None
    models, method = loaders(model, control, checkpoint, settings.device), run["method"]
    named = {FINE_TUNED: (method, run.get("label", method))}
    scored = score_models(items, models, settings, named=named)
    return scored.rows, list(scored_items(items, slices)), scored


def compare_run(
    scored: ScoredModels,
    subtasks: Sequence[Subtask],
    slices: ItemSlices,
    known: TrainingRows,
    dataset: str,
    settings: EvaluationSettings,
    benchmarks: BenchmarksSettings,
) -> Comparison:
    """Compare the scored models of a run in all metrics, on all items and within slices.

    Args:
        scored: the models.
        subtasks: subtasks that were scored.
        slices: slices of the items.
        known: hashes that identify the training rows.
        dataset: name of the data, for the record.
        settings: number of processes.
        benchmarks: benchmarks that were requested, for the record.
    """
    names = {role: model.name for role, model in scored.models.items()}
    pairs, labels = run_pairs(names), titles(subtasks)
    rows, sliced = as_one_family(
        compare([scored.rows], names, pairs, scored.chance, labels),
        compare_slices([scored.rows], names, pairs, slices, SLICE_ITEMS, labels),
    )
    return Comparison(
        dataset=dataset,
        models=scored.models,
        conclusions=summary_lines(rows),
        rows=rows,
        audits=scored.audits,
        overlaps=tuple(count_overlaps(subtasks, known, settings.workers, slices)),
        titles=labels,
        sources=sources(subtasks),
        slices=sliced,
        scored=tuple(ScoresFingerprint.of(subtasks, settings)),
        suite=benchmarks.suite or "",
        not_run=not_run_labels(benchmarks),
    )


def loaders(
    base: ModelSettings, control: Path | None, fine_tuned: Path, device: str
) -> dict[str, Callable[[], LoadedModel]]:
    """Functions that load base, control and fine-tuned model, by role.

    A method that is its own control has none: training stores a note in place of the control.
    """
    if control is not None and not (control / CONFIG_FILE).is_file():
        log.warning("There is no control to compare with in %s.", control)
        control = None
    place = choose_device(device, key="evaluation.device")
    sources: dict[str, ModelSettings | Path | None] = {
        BASE: base,
        CONTROL: control,
        FINE_TUNED: fine_tuned,
    }
    return {
        role: partial(load, source, place) for role, source in sources.items() if source is not None
    }


def require_base(
    base: LoadedModel, training_record: Mapping[str, Any], *, same: bool = True
) -> None:
    """Raise an error unless a checkpoint was fine-tuned from the given base model.

    Args:
        base: the base model.
        training_record: training record stored beside the checkpoint, or empty.
        same: whether the two models have the same architecture and preprocessing.

    Raises:
        SettingsError: it was fine-tuned from another model.
    """
    start = training_record.get("fingerprint", {}).get("model")
    if not same or start not in (None, base.fingerprint):
        raise SettingsError(
            f"model: the checkpoint was fine-tuned from another model than '{base.name}'; set "
            "model.name, model.pretrained, model.context_length and model.config as in its training"
        )


def audit(subtasks: Iterable[Subtask], embedded: Embedded) -> list[Audit]:
    """Count the skipped and degenerate items and the truncated texts of each set of subtasks."""
    return [_audit_set(*place, own, embedded) for place, own in sets_of(subtasks).items()]


def _audit_set(benchmark: str, name: str, subtasks: Sequence[Subtask], embedded: Embedded) -> Audit:
    """Count skipped, degenerate and truncated items and texts of one set of subtasks."""
    found = [reason for task in subtasks for reason in embedded.problems(task).values()]
    texts = {text for task in subtasks for text in task.texts()}
    tokens = embedded.tokens
    return Audit(
        benchmark=benchmark,
        subtask=name,
        items=sum(len(task.items) for task in subtasks),
        skipped=len(found),
        reasons=dict(Counter(reason.split(":", 1)[0] for reason in found)),
        texts=len(texts),
        truncated=sum(bool(tokens.truncated[tokens.index[text]]) for text in texts),
        degenerate=sum(_count_degenerate(task, tokens) for task in subtasks),
        dropped=dict(sum((Counter(task.dropped) for task in subtasks), Counter[str]())),
        deviations=tuple(dict.fromkeys(why for task in subtasks for why in task.deviations)),
        content=texts_hash(subtasks),
    )


def texts_hash(subtasks: Iterable[Subtask]) -> str:
    """Hash of the right and wrong texts of all items, whatever the items' order and names."""
    return hash_of(sorted((i.positives, i.negatives) for task in subtasks for i in task.items))


def _count_degenerate(subtask: Subtask, tokens: Tokens) -> int:
    """Number of items that no model can get right, since a right text has a wrong one's tokens.

    Equal tokens are equal texts, or texts that the tokenizer (lower-casing, truncation) does not
    tell apart. In retrieval the wrong text is a caption of another image.
    """
    rows = tokens.ids.numpy()

    def ids(text: str) -> bytes:
        found: bytes = rows[tokens.index[text]].tobytes()
        return found

    if "retrieval" in subtask.protocols:
        captions = [(item.item, ids(text)) for item in subtask.items for text in item.positives]
        owners: defaultdict[bytes, set[str]] = defaultdict(set)
        for name, text in captions:
            owners[text].add(name)
        return sum(len(owners[text]) > 1 for _, text in captions)
    if {"image_to_text", "half_truth"}.isdisjoint(subtask.protocols):
        return 0
    return sum(
        not set(map(ids, item.positives)).isdisjoint(map(ids, item.negatives))
        for item in subtask.items
    )
