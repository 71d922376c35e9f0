"""Pages: facts and sections of five kinds, as one self-contained HTML file, or as Markdown."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from compo_pipeline.core.provenance import Site
from compo_pipeline.data.images.decoding import ACCEPTED, ImageError, Limits, load

SIDE = 320  # of images on pages, in pixels
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


class Link(NamedTuple):
    """A link to a related page, with the pipeline that makes it if it does not exist yet."""

    label: str
    href: str
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class ImageCard:
    """An image as a data URI, or the reason why it cannot be shown, empty if there is none."""

    label: str = ""
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""


class Cell(NamedTuple):
    """A cell of a table: its value, classes of its style, and smaller text behind it.

    A value is text, HTML, or a number: whole, with one decimal, or none.
    """

    value: str | Markup | int | float | None
    kind: str = ""
    small: str = ""

    @property
    def text(self) -> str | Markup:
        """The value as text."""
        if isinstance(self.value, float):
            return f"{self.value:.1f}"
        if isinstance(self.value, int):
            return f"{self.value:,}"
        return "–" if self.value is None else self.value


CellLike: TypeAlias = Cell | str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page.

    Attributes:
        title: heading. Empty for none.
        note: explanation for the reader. Text between backticks is code.
        folded: whether it is shown on demand, below its title.
    """

    title: str = ""
    note: str = ""
    folded: bool = False

    @property
    def shown(self) -> bool:
        """Whether there is something to show: rows, cards or items, if it is a section of such."""
        return all(getattr(self, name, True) for name in ("rows", "cards", "items"))


@dataclass(frozen=True)
class Table(Section):
    """A section with a table.

    Attributes:
        columns: heads of the columns.
        rows: cells of each row, or their values.
        words: columns of text, which is left-aligned and broken; others have numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[CellLike]]
    words: Collection[str] = ()

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]], head: str, form: str, **section: Any) -> Table:
        """A table of values.

        Args:
            rows: values of each row.
            head: heads of the columns, such as `name | share`.
            form: formats of a row's cells, such as `{0} | {1[share]:.2f}`.
            section: fields of the section.
        """
        forms = form.split(" | ")
        return cls(
            head.split(" | "), [[one.format(*row) for one in forms] for row in rows], **section
        )

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
class Plot(Section):
    """A section with a figure: an image, or HTML.

    Attributes:
        label: label of what the figure shows.
        uri: data URI of the image.
        html: HTML of the figure in place of an image.
        file: name of a file of the image beside the page; empty for none.
        content: content of that file.
    """

    label: str
    uri: str = ""
    html: str = ""
    file: str = ""
    content: bytes = field(default=b"", repr=False)


class Side(NamedTuple):
    """A part of a card: heading, image, text or its HTML, smaller lines, and a problem.

    `kind` is `positive`, `negative` or empty.
    """

    title: str = ""
    image: ImageCard | None = None
    text: str | Markup = ""
    lines: Sequence[str] = ()
    problem: str = ""
    kind: str = ""


class Card(NamedTuple):
    """A card: its head (texts at both ends), sides beside each other, and a table below."""

    head: Sequence[str]
    sides: Sequence[Side] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Cards(Section):
    """A section with cards.

    Several `small` ones stand beside each other.
    """

    cards: Sequence[Card]
    small: bool = False


@dataclass(frozen=True)
class Text(Section):
    """A section with a paragraph, and lines to copy.

    Text between backticks is code.
    """

    text: str = ""
    code: str = ""


@dataclass(frozen=True)
class List(Section):
    """A section with items.

    Text between backticks is code.
    """

    items: Sequence[str]


@dataclass(frozen=True)
class Page:
    """A page: title, summary, facts, links, and sections.

    Attributes:
        title: heading of the page.
        over: line above the heading, with the kind of the page.
        sections: parts below the head; those without rows, cards or items are left out.
        summary: sentences of the summary. The first one is shown larger.
        facts: label to text.
        links: related pages.
        command: command that makes missing pages, with NAME in place of the pipeline.
        alarm: whether the first sentence is bad news.
        script: JavaScript of the page.
    """

    title: str
    over: str
    sections: Sequence[Section]
    summary: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    links: Sequence[Link] = ()
    command: str = ""
    alarm: bool = False
    script: str = ""

    def files(self, *names: str) -> dict[str, str | bytes]:
        """The page as HTML or Markdown, by the suffix of each name, and files of its plots."""
        sections = [(type(each).__name__, each) for each in self.sections if each.shown]
        context = {**vars(self), "sections": sections}
        plots = [each for each in self.sections if isinstance(each, Plot) and each.file]
        return {
            **{name: render(f"page{PurePath(name).suffix}", context) for name in names},
            **{plot.file: plot.content for plot in plots},
        }


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render a Jinja template of this package.

    Values are escaped, an unknown name is an error.
    """
    jinja = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(minus=minus, coded=coded)
    return jinja.get_template(template).render(context)


def thumbnail(image: Image.Image, side: int = SIDE) -> tuple[str, int, int]:
    """JPEG thumbnail of an image as a data URI, with its width and height in pixels."""
    small = image.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85, subsampling=0)
    return data_uri(buffer.getvalue(), "jpeg"), small.width, small.height


def data_uri(content: bytes, kind: str) -> str:
    """Data URI of an image file's content of a kind, such as `png`."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


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


def marked(text: str, others: Sequence[str]) -> Markup:
    """HTML of a text, with the words marked that differ from the most similar other text."""
    mark = Markup("<mark>{}</mark>").format
    pieces = changed_words(text, others)
    return Markup().join(mark(piece) if changed else piece for piece, changed in pieces)


def interval(low: float, high: float, form: str = ".1f") -> str:
    """Text of an interval, `[1.2, 3.4]`, or of a difference's with the form `+.1f`."""
    return f"[{low:{form}}, {high:{form}}]"


def p_value(p: float) -> str:
    """Format a p-value with three decimals, without the leading zero."""
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def minus(text: str | Markup) -> str:
    """Replace the hyphens before numbers in a text by typographic minus signs.

    HTML stays.
    """
    return text if isinstance(text, Markup) else re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)


def coded(text: str) -> Markup:
    """HTML of a text in which backticks enclose code, with minus signs outside of code."""
    parts = enumerate(text.split("`"))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else minus(part)
        for place, part in parts
    )


def counted(counts: Mapping[str, int]) -> str:
    """Names with their numbers, in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {times:,}" for name, times in counts.items())


def links(folder: Path, site: Site, pages: Mapping[str, tuple[str, str]]) -> list[Link]:
    """Build relative links from a page to other pages.

    Args:
        folder: folder of the page that shows the links.
        site: places of the pages.
        pages: pages by label, the catalog entry of a page and the pipeline that makes it.
    """
    return [
        Link(
            label,
            os.path.relpath(site.page(entry), folder),
            "" if site.page(entry).is_file() else pipeline,
        )
        for label, (entry, pipeline) in pages.items()
    ]
