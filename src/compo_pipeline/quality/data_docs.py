"""Great Expectations' Data Docs as a site that opens anywhere: nothing is fetched from the web.

Its pages ask content networks for styles, scripts and pictures, and their index is empty without
those. Here all of that is taken out, a style sheet is put in, and the index is a table of rules.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

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
# Values stand in the pages unescaped, and picture names are other people's texts: nothing may run.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="UTF-8"><title>Validation of captions</title><style>{style}</style></head>
<body class="index">
<h1>Validation of captions</h1>
<p class="{verdict}">{bad} of {records} records are bad ({bad_share:.2%}; tolerated are
{tolerated_share:.2%}). {unparseable} of them could not be parsed. {not_downloaded} more were never
downloaded. All of these stand in quarantine, each with its reason.</p>
<table>
<tr><th>rule</th><th>expected</th><th>a row that breaks it</th><th>rows</th><th>such as</th></tr>
{rules}
</table>
<p>Pages of Great Expectations: {links}.</p>
</body>
</html>
"""


def make_local(site: Path, result: Mapping[str, Any]) -> None:
    """Rewrite a site's pages in place.

    Args:
        site: the folder that Great Expectations filled.
        result: the summary of the validation that it shows.
    """
    style = files("compo_pipeline.quality").joinpath("data_docs.css").read_text(encoding="utf-8")
    shutil.rmtree(site / "static", ignore_errors=True)
    index = site / _INDEX
    pages = sorted(page for page in site.rglob("*.html") if page != index)
    for page in pages:
        text = _REMOTE.sub("", page.read_text(encoding="utf-8"))
        text = text.replace("<head>", f"<head>{_POLICY}", 1)
        page.write_text(text.replace("</head>", f"<style>{style}</style></head>", 1), "utf-8")
    links = [
        f'<a href="{page.relative_to(site).as_posix()}">{page.relative_to(site).parts[0]}</a>'
        for page in pages
    ]
    rules = "\n".join(_row(name, rule) for name, rule in result["rules"].items())
    verdict = "bad" if result["bad_share"] > result["tolerated_share"] else "good"
    index.write_text(
        _PAGE.format(
            **{**result, "rules": rules}, style=style, verdict=verdict, links=", ".join(links)
        ),
        "utf-8",
    )


def replace(site: Path, new: Path) -> None:
    """Put a new site in the place of an older one.

    Raises:
        FileExistsError: what lies there is no such site, and stays.
    """
    if site.exists():
        if any(site.iterdir()) and not (site / _INDEX).is_file():
            raise FileExistsError(
                f"{site} holds something else than Data Docs; set paths.data_docs elsewhere"
            )
        shutil.rmtree(site)
    new.rename(site)


def _row(name: str, rule: Mapping[str, Any]) -> str:
    """One rule as a row of the index."""
    verdict = "bad" if rule["broken_by"] else "good"
    cells = [
        name,
        f"{rule['column']}: {rule['expected']}",
        rule["means"],
        str(rule["broken_by"]),
        ", ".join(map(str, rule["rows"])),
    ]
    return f'<tr class="{verdict}">' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
