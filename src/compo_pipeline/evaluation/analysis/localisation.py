"""Share of a phrase's attention on the thing it names, compared between models.

Over images whose regions are known. Values of one case are shares of 1; those of a comparison are
per cent, as everywhere in a report.

S training seeds, n cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.analysis.attention import AttentionResult, attention_results
from compo_pipeline.evaluation.analysis.cases import Case
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.evaluation.comparison import (
    BASE,
    ROLES,
    Row,
    row_statistics,
    run_pairs,
    with_holm,
)
from compo_pipeline.evaluation.evaluate import require_base
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.models.encoding import scale_of
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.seeding import rng

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.floating]
_NAN = float("nan")


class LocalisationMeasure(NamedTuple):
    """Name and label of a localisation measure, and the field with its chance level.

    Both are fields of `Located`.
    """

    name: str
    label: str
    chance: str
    verdicts: bool = False
    """Whether it is 0 or 1 for every case."""


MEASURES = (
    LocalisationMeasure("share", "attention on it", "area"),
    LocalisationMeasure("share_scaled", "attention on it, scaled", "area"),
    LocalisationMeasure("hit", "most attended patch on it", "chance", verdicts=True),
)


@dataclass(frozen=True, slots=True)
class Located:
    """Localisation measures of one model's attention for one phrase and image.

    NaN if they could not be measured.
    """

    image: str
    """Path of the image below its root."""
    phrase: str
    area: float = _NAN
    """Share of the image that the named thing fills: that of uniform attention."""
    share: float = _NAN
    """Share of the attention on the named thing, without a temperature as in C2LIP's training."""
    share_scaled: float = _NAN
    """The same with a logit scale."""
    chance: float = _NAN
    """Share of the patches that the thing covers by more than half: of random hits."""
    hit: float = _NAN
    """1 if the most attended patch is one of these, else 0 (the pointing game)."""
    problem: str | None = None
    """Why the case could not be measured."""


def measure(result: AttentionResult) -> Located:
    """Localisation measures of one attention result."""
    case, attention, covered = result.case, result.attention, result.covered
    if result.problem is not None or attention is None or covered is None:
        return Located(case.image, case.phrase, problem=result.problem)
    on_it = covered > 0.5
    return Located(
        image=case.image,
        phrase=case.phrase,
        area=float(covered.mean()),
        share=float((attention.plain * covered).sum()),
        share_scaled=float((attention.scaled * covered).sum()),
        chance=float(on_it.mean()),
        hit=float(on_it.flat[attention.plain.argmax()]),
    )


def measure_model(
    loaded: LoadedModel,
    cases: Sequence[Case],
    batch: int = 64,
    workers: int = 2,
    limits: Limits | None = None,
    scale: float | None = None,
) -> list[Located]:
    """Localisation measures of one model, a row per case, in the order of the images.

    The arguments are those of `attention_results`.
    """
    results = attention_results(loaded, cases, batch, workers, limits or Limits(), scale)
    return [measure(result) for result in results]


def measure_models(
    models: Mapping[str, Callable[[], LoadedModel]],
    cases: Sequence[Case],
    training_record: Mapping[str, Any],
    settings: EvaluationSettings,
    limits: Limits,
) -> pd.DataFrame:
    """Table of localisation measures, a row per case and model, with the model's role.

    Args:
        models: loaders by role; one model is in memory at a time.
        cases: phrases, images and regions.
        training_record: the record beside the checkpoint; empty if unknown.
        settings: batches and threads.
        limits: what is accepted as an image.

    Raises:
        SettingsError: the checkpoint was not fine-tuned from this base.
    """
    import pandas as pd

    parts, scale = [], None
    for role in (role for role in ROLES if role in models):
        loaded = models[role]()
        if role == BASE:
            require_base(loaded, training_record)
        rows = measure_model(loaded, cases, settings.image_batch, settings.workers, limits, scale)
        parts.append(pd.DataFrame(rows).assign(model=role))
        # The base's scale for all models: a larger scale would look like more attention.
        scale = scale or scale_of(loaded.model).item()
    return pd.concat(parts, ignore_index=True)


def rows_by_role(frame: pd.DataFrame) -> dict[str, list[Located]]:
    """The rows of the table of `measure_models`, grouped by the model's role."""
    found: dict[str, list[Located]] = {}
    for record in frame.to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        row["problem"] = row["problem"] if isinstance(row["problem"], str) else None
        found.setdefault(row.pop("model"), []).append(Located(**row))
    return found


def cases_to_draw(
    cases: Sequence[Case], rows: Sequence[Located], settings: AttentionSettings
) -> list[Case]:
    """A random sample of the measurable cases, to be drawn as figures, in the given order."""
    broken = {(row.image, row.phrase) for row in rows if row.problem is not None}
    whole = [case for case in cases if (case.image, case.phrase) not in broken]
    count = min(settings.count, len(whole))
    places = rng("attention figures", settings.seed).sample(range(len(whole)), count)
    return [whole[place] for place in sorted(places)]


def compare_located(seeds: Sequence[Mapping[str, Sequence[Located]]]) -> list[Row]:
    """Compare models in each localisation measure, with paired differences and intervals.

    The intervals are over images.

    Args:
        seeds: for each training seed the rows of each role (`base`, `fine_tuned`, perhaps
            `control`), of the same cases.

    Returns:
        A row per measure, in per cent; `chance` is the value of uniform or random attention,
        `gained` and `lost` count the cases where the fine-tuned model has more and less. Empty if
        nothing could be measured.

    Raises:
        ValueError: models or seeds were not measured on the same cases.
    """
    roles = [role for role in ROLES if role in seeds[0]]
    tables = [{role: _measured_rows(rows[role]) for role in roles} for rows in seeds]
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
    skipped = sum(row.problem is not None for row in seeds[0][BASE])
    rows = []
    for kind in MEASURES:
        values = {role: _measure_values(tables, role, keys, kind.name) for role in roles}
        chance = _measure_values(tables[:1], BASE, keys, kind.chance).mean()
        found, differences = row_statistics(
            {role: [statistics.Part(of, place)] for role, of in values.items()},
            run_pairs(roles),
            [1.0],
            exact=False,
            verdicts=kind.verdicts,
        )
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
                values=found,
                differences=differences,
            )
        )
    return with_holm(rows)


_Key = tuple[str, str]
"""Image and phrase."""


def _measured_rows(rows: Sequence[Located]) -> dict[_Key, Located]:
    """Rows whose localisation could be measured, by image and phrase."""
    return {(row.image, row.phrase): row for row in rows if not math.isnan(row.area)}


def _measure_values(
    tables: Sequence[Mapping[str, Mapping[_Key, Located]]],
    role: str,
    keys: Sequence[_Key],
    field: str,
) -> Floats:
    """Values [S, n] in per cent of one measure of one model, for each seed and case."""
    return 100 * np.array([[getattr(table[role][key], field) for key in keys] for table in tables])
