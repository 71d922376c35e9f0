"""How good a trial's model is: what is maximised, and what it may cost, on validation questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import model_metrics
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel

KEY = "tuning.objective"


@dataclass(frozen=True)
class Guarded:
    """Figures that must not fall far below the base's.

    Attributes:
        figures: their mean counts, each as `benchmark/metric/name`; none guards nothing.
        drop: points by which it may fall.
    """

    figures: tuple[str, ...] = ()
    drop: float = 1.0

    def __post_init__(self) -> None:
        """A drop is counted downwards."""
        if self.drop < 0:
            raise ValueError(f"drop: expected at least 0 points, got {self.drop}")


@dataclass(frozen=True)
class ObjectiveSettings:
    """What a study is after.

    Attributes:
        maximise: figures whose mean is the score, each as `benchmark/metric/name`.
        second: figures of a second objective; a study then looks for the front of both, without
            constraints and without pruning.
        retrieval: what may not be lost.
        zero_shot: likewise.
        penalty: points of score that each point too many costs. What training loses on its way it
            may win back by its end: a high one stops trials that would have been the best.
    """

    maximise: tuple[str, ...] = ("sugar_crepe_pp/itt/average", "sugar_crepe_pp/tot/average")
    second: tuple[str, ...] = ()
    retrieval: Guarded = field(
        default_factory=lambda: Guarded(("retrieval/i2t_r1/raw", "retrieval/t2i_r1/raw"))
    )
    zero_shot: Guarded = field(
        default_factory=lambda: Guarded(("zero_shot/top1/colours", "zero_shot/top1/things"))
    )

    penalty: float = 1.0

    def __post_init__(self) -> None:
        """Something must be looked for, and a loss is no gain."""
        if self.penalty < 0:
            raise ValueError(f"penalty: expected at least 0 points, got {self.penalty}")
        if not self.maximise:
            raise ValueError("maximise: expected one figure at least, got none")

    @property
    def guarded(self) -> dict[str, Guarded]:
        """What is constrained, by name; nothing where there are two objectives."""
        found = {"retrieval": self.retrieval, "zero_shot": self.zero_shot}
        return {} if self.second else {name: one for name, one in found.items() if one.figures}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A model's figures, and what follows from them.

    `scores` has one entry, or two where there are two objectives. `excess` says by how many points
    each guarded mean falls below what is allowed; 0 or less is well.
    """

    scores: tuple[float, ...]
    excess: Mapping[str, float]
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Judge:
    """Scores models on the same questions, and measures them by the base; made by `begin`.

    Attributes:
        wanted: what is looked for.
        base: figures of the model that trials start from.
    """

    wanted: ObjectiveSettings
    base: Mapping[str, float]
    _embedder: Embedder

    @classmethod
    def begin(
        cls,
        subtasks: Sequence[Subtask],
        settings: EvaluationSettings,
        wanted: ObjectiveSettings,
        base: LoadedModel,
    ) -> Judge:
        """Score the base.

        Args:
            subtasks: the questions, which share nothing with those that are reported.
            settings: how models are scored.
            wanted: what is looked for.
            base: the model that trials start from.

        Raises:
            SettingsError: a figure is not among those that the questions give.
        """
        embedder = Embedder(subtasks, settings)
        figures = model_metrics(embedder, base)
        named = {
            "maximise": wanted.maximise,
            "second": wanted.second,
            "retrieval.figures": wanted.retrieval.figures,
            "zero_shot.figures": wanted.zero_shot.figures,
        }
        for key, names in named.items():
            for name in names:
                if name not in figures:
                    raise SettingsError(
                        f"{KEY}.{key}: '{name}' is no figure of the validation questions"
                        f"{nearest(name, figures)} (there are: {', '.join(figures)})"
                    )
        return cls(wanted, figures, embedder)

    def __call__(self, model: LoadedModel) -> Judgement:
        """Score a model, in evaluation mode."""
        found = model_metrics(self._embedder, model)
        sought = [self.wanted.maximise, *([self.wanted.second] if self.wanted.second else [])]
        excess = {
            name: _mean(self.base, one.figures) - _mean(found, one.figures) - one.drop
            for name, one in self.wanted.guarded.items()
        }
        return Judgement(tuple(_mean(found, figures) for figures in sought), excess, found)


def _mean(figures: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(figures[name] for name in names) / len(names)
