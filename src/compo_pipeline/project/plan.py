"""Plan of a run, said before its first node: rows, steps, disk, and what the paper says of these.

What depends on the rows is expected until validation has counted them, and exact from then on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.counterfactuals.settings import DiffusionSettings
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.mixture import Mixture
from compo_pipeline.methods.registry import build, find
from compo_pipeline.project.recipe import RecipeFacts
from compo_pipeline.project.settings import RunSettings
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import (
    CARVED,
    Table,
    held_out_note,
    splits_of,
    training_rows,
)

_GB = 10**9
# Bytes of a row in all tables before the views, and of a view: of COCO's captions under CLIC.
_ROW, _VIEW = 250, 250
# Bytes of a pixel in the JPEG files of generated images: of COCO's images at quality 92.
_PIXEL = 0.3
_FLOAT = 4


def expected_rows(parameters: RunSettings) -> int | None:
    """Expected number of training rows of a run, before they are counted; None if unknown.

    Of several sources it is that of an epoch.
    """
    if parameters.data.sources:
        return parameters.data.epoch_rows
    known = (parameters.recipe.rows, parameters.data.sample.rows)
    return min((rows for rows in known if rows is not None), default=None)


def steps(parameters: RunSettings, views: int) -> int:
    """Number of optimiser steps of a training, given its number of views per epoch.

    Batches shrink where there are fewer views, and what is left of an epoch's last one waits.
    """
    training = parameters.training
    found = training.epochs * (views // min(training.batch_size, views)) if views else 0
    return min(found, training.max_steps or found)


def lines(parameters: RunSettings) -> Iterator[str]:
    """Yield the lines of a run's plan, logged before it starts: recipe, rows, disk, licences."""
    recipe, rows = parameters.recipe, expected_rows(parameters)
    whole = "" if parameters.subset is None else " for the whole recipe"
    if recipe.source is not None:
        yield f"Recipe: {recipe.source}"
    if parameters.data.sources and rows is not None:
        names, training = ", ".join(parameters.data.sources), _describe_training(parameters, rows)
        yield f"Rows: an epoch takes {rows:,} of the sources {names}; {training}"
    elif rows is None:
        yield "Rows: counted when the captions are read; the steps follow from them"
    else:
        rows -= _carved_rows(parameters, rows)
        training = _describe_training(parameters, _views_per_epoch(parameters, rows))
        yield f"Rows: {rows:,} expected{_published_rows(recipe)}; {training}"
    if parameters.foils.carve:
        yield _describe_held_out(parameters)
    parts = written(parameters, rows or 0)
    shown = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
    needed = f"this run writes at least {size(sum(parts.values()))} ({shown})"
    images_gb = recipe.images_gb
    stated = "" if images_gb is None else f"images about {images_gb:g} GB{whole}; "
    yield f"Disk: {stated}{needed}; {size(free(Path.cwd()))} free"
    if recipe.source is not None:
        yield f"GPU hours: {gpu_hours(recipe)}{whole if recipe.gpu_hours else ''}"
        yield f"Licences: {licences(parameters)}"


def exact_line(parameters: RunSettings, captions: Table[Caption]) -> str:
    """Log line with the counted rows and steps of a training, after data validation."""
    rows = training_rows(captions, parameters.views.split)
    note = held_out_note(captions, parameters.views.split)
    held = f", {note}" if note else ""
    data, method = parameters.data, _build_method(parameters)
    if mixture := Mixture.from_weights(data.weights, data.epoch_rows, parameters.seed):
        sources = mixture.sources(rows, method)
        each = ", ".join(
            f"{own.share:,} of {name}'s {len(own.anchors):,}" for name, own in sources.items()
        )
        views = sum(own.share for own in sources.values())
        training = _describe_training(parameters, views)
        return f"Rows: {len(rows):,} train{held}; an epoch takes {each}; {training}"
    images = _has_view_per_image(method)
    views = len(rows.column("image_id").unique()) if images else len(rows)
    return f"Rows: {len(rows):,} train{held}; {_describe_training(parameters, views)}"


def markdown(recipes: Mapping[str, RunSettings]) -> str:
    """Markdown table of all recipes, for docs/reference/recipes.md.

    Args:
        recipes: settings by environment; those of no paper are left out.
    """
    head = (
        *("environment", "method", "data and layout below the root", "rows", "passes", "steps"),
        *("images", "hardware in the paper", "GPU hours in the paper", "licences"),
    )
    cells = [head, ("---",) * len(head)]
    for env, parameters in recipes.items():
        recipe, rows = parameters.recipe, expected_rows(parameters)
        if recipe.source is None or rows is None:
            continue
        hours = "not given" if recipe.gpu_hours is None else f"at most {recipe.gpu_hours:g}"
        count = steps(parameters, _views_per_epoch(parameters, rows))
        own = (f"`{env}`", find(parameters.method).label, recipe.data, f"{rows:,}")
        training = (str(parameters.training.epochs), f"{count:,}")
        paper = (f"{recipe.images_gb:g} GB", recipe.gpus or "not given", hours)
        cells.append((*own, *training, *paper, licences(parameters)))
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def licences(parameters: RunSettings) -> str:
    """Licences of a recipe's base model, images and captions, as text."""
    from compo_pipeline.versions.materials import UNKNOWN, base_material

    named = parameters.registration.licences
    base = base_material(parameters.model).licensed(named).licence
    shown = {"base": base, "images": named.images, "captions": named.captions}
    return "; ".join(f"{name} {licence or UNKNOWN}" for name, licence in shown.items())


def gpu_hours(recipe: RecipeFacts) -> str:
    """GPU hours and hardware that the recipe's paper states, as text."""
    hours = "not given" if recipe.gpu_hours is None else f"at most {recipe.gpu_hours:g}"
    return f"{hours} in the paper, on {recipe.gpus or 'hardware that it does not give'}"


def written(parameters: RunSettings, rows: int) -> dict[str, int]:
    """Minimal bytes that a run writes, by kind of output such as checkpoints."""
    method, training = _build_method(parameters), parameters.training
    weights, trained, width = _parameter_counts(parameters, method)
    alone = not parameters.evaluation.control
    models = 1 if alone else 2
    # The state and the one before it, each with two moments of what trains.
    state = 2 * (weights + 2 * trained)
    # A checkpoint, its export, and MLflow's copy of that.
    parts = {"checkpoints": _FLOAT * (models * (state + weights) + 2 * weights)}
    parts["tables and views"] = rows * (_ROW + _VIEW * parameters.views.epochs)
    if training.cache_features and "image" not in method.trains:
        parts["features"] = rows * width * _FLOAT
    parts["generated images"] = _generated_bytes(parameters, rows)
    return {name: count for name, count in parts.items() if count}


def check_disk(parameters: RunSettings) -> None:
    """Raise an error if the outputs of a run do not fit on the disk.

    Raises:
        SettingsError: naming the largest part, and the key that changes it.
    """
    parts = written(parameters, expected_rows(parameters) or 0)
    needed, left = sum(parts.values()), free(Path.cwd())
    if needed <= left or needed - _written_bytes(parameters) <= left:
        return
    keys = {
        "checkpoints": "evaluation.control=false trains one model in place of two",
        "tables and views": "views.epochs or data.sample.rows",
        "features": "training.cache_features=false",
        "generated images": "counterfactuals.image_generator=null",
    }
    largest = max(parts, key=lambda name: parts[name])
    shown = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
    raise SettingsError(
        f"disk: the run writes at least {size(needed)} below {Path.cwd()} ({shown}), {size(left)} "
        f"are free; free some, make data/ a link to a larger disk, or write less: {keys[largest]}"
    )


def size(count: float) -> str:
    """A number of bytes as text in GB or MB."""
    return f"{count / _GB:.1f} GB" if count >= _GB / 10 else f"{count / 10**6:.0f} MB"


def free(folder: Path) -> int:
    """Free bytes on the disk of a project's data folder."""
    data = folder / "data"
    return shutil.disk_usage(data if data.is_dir() else folder).free


def _build_method(parameters: RunSettings) -> Method:
    """Build the configured training method."""
    own = parameters.method_settings
    return build(parameters.method, own.views, own.objective)


def _has_view_per_image(method: Method) -> bool:
    """Whether an epoch of the method has one view per image instead of one per row."""
    from compo_pipeline.methods.counterfactual_pairs import CounterfactualPairs  # with torch

    return isinstance(method, CounterfactualPairs)


def _views_per_epoch(parameters: RunSettings, rows: int) -> int:
    """Number of views per epoch, given the number of training rows."""
    images = min(rows, parameters.recipe.images or rows)
    return images if _has_view_per_image(_build_method(parameters)) else rows


def _describe_training(parameters: RunSettings, views: int) -> str:
    """Text with the passes, batch size and steps of a training."""
    training, count = parameters.training, steps(parameters, views)
    limit = "" if training.max_steps is None else f", at most {training.max_steps:,} steps"
    passes = f"{training.epochs} pass{'es' * (training.epochs > 1)}"
    return f"{passes} over {views:,} in batches of {training.batch_size:,}{limit}: {count:,} steps"


def _describe_held_out(parameters: RunSettings) -> str:
    """Line of the logged run plan about the images that `foils.carve` holds out of training."""
    images, sample = parameters.foils.carve, parameters.data.sample.rows
    if CARVED in splits_of(parameters.views.split):
        return "Foils: of images that the sample leaves alone; the published rows train"
    left = "" if sample is None else f"of those that the sample of {sample:,} rows leaves; else "
    return (
        f"Foils: {images:,} images (foils.carve) are held out, {left}the rows that train are not "
        "the published rows (views.split=[train,carved] or variant=published trains on all)"
    )


def _carved_rows(parameters: RunSettings, rows: int) -> int:
    """Estimated number of rows that `foils.carve` holds out of training; 0 for a sample."""
    trains = CARVED in splits_of(parameters.views.split)
    if trains or parameters.data.sample.rows is not None:
        return 0
    images = parameters.recipe.images or rows
    return rows * min(parameters.foils.carve, images) // images


def _published_rows(recipe: RecipeFacts) -> str:
    """Published number of rows with its source, in parentheses; empty if unknown."""
    return "" if recipe.rows is None else f" ({recipe.rows_from}: {recipe.rows:,})"


def _parameter_counts(parameters: RunSettings, method: Method) -> tuple[int, int, int]:
    """Numbers of the model's parameters and trained parameters, and its embedding width."""
    from compo_pipeline.models.loading import dimensions

    found = dimensions(parameters.model)
    towers: Mapping[str, int] = {"image": found.image, "text": found.text}
    adapted = parameters.training.lora.rank is not None
    trained = 0 if adapted else sum(towers[name] for name in method.trains)
    return found.image + found.text, trained, found.width


def _generated_bytes(parameters: RunSettings, rows: int) -> int:
    """Estimated bytes of the images that a diffusion model generates, two per row."""
    chosen = parameters.counterfactuals
    if not find(parameters.method).counterfactuals or chosen.image_generator != "diffusion":
        return 0
    own = parse(DiffusionSettings, chosen.diffusion, "counterfactuals.diffusion")
    return int(2 * rows * own.height * own.width * _PIXEL)


def _written_bytes(parameters: RunSettings) -> int:
    """Bytes that earlier commands of the same run have written already."""
    paths = parameters.paths
    folders = Path(paths.resume).parent, Path(paths.features), Path(paths.counterfactuals_state)
    return sum(
        file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file()
    )
