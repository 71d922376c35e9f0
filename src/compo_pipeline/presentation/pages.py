"""HTML pages on one base template: self-contained, light and dark, printable on A4."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Link:
    """A related page; `command` makes it where it does not exist yet, else None."""

    label: str
    href: str
    command: str | None


def environment() -> Environment:
    """The Jinja environment of every page: values are escaped, an unknown name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(number=number, signed=signed, minus=minus)
    return found


def render(template: str, context: Mapping[str, Any]) -> str:
    """A page from a template of this package.

    Args:
        template: file name below `templates`.
        context: variables of the template; `base.html` says which ones it needs.
    """
    return environment().get_template(template).render(context)


def number(value: float) -> str:
    """One decimal."""
    return minus(f"{value:.1f}")


def signed(value: float) -> str:
    """One decimal and always a sign."""
    return minus(f"{value:+.1f}")


def minus(text: str) -> str:
    """A text with typographic minus signs before its numbers."""
    return re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)


def links(folder: Path, pages: Mapping[str, tuple[Path, str]]) -> list[Link]:
    """Relative links from a page to others.

    Args:
        folder: of the page that shows the links.
        pages: by label, where a page is (or will be) and the command that makes it.
    """
    return [
        Link(label, os.path.relpath(page, folder), None if page.is_file() else command)
        for label, (page, command) in pages.items()
    ]
