"""Scoring the models of a run and everything that is said about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.compute import choose_device
from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.audit import Audit, audit
from compo_pipeline.evaluation.benchmarks import Subtask, titles
from compo_pipeline.evaluation.comparison import (
    BASE,
    CONTROL,
    FINE_TUNED,
    ROLES,
    Row,
    compare,
)
from compo_pipeline.evaluation.contamination import Overlap, Trained, overlaps
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.measures import BENCHMARK_LABELS, METHOD_LABELS, Key
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.verdict import verdict
from compo_pipeline.models.identity import CONFIG_FILE
from compo_pipeline.models.loading import LoadedModel, ModelSettings, load
from compo_pipeline.records import Score

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The models of a run side by side, as it is kept on disk.

    `models` maps roles (base, control, fine_tuned) to the names that the scores bear, `weights`
    to what the models call themselves, `fingerprints` to digests of their weights. Figures are per
    cent. `titles` holds those of benchmarks that are not the official ones.
    """

    dataset: str
    models: dict[str, str]
    weights: dict[str, str]
    verdict: tuple[str, ...]
    resamples: int
    rows: tuple[Row, ...]
    audits: tuple[Audit, ...]
    overlaps: tuple[Overlap, ...]
    fingerprints: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    @property
    def benchmarks(self) -> dict[str, str]:
        """Benchmarks to names for readers."""
        return {**BENCHMARK_LABELS, **self.titles}

    @property
    def labels(self) -> dict[str, str]:
        """Roles to names for readers: a method is written as its paper writes it."""
        name = self.models[FINE_TUNED]
        return {**self.models, FINE_TUNED: METHOD_LABELS.get(name, name)}

    def to_json(self) -> dict[str, Any]:
        """Plain mappings and lists, floats to six significant digits."""
        plain: dict[str, Any] = _short(asdict(self))
        return plain

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Comparison:
        """What `to_json` wrote."""
        return parse(cls, content, "comparison")


def evaluate(
    subtasks: Sequence[Subtask],
    models: Mapping[str, Callable[[], LoadedModel]],
    fine_tuned: str,
    dataset: str,
    known: Trained,
    settings: EvaluationSettings,
) -> tuple[list[Score], Comparison]:
    """Score every model on every subtask and compare them.

    Args:
        subtasks: what is scored.
        models: loaders by role; one model is held at a time.
        fine_tuned: the name that the fine-tuned model bears in the scores.
        dataset: name of the data, for the record.
        known: what identifies the training rows.
        settings: batches, precision, bootstrap.
    """
    embedder = Embedder(subtasks, settings)
    names = {role: fine_tuned if role == FINE_TUNED else role for role in ROLES if role in models}
    scores: list[Score] = []
    chance: dict[Key, float] = {}
    weights: dict[str, str] = {}
    fingerprints: dict[str, str] = {}
    audits: list[Audit] = []
    for role, name in names.items():
        loaded = models[role]()
        weights[role], fingerprints[role] = loaded.name, loaded.fingerprint
        embedded = embedder(loaded, name)
        for subtask in subtasks:
            for scored in score(name, subtask, embedded):
                scores += scored.rows
                chance[scored.benchmark, scored.metric, scored.subtask] = scored.chance
        if role == BASE:
            audits = [audit(subtask, embedded) for subtask in subtasks]
    named = titles(subtasks)
    rows = compare([scores], names, settings.bootstrap, chance, named)
    comparison = Comparison(
        dataset=dataset,
        models=names,
        weights=weights,
        verdict=verdict(rows, names),
        resamples=settings.bootstrap.resamples,
        rows=tuple(rows),
        audits=tuple(audits),
        overlaps=tuple(overlaps(subtasks, known, settings.workers)),
        fingerprints=fingerprints,
        titles=named,
    )
    return scores, comparison


def loaders(
    base: ModelSettings, control: Path | None, fine_tuned: Path, device: str
) -> dict[str, Callable[[], LoadedModel]]:
    """What loads each model of a run, by role, onto `evaluation.device`.

    A method that is its own control has none: training leaves a note in the control's place.
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


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _short(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_short(entry) for entry in value]
    return value
