"""Fingerprints of everything that a benchmark's scores depend on, except weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.contamination import images_hash, items_hash
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.run.compute import choose_device


@dataclass(frozen=True, slots=True)
class ScoresFingerprint:
    """What a benchmark's scores depend on: items, images, version of scoring and settings.

    Weights and versions of libraries are left out.

    Attributes:
        benchmark: its name.
        items: of all its items, as its adapter reads them, and how images are turned.
        images: of their images' bytes.
        code: version of scoring (`scoring.SCORING`).
        settings: precision of the towers and kind of device.
    """

    benchmark: str
    items: str
    images: str
    code: str
    settings: Mapping[str, str]

    def differences(self, other: ScoresFingerprint) -> list[str]:
        """Names of the fields in which two fingerprints differ."""
        ours, theirs = asdict(self), asdict(other)
        return [name for name in ours if ours[name] != theirs[name]]


def scores_fingerprints(
    subtasks: Sequence[Subtask], settings: EvaluationSettings
) -> list[ScoresFingerprint]:
    """Fingerprint of each benchmark's scores, as they would be computed on this machine."""
    kind = choose_device(settings.device, key="evaluation.device").type
    precision = {"image": settings.image_precision, "text": settings.text_precision}
    code = str(scoring.SCORING)
    by_benchmark: dict[str, list[Subtask]] = {}
    for task in subtasks:
        by_benchmark.setdefault(task.benchmark, []).append(task)
    return [
        ScoresFingerprint(
            benchmark=name,
            items=items_hash(own),
            images=images_hash(own),
            code=code,
            settings={"device": kind, **precision},
        )
        for name, own in by_benchmark.items()
    ]
