"""Great Expectations' Data Docs as a site that opens anywhere: nothing is fetched from the web.

Its pages ask content networks for styles, scripts and images, and their index is empty without
those. Here all of that is taken out, a style sheet is put in, and the index is a profile of the
data with the rules.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.datasets.quality.profile import profile
from compo_pipeline.presentation.pages import render

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


def make_local(
    site: Path, result: Mapping[str, Any], facts: pd.DataFrame, ingest_report: Mapping[str, Any]
) -> None:
    """Rewrite the HTML pages of Great Expectations' Data Docs so that they need no network.

    Args:
        site: the folder that Great Expectations filled.
        result: the summary of the validation that it shows.
        facts: one row per caption row, for the profile.
        ingest_report: what ingest found in the captions.
    """
    style = files(__package__).joinpath("templates/data_docs.css").read_text(encoding="utf-8")
    shutil.rmtree(site / "static", ignore_errors=True)
    index = site / _INDEX
    pages = sorted(page for page in site.rglob("*.html") if page != index)
    for page in pages:
        text = _REMOTE.sub("", page.read_text(encoding="utf-8"))
        text = text.replace("<head>", f"<head>{_POLICY}", 1)
        page.write_text(text.replace("</head>", f"<style>{style}</style></head>", 1), "utf-8")
    context = {
        **result,
        "title": "Captions and images",
        "policy": _POLICY,
        "profile": profile(facts),
        "ingest": ingest_report,
        "pages": {
            page.relative_to(site).parts[0]: page.relative_to(site).as_posix() for page in pages
        },
    }
    index.write_text(render("data_docs.html", context), "utf-8")
