"""Approved outlines of pages: see CONTRIBUTING.md."""

import os
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

APPROVED = Path(__file__).parent / "pages" / "approved"
SHOWN = {
    *("h1", "h2", "h3", "dt", "a", "pre", "p", "li", "summary", "figure", "img", "mark", "code")
}


class Outline(HTMLParser):
    """What a page consists of: its elements in their order, and the shapes of its tables."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.table: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("class") or ""
        if tag in SHOWN or tag in ("article", "section", "details"):
            self.lines.append(f"{tag} {kind}".strip())
        elif tag == "tr":
            self.table.append([])
        elif tag in ("td", "th"):
            self.table[-1].append(kind)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            kinds = sorted({kind for line in self.table for kind in line if kind})
            shape = f"{len(self.table) - 1} x {len(self.table[0])}"
            self.lines.append(" ".join(["table", shape, *kinds]))
            self.table = []


def outline(html: str) -> str:
    """The outline of a page, with equal lines and equal cards in a row counted."""
    parser = Outline()
    parser.feed(re.sub("<script>.*?</script>", "", html, flags=re.DOTALL))
    parts: list[list[str]] = [[]]
    for line in parser.lines:
        if line.startswith(("article", "h2", "details")):
            parts.append([])
        parts[-1].append(line)
    lines: list[str] = []
    for part, times in _counted(parts):
        shown = [f"{line} ({count})" if count > 1 else line for line, count in _counted(part)]
        lines += [*shown[:1], *([f"  the same {times} times"] if times > 1 else []), *shown[1:]]
    return "".join(f"{line}\n" for line in lines)


def _counted(values: Iterable[T]) -> list[tuple[T, int]]:
    """Each value with how often it stands in a row."""
    return [(value, len(list(same))) for value, same in groupby(values)]


def check(name: str, html: str) -> None:
    """Compare the outline of a page with the approved one; the page needs nothing but itself."""
    bare = re.sub("<script>.*?</script>", "", html, flags=re.DOTALL)
    fetched = re.findall(r"""\bsrc=["']([^"']*)|url\(([^)]*)\)|<link[^>]*""", bare)
    assert all((one or other).startswith(("data:", "#")) for one, other in fetched)
    assert "default-src 'none'" in html and "<!doctype html>" in html
    file, found = APPROVED / f"{name}.txt", outline(html)
    if os.environ.get("APPROVE"):
        APPROVED.mkdir(exist_ok=True)
        file.write_text(found, "utf-8")
    assert found == file.read_text("utf-8")
