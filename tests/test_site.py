"""The documentation site: links that hold, pages that need no network, every page reached."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.processes import ran

_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class _Page(HTMLParser):
    """Names of a page's anchors, its links, and what a browser loads to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _LOADED and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given.get(_LOADED[tag], ""))


@pytest.fixture(scope="module")
def site(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    for command in (
        [str(project / "benchmarks" / "project" / "pages.py")],
        ["-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
    ):
        done = ran([sys.executable, *command], project, NO_MKDOCS_2_WARNING="1")
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_links_and_anchors_hold_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 50
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # a web server's alone
            continue
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                broken.append((path.name, link))
            elif parts.fragment and target in pages:
                anchors = pages[target].anchors
                if unquote(parts.fragment) not in anchors | {"__comments"}:
                    broken.append((path.name, link))
        remote = [link for link in page.loaded if urlsplit(link).netloc]
        assert not remote, path
    assert not broken


@pytest.mark.slow
def test_search_works_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text("utf-8")
    assert "adaptive_ranking" in index
    assert "search_index.js" in (site / "index.html").read_text("utf-8") or re.search(
        r"iframe-worker|search_index", (site / "index.html").read_text("utf-8")
    )
