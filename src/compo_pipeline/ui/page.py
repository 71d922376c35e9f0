"""The page laid out and served; what it answers lies in `trying`, how that looks in `showing`.

Nothing on it comes from elsewhere: no fonts, no scripts, no checks for updates.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click import ClickException

from compo_pipeline.configuration import SettingsError
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.ui import showing
from compo_pipeline.ui.examples import Example
from compo_pipeline.ui.opening import Opened
from compo_pipeline.ui.trying import (
    NoAttention,
    Unanswerable,
    captions_of,
    short_enough,
    unusable,
)

if TYPE_CHECKING:
    import gradio as gr

log = logging.getLogger(__name__)


def require_gradio() -> None:
    """Make sure that the page can be shown, before models are loaded.

    Raises:
        SettingsError: gradio is not installed.
    """
    if find_spec("gradio") is None:
        raise SettingsError(
            "compo-pipeline try needs the package gradio: pip install 'compo-pipeline[ui]'"
        )


def require_free(host: str, port: int) -> None:
    """Make sure that the address can be listened on, before models are loaded.

    Raises:
        ClickException: it is in use, or none of this machine.
    """
    try:
        # Probed as the server will bind it: a port whose connections have just ended is free.
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ClickException(
            f"--port: cannot listen on {host}:{port} ({error.strerror}); give another one, "
            f"such as --port {port + 1}"
        ) from None


def serve(opened: Opened, examples: Sequence[Example], host: str, port: int) -> None:
    """Serve the page until the process is interrupted.

    What is uploaded lies in a folder that goes with the process.

    Args:
        opened: the models.
        examples: images with captions to begin with.
        host: address to listen on.
        port: likewise.

    Raises:
        ClickException: the address cannot be listened on.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="compo_ui_") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        import gradio as gr

        page = build(opened, examples)
        log.info("%s: http://%s:%d (Ctrl+C ends it)", opened.title, host, port)
        try:
            page.launch(
                server_name=host,
                server_port=port,
                # Fonts that are there; those of the other themes are asked of Google.
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
            raise ClickException(f"--port: cannot listen on {host}:{port}: {error}") from None


def build(opened: Opened, examples: Sequence[Example]) -> gr.Blocks:
    """Lay the page out; it opens with the first example and its scores.

    Args:
        opened: the models.
        examples: images with captions to begin with.
    """
    import gradio as gr

    first = {"image": None, "captions": "", "scores": ""}
    if examples:
        found = opened.pair.scores(examples[0].image, examples[0].captions)
        first = {
            "image": str(examples[0].image),
            "captions": "\n".join(examples[0].captions),
            "scores": showing.table(found, opened.pair.label),
        }
    page = gr.Blocks(title=opened.title, analytics_enabled=False)
    with page:
        gr.HTML(showing.heading(opened), padding=False, elem_id="heading")
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
                # The file as it is: this project's own decoding has limits, and says why not.
                image.preprocess = lambda given: given and given.path
                problem = gr.HTML(padding=False, elem_id="problem")
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
            label="a phrase, to see where in the image it is looked for",
            submit_btn="Show",
            elem_id="phrase",
        )
        maps = gr.HTML(padding=False, elem_id="maps")
        _answering(opened, image, captions, compare, scores, phrase, maps)
        # At once, not when scores are asked for; uploads, examples and clearing all are changes.
        image.change(_problem, image, problem, api_visibility="private", show_progress="hidden")
    return page


def _answering(
    opened: Opened, image: Any, captions: Any, compare: Any, scores: Any, phrase: Any, maps: Any
) -> None:
    """Bind the page's parts to what answers."""
    pair = opened.pair

    def score(file: str | None, typed: str) -> str:
        with _told():
            return showing.table(pair.scores(_given(file), captions_of(typed)), pair.label)

    def attend(file: str | None, typed: str) -> str:
        with _told():
            asked = _asked(typed)
            try:
                return showing.figure(pair.attention(_given(file), asked), asked, pair.label)
            except NoAttention as error:
                return showing.sentence(str(error))

    # One at a time: the models are shared, and so is what draws.
    once: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1}
    asked = [
        compare.click(score, [image, captions], scores, api_visibility="private", **once),
        phrase.submit(attend, [image, phrase], maps, api_visibility="private", **once),
    ]
    # What was found in another image must not stand, or come to stand, beside this one.
    image.change(
        None, None, [scores, maps], js="() => ['', '']", api_visibility="private", cancels=asked
    )


@contextmanager
def _told() -> Iterator[None]:
    """What keeps an answer from being given is told on the page."""
    import gradio as gr

    try:
        yield
    except ImageError as error:
        raise gr.Error(unusable(error), print_exception=False) from error
    except Unanswerable as error:
        raise gr.Error(str(error), print_exception=False) from error


def _problem(file: str | None) -> str:
    """What is wrong with the image, to stay beside it; empty where nothing is."""
    if file is None:
        return ""
    path = Path(file)
    try:
        load(path.parent, path.name, Limits())
    except ImageError as error:
        return showing.problem(unusable(error))
    return ""


def _given(file: str | None) -> Path:
    if file is None:
        raise Unanswerable("Upload an image, or click on one below.")
    return Path(file)


def _asked(typed: str) -> str:
    if not typed.strip():
        raise Unanswerable("Type a phrase first.")
    return short_enough(typed.strip())
