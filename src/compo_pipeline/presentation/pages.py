"""HTML pages on one base template: self-contained, light and dark, printable on A4."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from compo_pipeline.images.decoding import ACCEPTED, ImageError, Limits, load
from compo_pipeline.storage.files import write_text

SIDE = 320  # of images on pages, in pixels
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


class Cell(NamedTuple):
    """A cell of a table: its text, a further class of its style, and smaller text behind it."""

    text: str
    kind: str = ""
    small: str = ""


@dataclass(frozen=True)
class Table:
    """A section with a table.

    Attributes:
        columns: heads of the columns.
        rows: cells of each row, as texts or `Cell`.
        words: columns of text, which is left-aligned and broken; others have numbers.
        title: heading of the section; empty for none.
        note: what to know to read it.
        folded: whether it is shown on demand, below its title.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[str | Cell]]
    words: Collection[str] = ()
    title: str = ""
    note: str = ""
    folded: bool = False

    @property
    def lines(self) -> list[list[Cell]]:
        """Cells of each row, with the style of their column."""
        kinds = ["words" if name in self.words else "" for name in self.columns]
        return [
            [
                cell if isinstance(cell, Cell) else Cell(cell, kind)
                for cell, kind in zip(row, kinds, strict=True)
            ]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Plot:
    """A section with a figure: an SVG element in the page's colours, or images."""

    svg: str = ""
    images: Sequence[ImageCard] = ()
    label: str = ""
    title: str = ""
    note: str = ""


class Side(NamedTuple):
    """A part of a card: heading, image, text or edited text, smaller lines, and a problem.

    `kind` is `positive`, `negative` or empty.
    """

    title: str = ""
    image: ImageCard | None = None
    text: str | EditedText = ""
    lines: Sequence[str] = ()
    problem: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Cards:
    """A section with cards, each a head (texts at its ends) and sides beside each other."""

    cards: Sequence[tuple[Sequence[str], Sequence[Side]]]
    title: str = ""
    note: str = ""
    small: bool = False
    """Whether several cards stand beside each other."""


@dataclass(frozen=True)
class Text:
    """A section with a paragraph, and lines to copy; text between backticks is code."""

    text: str = ""
    title: str = ""
    code: str = ""
    note: str = ""


@dataclass(frozen=True)
class List:
    """A section with items; text between backticks is code."""

    items: Sequence[str]
    title: str = ""
    note: str = ""


Section: TypeAlias = Table | Plot | Cards | Text | List


@dataclass(frozen=True)
class Page:
    """A page: what it is about, a summary, facts, links, and sections.

    Attributes:
        title: heading of the page.
        over: line above the heading, which says what kind of page it is.
        sections: parts below the head.
        summary: sentences, of which the first one is shown larger.
        facts: label to text.
        links: related pages.
        alarm: whether the first sentence is bad news.
    """

    title: str
    over: str
    sections: Sequence[Section]
    summary: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    links: Sequence[Link] = ()
    alarm: bool = False

    def write(self, file: Path) -> Path:
        """Write the page to an HTML file, or to a Markdown file, which has no images."""
        sections = [(type(each).__name__, each) for each in self.sections]
        context = {each.name: getattr(self, each.name) for each in fields(self)}
        return write(file, f"page{file.suffix}", {**context, "sections": sections})


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
    jinja.filters.update(links_by_command=links_by_command, coded=coded)
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
    position = 0
    for change, _, _, start, end in changes:
        if change != "equal" and start < end:
            first, last = words[start].start(), words[end - 1].end()
            if position < first:
                yield text[position:first], False
            yield text[first:last], True
            position = last
    if position < len(text):
        yield text[position:], False


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


def coded(text: str) -> Markup:
    """HTML of a text in which backticks enclose code."""
    parts = enumerate(text.split("`"))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in parts
    )


def counted(counts: Mapping[str, int]) -> str:
    """Names with their numbers, in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {times:,}" for name, times in counts.items())


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
