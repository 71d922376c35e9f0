"""HTML pages on one base template: self-contained, light and dark, printable on A4."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from compo_pipeline.images.decoding import ACCEPTED, ImageError, Limits, load
from compo_pipeline.storage.files import write_text

SIDE = 320  # of images on pages, in pixels
T = TypeVar("T")
_PIPELINE = re.compile(r"--pipeline=(\S+)")
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a related page, with the command that makes it if it does not exist yet."""

    label: str
    href: str
    command: str | None


@dataclass(frozen=True, slots=True)
class EditedText:
    """An edited caption in `pieces`, each with whether it is new; `gone` are removed pieces."""

    pieces: tuple[tuple[str, bool], ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageCard:
    """An image as a data URI, or the reason why it cannot be shown; empty if there is none."""

    label: str = ""
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""


def render(template: str, context: Mapping[str, Any], **filters: Callable[..., str]) -> str:
    """Render a Jinja template of this package; values are escaped, an unknown name is an error.

    Args:
        template: file name below `templates`.
        context: variables of the template; `base.html` says which ones it needs.
        filters: of the template, besides those of every page.
    """
    jinja = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(number=number, signed=signed, minus=minus, p_value=p_value)
    jinja.filters.update(links_by_command=links_by_command)
    jinja.filters.update(filters, thousands="{:,}".format)
    return jinja.get_template(template).render({"facts": {}, "links": (), **context})


def write(
    file: Path, template: str, context: Mapping[str, Any], **filters: Callable[..., str]
) -> Path:
    """Render a Jinja template of this package to a file; takes the arguments of `render`."""
    write_text(file, render(template, context, **filters))
    return file


def thumbnail(image: Image.Image, side: int = SIDE) -> tuple[str, int, int]:
    """JPEG thumbnail of an image as a data URI, with its width and height in pixels."""
    small = image.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85, subsampling=0)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/jpeg;base64,{encoded}", small.width, small.height


def image_card(folder: Path, path: str, limits: Limits = ACCEPTED) -> ImageCard:
    """The thumbnail card of an image file, or a card with the problem if it cannot be read."""
    try:
        return ImageCard(path, *thumbnail(load(folder, path, limits)))
    except (ImageError, OSError) as error:
        return ImageCard(path, problem=str(error))


def changed_words(text: str, others: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield pieces of a text, each with whether it differs from the most similar other text.

    Texts are compared word by word, ignoring case.
    """

    def folded(one: str) -> list[str]:
        return [word.casefold() for word in _WORD.findall(one)]

    words = list(_WORD.finditer(text))
    matchers = [SequenceMatcher(None, folded(one), folded(text), autojunk=False) for one in others]
    changes = max(matchers, key=SequenceMatcher.ratio).get_opcodes()
    spans = (
        (words[start].start(), words[end - 1].end(), True)
        for change, _, _, start, end in changes
        if change != "equal" and start < end
    )
    return pieces(text, spans, False)


def pieces(text: str, spans: Iterable[tuple[int, int, T]], between: T) -> Iterator[tuple[str, T]]:
    """Split a text into marked spans and the pieces between them; yields each with its mark.

    Args:
        text: the whole.
        spans: start, end and mark of each, one after another.
        between: mark of the other pieces.
    """
    position = 0
    for start, end, mark in spans:
        if position < start:
            yield text[position:start], between
        yield text[start:end], mark
        position = end
    if position < len(text):
        yield text[position:], between


def edited_text(text: str | None, caption: str) -> EditedText:
    """Mark the words that an edited text adds to its caption, and those that it removes."""
    if not text:
        return EditedText()
    gone = tuple(piece for piece, changed in changed_words(caption, [text]) if changed)
    return EditedText(tuple(changed_words(text, [caption])), gone)


def number(value: float) -> str:
    """Format a number with one decimal."""
    return minus(f"{value:.1f}")


def signed(value: float) -> str:
    """Format a number with one decimal and always a sign."""
    return minus(f"{value:+.1f}")


def p_value(p: float) -> str:
    """Format a p-value with three decimals, without the leading zero."""
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def minus(text: str) -> str:
    """Replace the hyphens before numbers in a text by typographic minus signs."""
    return re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)


def links_by_command(links: Iterable[Link]) -> list[tuple[str, list[tuple[str, Link]]]]:
    """Group links to pages that do not exist yet by the command that makes them.

    Commands that differ in their pipeline alone are one, with NAME in its place.

    Returns:
        Each command, and its links with the pipeline's name, empty where the command says it.
    """
    groups: dict[str, list[tuple[str, Link]]] = {}
    for link in links:
        if link.command is not None:
            named = _PIPELINE.search(link.command)
            command = _PIPELINE.sub("--pipeline=NAME", link.command)
            groups.setdefault(command, []).append((named.group(1) if named else "", link))
    alone = [(str(made[0][1].command), [("", made[0][1])]) for made in groups.values()]
    shared = groups.items()
    return [one if len(many[1]) == 1 else many for one, many in zip(alone, shared, strict=True)]


def links(folder: Path, pages: Mapping[str, tuple[Path, str]]) -> list[Link]:
    """Build relative links from a page to other pages.

    Args:
        folder: of the page that shows the links.
        pages: by label, where a page is (or will be) and the command that makes it.
    """
    return [
        Link(label, os.path.relpath(page, folder), None if page.is_file() else command)
        for label, (page, command) in pages.items()
    ]
