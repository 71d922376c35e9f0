"""Parts of the page as HTML, in which whatever was typed is text."""

from __future__ import annotations

from typing import Any

from PIL import Image

from compo_pipeline.presentation.pages import environment
from compo_pipeline.presentation.thumbnails import thumbnail
from compo_pipeline.ui.opening import Opened
from compo_pipeline.ui.trying import Scores

_SIDE = 1400


def heading(opened: Opened) -> str:
    """Which version of which model this is, and where it comes from."""
    return _filled("heading.html", opened=opened)


def table(scores: Scores, label: str) -> str:
    """Every caption's scores, the best of each model marked.

    Args:
        scores: of one image.
        label: what the fine-tuned model is called.
    """
    return _filled("scores.html", scores=scores, label=label)


def figure(maps: Image.Image, phrase: str, label: str) -> str:
    """The maps of both models; the image travels inside.

    Args:
        maps: of `Pair.attention`.
        phrase: what was asked.
        label: what the fine-tuned model is called.
    """
    source, width, height = thumbnail(maps, _SIDE)
    size = {"width": width, "height": height}
    return _filled("attention.html", source=source, phrase=phrase, label=label, **size)


def sentence(text: str) -> str:
    """A paragraph in place of an answer."""
    return _filled("sentence.html", text=text)


def problem(text: str) -> str:
    """A paragraph that says what is wrong with what was given."""
    return _filled("problem.html", text=text)


def _filled(template: str, **given: Any) -> str:
    return environment().get_template(f"ui/{template}").render(given)
