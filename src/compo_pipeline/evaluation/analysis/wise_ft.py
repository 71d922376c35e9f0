"""WiSE-FT: models interpolated between a base and its fine-tuned model, scored ratio by ratio.

Source: Wortsman et al., Robust fine-tuning of zero-shot models; FSC-CLIP, Sec. 4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.items import Role, Subtask, titles
from compo_pipeline.core.hashing import tensors_hash
from compo_pipeline.core.records import Score
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import (
    BASE,
    FINE_TUNED,
    Row,
    compare,
    merge_comparisons,
)
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.evaluate import loaders, require_base
from compo_pipeline.evaluation.roles import compare_roles
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel, export, give_bias
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import (
    image_fingerprint,
    interpolate,
    read_record,
)

log = logging.getLogger(__name__)

MEANS = "roles"
"""In place of a benchmark's name."""
COMPOSITION: Role = "composition"
"""The role that a mixture is chosen by."""
RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of the fine-tuned weights in a sweep, from the base alone on."""


def load_ends(
    models: Mapping[str, Callable[[], LoadedModel]], training_record: Mapping[str, Any]
) -> tuple[LoadedModel, LoadedModel]:
    """Load the two models to interpolate: the base and the fine-tuned model of a run.

    Args:
        models: loaders by role.
        training_record: training record stored beside the checkpoint, or empty.

    Raises:
        SettingsError: the checkpoint was not fine-tuned from this base.
    """
    base, tuned = models[BASE](), models[FINE_TUNED]()
    # Training gives a bias to a base without one; similarities do not depend on it.
    bias = tuned.config["model_cfg"].get("init_logit_bias")
    if bias is not None:
        base = give_bias(base, bias)
    require_base(base, training_record, same=base.config == tuned.config)
    ratio = training_record.get("wise_ft_ratio", 1.0)
    if ratio != 1.0:
        log.warning("The checkpoint is itself interpolated (ratio %s); ratios refer to it.", ratio)
    return base, tuned


def sweep(
    subtasks: Sequence[Subtask],
    base: LoadedModel,
    tuned: LoadedModel,
    ratios: Sequence[float],
    settings: EvaluationSettings,
) -> pd.DataFrame:
    """Score the interpolated model in every metric and role at every ratio.

    A row of the table is a metric at a ratio, in per cent with 95% intervals; of the mean over the
    sets of a role, `benchmark` is `MEANS`, `name` the role, and `sets` has the labels of its sets.
    The difference from the base is paired on the same items; `significance` follows Holm's
    correction over all metrics and ratios.

    Images are encoded once where the image tower is the same.

    Args:
        subtasks: subtasks to score.
        base: base model on its device. Afterwards its module has the last interpolated weights.
        tuned: fine-tuned model, of the same architecture as the base.
        ratios: shares of the fine-tuned weights.
        settings: batches, precision.
    """
    embedder = Embedder(subtasks, settings)
    start = {name: value.clone() for name, value in base.model.state_dict().items()}
    end = tuned.model.state_dict()
    tables: dict[float, list[Row]] = {}
    sets: dict[str, str] = {}
    of_base: Table[Score] | None = None
    for ratio in dict.fromkeys((0.0, *ratios)):
        state = interpolate(start, end, ratio)
        base.model.load_state_dict(state)
        mixed = replace(
            base,
            fingerprint=tensors_hash(state, base.config),
            image_fingerprint=image_fingerprint(state, base.config),
        )
        name = _model_name(ratio)
        scored = score_model(subtasks, embedder(mixed, name), name)
        of_base = scored.rows if of_base is None else of_base
        if ratio in ratios:
            every = Table.joined([of_base, scored.rows])
            models = {each: each for each in (_model_name(0.0), name)}
            pairs = [(name, _model_name(0.0))]
            labels = titles(subtasks)
            roles = compare_roles([every], models, pairs, labels)
            sets |= {role: ", ".join(row.label for row in own.sets) for role, own in roles.items()}
            tables[ratio] = [
                *(
                    replace(own.mean, benchmark=MEANS, name=role, headline=True)
                    for role, own in roles.items()
                    if own.mean is not None
                ),
                *compare([every], models, pairs, scored.chance, labels),
            ]
    # The base against itself is no comparison.
    others = merge_comparisons([rows for ratio, rows in tables.items() if ratio])
    return pd.DataFrame(
        figures
        for ratio, rows in tables.items()
        for figures in _ratio_figures(ratio, others if ratio else rows, sets)
    )


def best_ratio(table: pd.DataFrame) -> pd.Series[Any] | None:
    """Table row of the best ratio for composition without loss elsewhere, or None.

    It has the largest significant gain at which no headline metric has an interval below the base,
    corrected or not. None where no ratio has.

    Args:
        table: table that `sweep` returns.
    """
    own = table[(table.benchmark == MEANS) & (table.name == COMPOSITION)]
    fell = set(table[table.headline & (table.against_base_high < 0)].ratio)
    found = own[(own.significance == "above") & ~own.ratio.isin(fell)]
    return None if found.empty else found.sort_values("against_base").iloc[-1]


def choose_ratio(
    items: Sequence[Subtask], base: ModelSettings, checkpoint: Path, device: str
) -> tuple[float, pd.DataFrame]:
    """WiSE-FT ratio chosen on validation items (1 if none is better), and metrics by ratio.

    It is 1 where no ratio is better than the base without a cost (`best_ratio`).

    Args:
        items: items that select the ratio.
        base: base that the checkpoint was fine-tuned from.
        checkpoint: folder of the unmixed checkpoint.
        device: device where both are scored.
    """
    evaluation = EvaluationSettings(device=device)
    ends = load_ends(loaders(base, None, checkpoint, device), read_record(checkpoint)["training"])
    table = sweep(items, *ends, RATIOS, evaluation)
    best = best_ratio(table)
    if best is None:
        log.warning(
            "No mixture of the weights with the base's is better at composition without a cost, on "
            "the items that select: the weights are exported as they are"
        )
        return 1.0, table
    log.info(
        "The weights are %g of the fine-tuned and %g of the base's, chosen on the items of "
        "tuning.benchmarks: composition %+.1f points from the base",
        best.ratio,
        1 - best.ratio,
        best.against_base,
    )
    return float(best.ratio), table


def mix(base: ModelSettings, checkpoint: Path, ratio: float) -> None:
    """Interpolate a checkpoint's weights with its base's, and export them in place.

    Args:
        base: base that the checkpoint was fine-tuned from.
        checkpoint: folder of the unmixed checkpoint.
        ratio: share of the fine-tuned weights.
    """
    record = read_record(checkpoint)
    start, tuned = load_ends(loaders(base, None, checkpoint, "cpu"), record["training"])
    state = interpolate(start.model.state_dict(), tuned.model.state_dict(), ratio)
    tuned.model.load_state_dict(state)
    training = {**record["training"], "wise_ft_ratio": ratio}
    export(tuned, checkpoint, metadata={"training": training})


def _model_name(ratio: float) -> str:
    """Name under which the model of a mixing ratio is scored."""
    return f"ratio {ratio!r}"


def _ratio_figures(
    ratio: float, rows: Iterable[Row], sets: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each comparison row at one mixing ratio, by column of the table."""
    name = _model_name(ratio)
    for row in rows:
        difference = row.difference_of(name)
        assert difference is not None
        yield {
            "ratio": ratio,
            "benchmark": row.benchmark,
            "metric": row.metric,
            "name": row.name,
            "label": row.label,
            "headline": row.headline,
            "items": row.items,
            **asdict(row.values[name]),
            "against_base": difference.value,
            "against_base_low": difference.low,
            "against_base_high": difference.high,
            "significance": difference.significance,
            "sets": sets[row.name] if row.benchmark == MEANS else "",
        }
