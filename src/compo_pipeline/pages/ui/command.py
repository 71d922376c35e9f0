"""`compo-pipeline try`: serve a page with a registered version beside its base."""

from __future__ import annotations

import logging
from pathlib import Path

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import enabled_folders, load_benchmark
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core import progress
from compo_pipeline.core.compute import choose_device, use_cores
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images.decoding import ImageError, is_file_name, load
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pages.ui import page
from compo_pipeline.pages.ui.page import PageExample
from compo_pipeline.pages.ui.version import load_pair
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry import versions
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings

_EXAMPLES = 6

log = logging.getLogger(__name__)


def run(
    registration: RegistrationSettings,
    store: TrackingSettings,
    base: ModelSettings,
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    alias: str,
    version: int | None,
    host: str,
    port: int,
) -> None:
    """Serve a web page that compares a registered version with its base, until interrupted.

    Args:
        registration: name and public key of the versions.
        store: MLflow's; a relative path is below the working directory.
        base: the base model's settings.
        evaluation: its device is used.
        benchmarks: whose items are shown as examples.
        alias: of the version.
        version: its number, instead of an alias.
        host: address to listen on.
        port: likewise.

    Raises:
        SettingsError: gradio is not installed, or the version or its base is missing.
        PlainError: the address cannot be listened on.
    """
    page.require_gradio()
    tracking.connect(store, Path.cwd())
    found = versions.find(registration.name, alias, version)
    label = alias if version is None else f"version {version}"
    device = str(choose_device(evaluation.device, key="evaluation.device"))
    use_cores()
    pair = load_pair(found, label, base, device, registration.signing)
    log.info("%s version %s and its base are loaded.", pair.name, pair.version)
    # One line per request otherwise.
    logging.getLogger(progress.__name__).setLevel(logging.WARNING)
    page.serve(pair, draw_examples(benchmarks, _EXAMPLES), host, port)


def draw_examples(settings: BenchmarksSettings, count: int, seed: int = 0) -> list[PageExample]:
    """Random example items for the page, one of each subtask with image-to-text choice.

    Args:
        settings: which benchmarks, and where; of those that cannot be read there are no examples.
        count: maximum number of examples.
        seed: of the draw.
    """
    subtasks = []
    for place in enabled_folders(settings):
        try:
            loaded = load_benchmark(place, settings)
        except SettingsError as error:
            log.info("No examples of %s: %s", place.benchmark.label, error.message)
        else:
            subtasks += [task for task in loaded if "image_to_text" in task.protocols]
    rng("examples", seed).shuffle(subtasks)
    drawn = (_draw_item(subtask, seed) for subtask in subtasks)
    return [example for example in drawn if example is not None][:count]


def _draw_item(subtask: Subtask, seed: int) -> PageExample | None:
    """Random item of a subtask whose image can be decoded; None after three failures."""
    draw = rng("examples", seed, subtask.benchmark, subtask.name)
    # The page opens files: no crops, nothing in an archive.
    items = [item for item in subtask.items if is_file_name(item.image)]
    for item in draw.sample(items, min(3, len(items))):
        try:
            load(*subtask.image_locations(item)[0])
        except ImageError:
            continue
        return PageExample(subtask.path(item), (*item.positives, *item.negatives))
    return None
