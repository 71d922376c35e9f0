"""How much of a phrase's attention lies on the thing it names, and under which model more of it.

Over images whose regions are known (`regions.read`). Values of one case are shares of 1; those
of a comparison are per cent, as everywhere in a report.

R resamples, S training seeds, n cases, G images, C figures (a measure under one model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.analysis.attention import Look, looks
from compo_pipeline.analysis.regions import Case
from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.comparison import (
    BASE,
    FINE_TUNED,
    ROLES,
    Row,
    row_statistics,
    with_holm,
)
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.images.decoding import Limits
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.seeding import numpy_rng

Floats = NDArray[np.floating]
_NAN = float("nan")


class Measure(NamedTuple):
    """A figure of a comparison, and the field of `Located` that says what chance would give."""

    name: str
    label: str
    chance: str


MEASURES = (
    Measure("share", "attention on it", "area"),
    Measure("share_scaled", "attention on it, scaled", "area"),
    Measure("hit", "most attended patch on it", "chance"),
)


@dataclass(frozen=True, slots=True)
class Located:
    """Where one model's attention of one phrase lies in one image; NaN where the region of the
    phrase is not known, or there is a problem.

    Attributes:
        image: path below its root.
        phrase: what was asked.
        area: share of the image that the named thing fills: of uniform attention.
        share: of the attention that lies on it, by the attention of C2LIP's training.
        share_scaled: the same under a logit scale.
        chance: share of the patches that it covers by more than half: of hits at random.
        hit: 1 where the most attended patch is one of these, else 0 (the pointing game).
        problem: why the region could not be held against the attention.
    """

    image: str
    phrase: str
    area: float = _NAN
    share: float = _NAN
    share_scaled: float = _NAN
    chance: float = _NAN
    hit: float = _NAN
    problem: str | None = None


def located(
    loaded: LoadedModel,
    cases: Sequence[Case],
    *,
    batch: int = 64,
    workers: int = 2,
    limits: Limits | None = None,
    scale: float | None = None,
) -> list[Located]:
    """What one model attends to, a row a case, in the order of the cases' images.

    Args:
        loaded: any model with features of its patches.
        cases: images, phrases and regions.
        batch: images encoded at a time.
        workers: threads that decode images.
        limits: what is accepted as an image.
        scale: of the scaled attention, one for all models that are compared; None is this model's
            own, which training may have moved.

    Raises:
        SettingsError: the model has no features of patches, or no square grid of them.
    """
    seen = looks(loaded, cases, batch, workers, limits or Limits(), scale)
    return [measure(look) for look in seen]


def measure(look: Look) -> Located:
    """The row of one look."""
    case = look.case
    if look.problem is not None or look.attention is None or look.covered is None:
        return Located(case.image, case.phrase, problem=look.problem)
    covered, on_it = look.covered, look.covered > 0.5
    return Located(
        image=case.image,
        phrase=case.phrase,
        area=float(covered.mean()),
        share=float((look.attention.plain * covered).sum()),
        share_scaled=float((look.attention.scaled * covered).sum()),
        chance=float(on_it.mean()),
        hit=float(on_it.flat[look.attention.plain.argmax()]),
    )


def compare_located(
    seeds: Sequence[Mapping[str, Sequence[Located]]], bootstrap: Bootstrap
) -> list[Row]:
    """Every measure for all models, with paired differences and 95% intervals over images.

    Args:
        seeds: under each training seed the rows of each role (`base`, `fine_tuned`, perhaps
            `control`), of the same cases. With several seeds intervals come from two levels of
            resampling: seeds, then images.
        bootstrap: number of resamples and their seed.

    Returns:
        A row a measure, in per cent; `chance` is what attention that knows nothing would give,
        `gained` and `lost` count the cases where the fine-tuned model has more and less. None
        where nothing could be measured.

    Raises:
        ValueError: models or seeds were not measured on the same cases.
    """
    roles = [role for role in ROLES if role in seeds[0]]
    tables = [{role: _measured(rows[role]) for role in roles} for rows in seeds]
    keys = list(tables[0][BASE])
    for table in tables:
        for role, own in table.items():
            if own.keys() != set(keys):
                raise ValueError(
                    f"'{role}' was measured on {len(own)} cases, 'base' on {len(keys)}; a paired "
                    "comparison needs the same: measure all models again"
                )
    if not keys:
        return []
    images, place = np.unique([image for image, _ in keys], return_inverse=True)
    generator = numpy_rng("attention", bootstrap.seed)
    weights = statistics.image_weights(len(images), bootstrap.resamples, generator)
    shares = statistics.seed_weights(len(seeds), bootstrap.resamples, generator)
    skipped = sum(row.problem is not None for row in seeds[0][BASE])
    rows = []
    for kind in MEASURES:
        values = {role: _values(tables, role, keys, kind.name) for role in roles}
        drawn = {role: _draws(of, place, weights, shares) for role, of in values.items()}
        chance = _values(tables[:1], BASE, keys, kind.chance).mean()
        rows.append(
            Row(
                benchmark="attention",
                metric=kind.name,
                name="all",
                label=kind.label,
                headline=True,
                averaged=False,
                items=len(keys),
                skipped=skipped,
                images=len(images),
                chance=float(chance),
                **row_statistics(
                    {role: float(of.mean()) for role, of in values.items()},
                    drawn,
                    {role: values[FINE_TUNED] - of for role, of in values.items()},
                    exact=False,
                ),
            )
        )
    return with_holm(rows)


_Key = tuple[str, str]
"""Image and phrase."""


def _measured(rows: Sequence[Located]) -> dict[_Key, Located]:
    return {(row.image, row.phrase): row for row in rows if not math.isnan(row.area)}


def _values(
    tables: Sequence[Mapping[str, Mapping[_Key, Located]]],
    role: str,
    keys: Sequence[_Key],
    field: str,
) -> Floats:
    """One measure of one model under every seed, per cent: [S, n]."""
    return 100 * np.array([[getattr(table[role][key], field) for key in keys] for table in tables])


def _draws(values: Floats, place: NDArray[np.int64], weights: Floats, shares: Floats) -> Floats:
    """Means [R] of values [S, n] under every resample of the images at `place` [n]."""
    images = weights.shape[1]
    sums = np.array([np.bincount(place, of_seed, images) for of_seed in values], np.float64)
    items = np.bincount(place, minlength=images).astype(np.float64)
    means = statistics.mean_draws(sums[..., None], items[:, None], weights, shares)
    return means[:, 0]
