"""The stamp of scores: what they were made of, so that only like is compared with like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import compo_pipeline
from compo_pipeline.compute import choose_device
from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.storage import files_fingerprint

# Code that decides a model's similarities and verdicts.
CODE = (
    "compute.py",
    "evaluation/benchmarks",
    "evaluation/embed.py",
    "evaluation/protocols.py",
    "evaluation/scoring.py",
    "images/decoding.py",
    "models/blueprint.py",
    "models/encoding.py",
    "models/loading.py",
    "models/tokenizing.py",
    "models/weights.py",
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Scores with the same stamp and weights are the same, as far as libraries' versions are.

    Attributes:
        questions: digest of every item that was asked: those of the benchmarks' files, and the
            dataset's own captions where they are asked for retrieval.
        images: digest of their images' bytes.
        code: digest of the code that scores.
        settings: precision of the towers and kind of device.
    """

    questions: str
    images: str
    code: str
    settings: Mapping[str, str]

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that stand for it."""
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()[:16]

    def differences(self, other: Stamp) -> list[str]:
        """Names of what differs from another stamp."""
        ours, theirs = asdict(self), asdict(other)
        return [name for name in ours if ours[name] != theirs[name]]


def make(subtasks: Sequence[Subtask], settings: EvaluationSettings) -> Stamp:
    """The stamp that scoring these subtasks with these settings, here and now, would bear."""
    kind = choose_device(settings.device, key="evaluation.device").type
    precision = {"image": settings.image_precision, "text": settings.text_precision}
    return Stamp(
        questions=_questions(subtasks),
        images=_images(subtasks),
        code=files_fingerprint((name, path) for name, path in _code()),
        settings={"device": kind, **precision},
    )


def of_subtask(subtask: Subtask) -> str:
    """Sixteen hexadecimal digits of one subtask's items and of their images' bytes."""
    content = f"{_questions([subtask])} {_images([subtask])}".encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _questions(subtasks: Sequence[Subtask]) -> str:
    digest = hashlib.sha256()
    for task in subtasks:
        # The images' folder is a place on this machine, the title is for readers.
        asked = asdict(task)
        del asked["images"], asked["title"]
        digest.update(json.dumps(asked, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _images(subtasks: Sequence[Subtask]) -> str:
    """An image that is not there counts too: its items are skipped."""
    named = {(item.image, task.path(item)) for task in subtasks for item in task.items}
    there = sorted((name, path) for name, path in named if path.is_file())
    absent = sorted(name for name, path in named if not path.is_file())
    return hashlib.sha256(f"{files_fingerprint(there)} {absent}".encode()).hexdigest()[:16]


def _code() -> Iterator[tuple[str, Path]]:
    package = Path(compo_pipeline.__file__).parent
    for name in CODE:
        place = package / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield str(file.relative_to(package)), file
