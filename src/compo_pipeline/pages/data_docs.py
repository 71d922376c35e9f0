"""Great Expectations' Data Docs as a site that opens anywhere: nothing is fetched from the web.

Its pages ask content networks for styles, scripts and images, and their index is empty without
those. Here all of that is taken out, a style sheet is put in, and the index is a profile of the
data with the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from compo_pipeline.data.quality.profile import profile
from compo_pipeline.pages.pages import Cell, Link, Page, Section, Table, render

if TYPE_CHECKING:
    import pandas as pd

_REMOTE = re.compile(
    r"<script[^>]*\bsrc=[^>]*>\s*</script>"
    r"|<link[^>]*>"
    r"|<img[^>]*\bsrc=\"https?:[^>]*>"
    r"|<footer>.*?</footer>"
    r"|<script>.*?</script>"
    r"|url\('https?:[^)]*\)",
    re.DOTALL,
)
_INDEX = "index.html"
# Values are not escaped in these pages, and image names are untrusted texts: no script may run.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def data_docs(
    site: Path, result: Mapping[str, Any], facts: pd.DataFrame, ingest_report: Mapping[str, Any]
) -> dict[str, str | bytes]:
    """HTML pages of Great Expectations' Data Docs, rewritten so that they need no network.

    Args:
        site: the folder that Great Expectations filled.
        result: the summary of the validation that it shows.
        facts: one row per caption row, for the profile.
        ingest_report: what ingest found in the captions.
    """
    style = files(__package__).joinpath("templates/data_docs.css").read_text(encoding="utf-8")
    pages: dict[str, str | bytes] = {}
    for page in sorted(site.rglob("*.html")):
        text = _REMOTE.sub("", page.read_text(encoding="utf-8"))
        text = text.replace("<head>", f"<head>{_POLICY}", 1)
        text = text.replace("</head>", f"<style>{style}</style></head>", 1)
        pages[page.relative_to(site).as_posix()] = text
    shown = {name.partition("/")[0]: name for name in pages if name != _INDEX}
    return pages | _index(result, facts, ingest_report, shown).files(_INDEX)


def _index(
    result: Mapping[str, Any],
    facts: pd.DataFrame,
    ingest_report: Mapping[str, Any],
    pages: Mapping[str, str],
) -> Page:
    """The index: how many rows are bad, a profile of the data, and the rules."""
    share, tolerated = result["bad_share"], result["tolerated_share"]
    bad = (
        f"{result['bad']:,} of {result['records']:,} records are bad ({share:.2%}; tolerated are "
        f"{tolerated:.2%})."
    )
    left = (
        f"{result['unparseable']} of them could not be parsed. {result['not_downloaded']} more "
        "were never downloaded. All of these are in quarantine, each with its reason."
    )
    found = profile(facts)
    sections: list[Section] = [
        Table(
            ("split", "rows", "distinct images", "rows without a readable image"),
            [[*one.values()] for one in found["splits"]],
            title="Profile",
        ),
        Table(
            ("column", "least", "median", "most", ""),
            [
                (one["label"], one["least"], one["median"], one["most"], _histogram(one))
                for one in found["distributions"]
            ],
        ),
        Table(("duplicates", "rows"), [*found["duplicates"].items()]),
        Table(
            ("captions of", "distinct first sentences", "images", "most frequent", "rows"),
            [
                (split, one["texts"], one["images"], one["most_frequent"], one["rows"])
                for split, one in ingest_report["distinct_texts"].items()
            ],
            ["most frequent"],
        ),
        Table(
            ("found in captions", "captions", "such as"),
            [
                (name, one["captions"], " · ".join(one["examples"]))
                for name, one in ingest_report["forms"].items()
            ],
            ["such as"],
        ),
        Table(
            ("rule", "broken where", "rows", "such as"),
            [
                (
                    *(name, rule["means"]),
                    Cell(rule["broken_by"], "bad" if rule["broken_by"] else "good"),
                    ", ".join(map(str, rule["rows"])),
                )
                for name, rule in result["rules"].items()
            ],
            ["broken where", "such as"],
            title="Rules",
            note="A row that breaks a rule is in quarantine and is not trained on. What exactly "
            "each rule checks is in the pages of Great Expectations.",
        ),
    ]
    return Page(
        "Captions and images",
        "What was read, and which of it trains",
        sections,
        [bad, left, *(f"{warning}." for warning in result["warnings"])],
        links=[Link(f"Great Expectations: {name}", page) for name, page in pages.items()],
        alarm=share > tolerated,
    )


def _histogram(one: Mapping[str, Any]) -> Cell:
    """The histogram of a column, with the rows of each bar as its title."""
    return Cell(Markup(render("bars.html", {**one, "top": max(bar[-1] for bar in one["bars"])})))
