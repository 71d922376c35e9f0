"""The model card: README.md of an exported folder, made from the run's own numbers.

Its header is the metadata that Hugging Face's hub reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.methods import registry as methods
from compo_pipeline.models.identity import read_record

FILE = "README.md"
_HUB = "hf-hub:"


def write(
    folder: Path,
    name: str,
    manifest: Mapping[str, Any],
    comparison: Comparison,
    run_id: str,
    licence: str | None,
) -> Path:
    """Write the card of an exported folder.

    Args:
        folder: as `export_for` wrote it; its record says what was trained how.
        name: of the registered model.
        manifest: of the data.
        comparison: what the run's evaluation found.
        run_id: of the run.
        licence: of the weights, as an identifier of the hub; None says that those of the base and
            of the data apply.
    """
    import yaml
    from jinja2 import Environment, PackageLoader, StrictUndefined

    noted = read_record(folder)
    header = _header(name, noted, comparison, licence)
    environment = Environment(
        loader=PackageLoader("compo_pipeline.registry"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("model_card.md").render(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        name=name,
        method=methods.label(noted["method"]),
        noted=noted,
        trained=noted.get("training", {}),
        compute=noted.get("training", {}).get("compute"),
        manifest=manifest,
        comparison=comparison,
        run_id=run_id,
        license=licence,
        rows=[row for row in comparison.rows if row.headline],
        limits=list(_limits(comparison)),
        settings=yaml.safe_dump(_settings(noted), sort_keys=False),
    )
    path = folder / FILE
    path.write_text(page, encoding="utf-8")
    return path


def _header(
    name: str, noted: Mapping[str, Any], comparison: Comparison, licence: str | None
) -> dict[str, Any]:
    """What the hub indexes; a base of the hub under its name there."""
    results = [_result(row, comparison.benchmarks) for row in comparison.rows if row.headline]
    header = {
        "license": licence or "other",
        "library_name": "open_clip",
        "pipeline_tag": "zero-shot-image-classification",
        "tags": ["clip", "compositionality", noted["method"]],
        "model-index": [{"name": name, "results": results}],
    }
    if noted["name"].startswith(_HUB):
        header["base_model"] = noted["name"].removeprefix(_HUB)
    return header


def _result(row: Row, benchmarks: Mapping[str, str]) -> dict[str, Any]:
    benchmark = benchmarks.get(row.benchmark, row.benchmark)
    value = round(row.fine_tuned.value, 2)
    return {
        "task": {"type": "image-text-matching"},
        "dataset": {"name": f"{benchmark} {row.name}", "type": row.benchmark},
        "metrics": [{"type": row.metric, "value": value, "name": row.label}],
    }


def _limits(comparison: Comparison) -> Iterator[str]:
    """What the run itself shows of the model's limits."""
    below = [row.label for row in comparison.rows if row.vs_base.significance == "below"]
    if below:
        yield f"Worse than its base, beyond chance: {', '.join(below)}."
    guessed = [
        row.label
        for row in comparison.rows
        if row.chance is not None and row.fine_tuned.low <= row.chance
    ]
    if guessed:
        yield f"Not told apart from guessing: {', '.join(guessed)}."
    for line in comparison.left_out:
        yield f"{line}."
    for overlap in comparison.overlaps:
        if overlap.known_images or overlap.same_caption:
            yield (
                f"Trained on {overlap.known_images:,} of {overlap.images:,} images and on "
                f"{overlap.same_caption:,} of {overlap.captions:,} captions of "
                f"{comparison.benchmarks.get(overlap.benchmark, overlap.benchmark)} "
                f"{overlap.subtask}."
            )
    yield "A cosine ranks; it is no probability, and was measured on the figures above alone."


def _settings(noted: Mapping[str, Any]) -> dict[str, Any]:
    """The method's settings and the recipe, as training noted them."""
    mark = noted.get("training", {}).get("fingerprint", {})
    return {key: mark[key] for key in ("objective", "training", "seed", "views") if key in mark}
