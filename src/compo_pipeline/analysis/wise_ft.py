"""Models between a base and what it was fine-tuned to, scored ratio by ratio (WiSE-FT).

Source: Wortsman et al., Robust fine-tuning of zero-shot models; FSC-CLIP, Sec. 4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks import Subtask, titles
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, Row, compare
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.identity import fingerprint, image_fingerprint
from compo_pipeline.models.interpolation import interpolate
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.pairwise import give_bias
from compo_pipeline.records import Score

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WiseFtSettings:
    """The YAML key `wise_ft`.

    Attributes:
        ratios: shares of the fine-tuned weights, rising from 0 (the base) to 1.
    """

    ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        rising = sorted(set(self.ratios)) == list(self.ratios)
        if len(self.ratios) < 2 or not rising or not 0 <= self.ratios[0] <= self.ratios[-1] <= 1:
            raise ValueError(
                f"ratios: expected two or more rising shares in [0, 1], got {list(self.ratios)}"
            )


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the model at one ratio, per cent, with 95% intervals.

    The difference from the base is paired on the same items.
    """

    ratio: float
    benchmark: str
    metric: str
    name: str
    label: str
    headline: bool
    items: int
    value: float
    low: float
    high: float
    against_base: float
    against_base_low: float
    against_base_high: float


def ends(
    models: Mapping[str, Callable[[], LoadedModel]], made: Mapping[str, object]
) -> tuple[LoadedModel, LoadedModel]:
    """The base and the fine-tuned model of a run.

    Args:
        models: loaders by role.
        made: what training noted beside the checkpoint; empty where it is not known.

    Raises:
        SettingsError: the checkpoint was not fine-tuned from this base.
    """
    base, tuned = models[BASE](), models[FINE_TUNED]()
    # A bias that training gave to a base without one; similarities do not read it.
    bias = tuned.config["model_cfg"].get("init_logit_bias")
    if bias is not None:
        base = give_bias(base, bias)
    mark = made.get("fingerprint")
    start = mark.get("model") if isinstance(mark, Mapping) else None
    if base.config != tuned.config or start not in (None, base.fingerprint):
        raise SettingsError(
            f"model: the checkpoint '{tuned.name}' was fine-tuned from another model than "
            f"'{base.name}'; set model.name and model.pretrained as they were in its training"
        )
    mixed = made.get("wise_ft_ratio", 1.0)
    if mixed != 1.0:
        log.warning("The checkpoint is itself a mixture (ratio %s): ratios count from it.", mixed)
    return base, tuned


def sweep(
    subtasks: Sequence[Subtask],
    base: LoadedModel,
    tuned: LoadedModel,
    ratios: Sequence[float],
    settings: EvaluationSettings,
) -> list[Figure]:
    """Every figure at every ratio. Images are encoded once where the image tower is the same.

    Args:
        subtasks: what is scored.
        base: on its device; its module holds the last mixture afterwards.
        tuned: of the same architecture.
        ratios: shares of the fine-tuned weights.
        settings: batches, precision, bootstrap.
    """
    embedder = Embedder(subtasks, settings)
    start = {name: value.clone() for name, value in base.model.state_dict().items()}
    end = tuned.model.state_dict()
    found: list[Figure] = []
    of_base: list[Score] = []
    for ratio in dict.fromkeys((0.0, *ratios)):
        state = interpolate(start, end, ratio)
        base.model.load_state_dict(state)
        mixed = replace(
            base,
            fingerprint=fingerprint(state, base.config),
            image_fingerprint=image_fingerprint(state, base.config),
        )
        name = _name(ratio)
        scored = score_model(subtasks, embedder(mixed, name), name)
        of_base = of_base or scored.rows
        if ratio in ratios:
            pair = {BASE: _name(0.0), FINE_TUNED: name}
            every = [*of_base, *scored.rows]
            rows = compare([every], pair, settings.bootstrap, scored.chance, titles(subtasks))
            found += _figures(ratio, rows)
    return found


def _name(ratio: float) -> str:
    return f"ratio {ratio:g}"


def _figures(ratio: float, rows: Iterable[Row]) -> Iterator[Figure]:
    for row in rows:
        estimate, difference = row.fine_tuned, row.vs_base
        yield Figure(
            ratio=ratio,
            benchmark=row.benchmark,
            metric=row.metric,
            name=row.name,
            label=row.label,
            headline=row.headline,
            items=row.items,
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            against_base=difference.value,
            against_base_low=difference.low,
            against_base_high=difference.high,
        )
