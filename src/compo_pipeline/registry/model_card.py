"""Model card of an exported model: data, recipe, figures and limits, for readers and for hubs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.roles import ROLE_LABELS, absent_roles
from compo_pipeline.methods import registry as methods
from compo_pipeline.models.weights import read_record
from compo_pipeline.registry.materials import UNKNOWN, Material
from compo_pipeline.registry.settings import RegistrationSettings

CARD = "README.md"


def write_card(
    folder: Path,
    settings: RegistrationSettings,
    manifest: Mapping[str, Any],
    materials: Sequence[Material],
    comparison: Comparison,
    run_id: str,
    waive: Collection[Role] = (),
) -> Path:
    """Write the model card of an exported folder, with a header that Hugging Face's hub reads.

    Args:
        folder: of the export; its record holds the training's settings.
        settings: name and licence.
        manifest: of the data.
        materials: of the version, for its table of licences.
        comparison: result of the run's evaluation.
        run_id: of the run.
        waive: roles without which the version may pass its gate (`promotion.waive`).
    """
    record = read_record(folder)
    training = record.get("training", {})
    fingerprint = training.get("fingerprint", {})
    recipe = ("objective", "training", "seed", "views")
    environment = Environment(
        loader=PackageLoader("compo_pipeline.registry"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    card = environment.get_template("model_card.md").render(
        name=settings.name,
        method=methods.label(record["method"]),
        record=record,
        training=training,
        compute=training.get("compute"),
        manifest=manifest,
        comparison=comparison,
        titles=comparison.benchmarks,
        run_id=run_id,
        license=settings.licence,
        materials=materials,
        unknown=UNKNOWN,
        training_rows=record.get("rows"),
        rows=[row for row in comparison.rows if row.headline],
        limits=list(_limits(comparison, waive)),
        settings=yaml.safe_dump(
            {key: fingerprint[key] for key in recipe if key in fingerprint}, sort_keys=False
        ),
    )
    (folder / CARD).write_text(card, encoding="utf-8")
    return folder / CARD


def _limits(comparison: Comparison, waive: Collection[Role]) -> Iterator[str]:
    """Yield sentences about unmeasured roles, metrics below the base or at chance, and overlaps."""
    for role in absent_roles(row.benchmark for row in comparison.rows):
        waived = " The promotion gate waives it (promotion.waive)." if role in waive else ""
        yield f"{ROLE_LABELS[role]} was not measured.{waived}"
    below = [row.label for row in comparison.rows if row.difference.significance == "below"]
    if below:
        yield f"Significantly worse than its base: {', '.join(below)}."
    guessed = [
        row.label
        for row in comparison.rows
        if row.chance is not None and row.estimate.low <= row.chance
    ]
    if guessed:
        yield f"Not significantly better than guessing: {', '.join(guessed)}."
    for line in comparison.left_out:
        yield f"{line}."
    for overlap in comparison.overlaps:
        if overlap.same_bytes or overlap.same_caption:
            yield (
                f"Trained on {overlap.same_bytes:,} of {overlap.images:,} images and on "
                f"{overlap.same_caption:,} of {overlap.captions:,} captions of "
                f"{comparison.benchmarks.get(overlap.benchmark, overlap.benchmark)} "
                f"{overlap.subtask}."
            )
    yield "A cosine ranks captions; it is not a probability. Only the figures above were measured."
