"""The page of `compo-pipeline try`: layout, event handlers and server.

It loads nothing from the network: no fonts, no scripts, no checks for updates.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.settings import PlainError, SettingsError, pip_install
from compo_pipeline.data.images.decoding import ImageError
from compo_pipeline.models.dense import NoPatches
from compo_pipeline.pages.pages import render, thumbnail
from compo_pipeline.pages.ui.version import (
    CaptionScores,
    InputError,
    VersionPair,
    captions_of,
    checked_length,
)

if TYPE_CHECKING:
    import gradio as gr
    from PIL import Image

_FIGURE_SIDE = 1400

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PageExample:
    """An example on the page: an image file with captions, of which the last is wrong."""

    image: Path
    captions: tuple[str, ...]


def require_gradio() -> None:
    """Check that gradio is installed, before models are loaded.

    Raises:
        SettingsError: gradio is not installed.
    """
    if find_spec("gradio") is None:
        raise SettingsError(f"compo-pipeline try needs the package gradio: {pip_install('ui')}")


def serve(pair: VersionPair, examples: Sequence[PageExample], host: str, port: int) -> None:
    """Serve the comparison page with gradio until the process is interrupted.

    Uploads are stored in a temporary folder, which is deleted at the end.

    Args:
        pair: the models.
        examples: offered below the captions.
        host: address to listen on.
        port: likewise.

    Raises:
        PlainError: the address cannot be listened on.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="compo_ui_") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        import gradio as gr

        page = build(pair, examples)
        log.info("%s: http://%s:%d (Ctrl+C ends it)", pair.title, host, port)
        try:
            page.launch(
                server_name=host,
                server_port=port,
                # System fonts: those of the other themes are loaded from Google.
                theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
                css=files(__package__).joinpath("page.css").read_text(encoding="utf-8"),
                share=False,
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


def build(pair: VersionPair, examples: Sequence[PageExample]) -> gr.Blocks:
    """Build the gradio page, filled with the first example and its scores.

    Args:
        pair: the models.
        examples: offered below the captions.
    """
    import gradio as gr

    first = {"image": None, "captions": "", "scores": ""}
    if examples:
        found = pair.scores(examples[0].image, examples[0].captions)
        first = {
            "image": str(examples[0].image),
            "captions": "\n".join(examples[0].captions),
            "scores": score_table(found, pair.label),
        }
    page = gr.Blocks(title=pair.title, analytics_enabled=False)
    with page:
        gr.HTML(render("ui/heading.html", {"pair": pair}), padding=False, elem_id="heading")
        with gr.Row():
            with gr.Column(scale=2):
                image: Any = gr.Image(
                    first["image"],
                    label="image",
                    type="filepath",
                    image_mode=None,
                    height=320,
                    sources=["upload", "clipboard"],
                    buttons=[],
                    elem_id="image",
                )
                # The unchanged file: this project's decoding has limits and explains refusals.
                image.preprocess = lambda given: given and given.path
            with gr.Column(scale=3):
                captions = gr.Textbox(
                    first["captions"],
                    label="captions, one a line",
                    lines=4,
                    max_lines=12,
                    elem_id="captions",
                )
                compare = gr.Button("Compare", variant="primary", elem_id="compare")
                scores = gr.HTML(first["scores"], padding=False, elem_id="scores")
        if examples:
            gr.Examples(
                [[str(each.image), "\n".join(each.captions)] for each in examples],
                inputs=[image, captions],
                visible_columns=[0],
                label="images of the benchmarks; the last caption of each is wrong",
                elem_id="examples",
            )
        phrase = gr.Textbox(
            label="a phrase, for its attention in the image",
            submit_btn="Show",
            elem_id="phrase",
        )
        maps = gr.HTML(padding=False, elem_id="maps")

        @_user_errors()
        def score(file: str | None, text: str) -> str:
            return score_table(pair.scores(_existing(file), captions_of(text)), pair.label)

        @_user_errors()
        def attend(file: str | None, text: str) -> str:
            if not text.strip():
                raise InputError("Type a phrase first.")
            typed = checked_length(text.strip())
            return attention_figure(pair.attention(_existing(file), typed), typed, pair.label)

        # One at a time: models and matplotlib are shared.
        once: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1}
        running = [
            compare.click(score, [image, captions], scores, api_visibility="private", **once),
            phrase.submit(attend, [image, phrase], maps, api_visibility="private", **once),
        ]
        # Results of another image are cleared, and those still being computed are cancelled.
        image.change(
            None,
            None,
            [scores, maps],
            js="() => ['', '']",
            api_visibility="private",
            cancels=running,
        )
    return page


def score_table(scores: Sequence[CaptionScores], label: str) -> str:
    """HTML table of each caption's scores by both models, with each model's best marked.

    Args:
        scores: of one image.
        label: of the fine-tuned model.
    """
    agree = all(line.best_of_base == line.best_of_tuned for line in scores)
    return render("ui/scores.html", {"scores": scores, "label": label, "agree": agree})


def attention_figure(maps: Image.Image, phrase: str, label: str) -> str:
    """HTML figure of both models' attention maps for a phrase, with the image embedded.

    Args:
        maps: of `VersionPair.attention`.
        phrase: as typed.
        label: of the fine-tuned model.
    """
    source, width, height = thumbnail(maps, _FIGURE_SIDE)
    size = {"source": source, "width": width, "height": height}
    return render("ui/attention.html", {**size, "phrase": phrase, "label": label})


@contextmanager
def _user_errors() -> Iterator[None]:
    """Context manager: show errors of the user's input as messages on the page."""
    import gradio as gr

    try:
        yield
    except (ImageError, InputError, NoPatches) as error:
        raise gr.Error(str(error), print_exception=False) from error


def _existing(file: str | None) -> Path:
    """Path of the uploaded image; raise an error for the user if there is none."""
    if file is None:
        raise InputError("Upload an image, or click on one below.")
    return Path(file)
