"""`compo-pipeline try`: a page with a registered version beside its base, for one's own images.

It loads nothing from the network: no fonts, no scripts, no checks for updates.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from compo_pipeline.benchmarks.loading import enabled_folders, load_benchmark
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core import progress
from compo_pipeline.core.compute import choose_device, use_cores
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import PlainError, SettingsError, pip_install
from compo_pipeline.data.images.decoding import ImageError, Limits, is_file_name, load
from compo_pipeline.evaluation.embed import tokenize_texts
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods import registry as methods
from compo_pipeline.models.dense import NoPatches
from compo_pipeline.models.encoding import embed
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.pages.attention_plots import grids, panel_of
from compo_pipeline.pages.pages import render
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry import versions
from compo_pipeline.registry.settings import RegistrationSettings, SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import load_base, verified

if TYPE_CHECKING:
    import gradio as gr
    from mlflow.entities.model_registry import ModelVersion

_EXAMPLES = 6
_LONGEST = 10_000  # characters of the captions

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class VersionPair:
    """A registered version and the base model that it was fine-tuned from, both loaded.

    Attributes:
        name: name of the registered model, with the version's number.
        origin: lineage of the version.
        label: label of the version beside its base, such as its alias.
        base: the base model.
        tuned: the version's model.
    """

    name: str
    origin: str
    label: str
    base: LoadedModel
    tuned: LoadedModel

    def scores(self, image: Image.Image, captions: Sequence[str]) -> str:
        """HTML table of the cosines of an image with captions, with each model's best marked."""
        models = self.base, self.tuned
        embedded = [embed(model, [image], captions) for model in models]
        columns = [(t @ u[0]).tolist() for u, t in embedded]
        best = [max(column) for column in columns]
        long = np.any(
            [tokenize_texts(captions, model.tokenize).truncated for model in models], axis=0
        )
        pairs = [*zip(*columns, strict=True)]
        agree = all((base == best[0]) == (tuned == best[1]) for base, tuned in pairs)
        lines = [*zip(captions, long, pairs, strict=True)]
        context = {"lines": lines, "best": best, "agree": agree, "label": self.label}
        return render("ui/scores.html", context)

    def attention(self, image: Image.Image, phrase: str) -> Figure:
        """Figure of both models' attention maps for a phrase, and of their difference.

        Raises:
            NoPatches: the models have no patch features.
        """
        (figure,) = grids([panel_of(self.base, self.tuned, image, phrase)], ("base", self.label))
        return figure


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

    Uploads are stored in a temporary folder, which is deleted at the end.

    Args:
        registration: name and public key of the versions.
        store: URI of the MLflow store. A relative path is below the working directory.
        base: the base model's settings.
        evaluation: settings of evaluation, for the device.
        benchmarks: items of these are shown as examples.
        alias: alias of the version.
        version: number of the version, in place of an alias.
        host: address to listen on.
        port: port to listen on.

    Raises:
        SettingsError: gradio is not installed, or the version or its base is missing.
        PlainError: the address cannot be listened on.
    """
    if find_spec("gradio") is None:
        raise SettingsError(f"compo-pipeline try needs the package gradio: {pip_install('ui')}")
    tracking.connect(store, Path.cwd())
    found = versions.find(registration.name, alias, version)
    label = alias if version is None else f"version {version}"
    device = str(choose_device(evaluation.device, key="evaluation.device"))
    use_cores()
    pair = load_pair(found, label, base, device, registration.signing)
    log.info("%s and its base are loaded.", pair.name)
    # One line per request otherwise.
    logging.getLogger(progress.__name__).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="compo_ui_") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        import gradio as gr

        page = build(pair, [*islice(draw_examples(benchmarks), _EXAMPLES)])
        log.info("%s: http://%s:%d (Ctrl+C ends it)", pair.name, host, port)
        try:
            page.launch(
                server_name=host,
                server_port=port,
                # System fonts: those of the other themes are loaded from Google.
                theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
                css_paths=Path(__file__).parent / "templates" / "ui" / "page.css",
                quiet=True,
                show_error=True,
                ssr_mode=False,
                run_history=False,
                footer_links=[],
                enable_monitoring=False,
                max_file_size="50mb",
            )
        except OSError as error:
            raise PlainError(f"--port: cannot listen on {host}:{port}: {error}") from None


def load_pair(
    version: ModelVersion, label: str, base: ModelSettings, device: str, signing: SigningSettings
) -> VersionPair:
    """Load a registered version and the base model that it was fine-tuned from.

    Args:
        version: version of the registry.
        label: label of the version beside its base.
        base: the base's settings.
        device: device of both models.
        signing: the configured keys.

    Raises:
        SettingsError: `model` names another base.
        VersionError: the version's files are not those that were registered.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = verified(version, Path(folder), signing)
        method = methods.label(read_record(found.export).get("method", "unknown method"))
        tuned = found.load().to(device)
    own = load_base(found.lineage, base, device)
    name, origin = f"{version.name}, version {version.version}", f"fine-tuned from {own.name}"
    return VersionPair(name, f"{method}, {origin}", label, own, tuned)


def draw_examples(settings: BenchmarksSettings, seed: int = 0) -> Iterator[list[str]]:
    """Yield image file and captions of a random item of each subtask with image-to-text choice.

    The last caption is wrong. Benchmarks and images that cannot be read give none.
    """
    draw, subtasks = rng("examples", seed), []
    for place in enabled_folders(settings):
        try:
            loaded = load_benchmark(place, settings)
            subtasks += [task for task in loaded if "image_to_text" in task.protocols]
        except SettingsError as error:
            log.info("No examples of %s: %s", place.benchmark.label, error.message)
    for task in draw.sample(subtasks, len(subtasks)):
        # The page opens files: no crops, nothing in an archive.
        items = [item for item in task.items if is_file_name(item.image)]
        for item in draw.sample(items, min(1, len(items))):
            with suppress(ImageError):
                load(*task.image_locations(item)[0])
                yield [str(task.path(item)), "\n".join((*item.positives, *item.negatives))]


def build(pair: VersionPair, examples: Sequence[list[str]]) -> gr.Interface:
    """Build the gradio page.

    Args:
        pair: the models.
        examples: image file and captions of each.
    """
    import gradio as gr

    def compare(file: str | None, text: str, phrase: str) -> tuple[str, Figure | None]:
        """Scores of the captions, and the attention of the phrase if there is one."""
        try:
            if file is None:
                raise PlainError("Upload an image, or click on one below.")
            image = load(Path(file).parent, Path(file).name, Limits())
            scores = pair.scores(image, captions_of(text))
            return scores, pair.attention(image, phrase.strip()) if phrase.strip() else None
        except (ImageError, PlainError, NoPatches) as error:
            raise gr.Error(str(error), print_exception=False) from error

    file, text = examples[0] if examples else (None, "")
    image: Any = gr.Image(
        file,
        label="image",
        type="filepath",
        height=320,
        sources=["upload", "clipboard"],
        elem_id="image",
    )
    # The unchanged file: this project's decoding has limits and explains refusals.
    image.preprocess = lambda given: given and given.path
    texts: dict[str, Any] = {"max_length": _LONGEST}
    return gr.Interface(
        compare,
        [
            image,
            gr.Textbox(text, label="captions, one a line", lines=4, elem_id="captions", **texts),
            gr.Textbox(label="a phrase, for its attention", elem_id="phrase", **texts),
        ],
        [
            gr.HTML(compare(file, text, "")[0] if file else "", elem_id="scores"),
            gr.Plot(label="attention of the phrase, times uniform", elem_id="maps"),
        ],
        title=f"{pair.name}: {pair.origin}",
        description=f"{pair.label}. The last caption of each example is wrong.",
        examples=[[*one, ""] for one in examples] or None,
        cache_examples=False,
        deep_link=False,
        submit_btn=gr.Button("Compare", variant="primary", elem_id="compare"),
        flagging_mode="never",
        analytics_enabled=False,
        api_visibility="private",
    )


def captions_of(text: str) -> list[str]:
    """Captions in the page's text field, one per line, without empty lines and duplicates.

    Raises:
        PlainError: there are none.
    """
    captions = [*dict.fromkeys(filter(None, map(str.strip, text.splitlines())))]
    if not captions:
        raise PlainError("Type at least one text.")
    return captions
