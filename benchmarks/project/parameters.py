"""The reference pages of the parameters, written from the settings classes.

    python benchmarks/project/parameters.py

Writes docs/reference/parameters/: an index, and a page for each section. A test compares the
committed pages with what this script writes.
"""

from __future__ import annotations

import re
from pathlib import Path

from kedro.framework.startup import bootstrap_project

from compo_pipeline.core.reference import ParameterEntry, collect_entries, default_text
from compo_pipeline.methods.registry import METHODS, method_type
from compo_pipeline.project import settings

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference" / "parameters"
_INDEX = """\
# Parameters

These pages list every key with its default, the values it allows and its meaning.
`compo-pipeline params training` prints the same for the keys of one section, and with `--env` also
the values of an environment. Defaults are those of the demo (`conf/base`).

Change a key in the files of an environment (`conf/<env>/parameters.yml`), or for one run on the
command line: `kedro run --params training.epochs=3,seed=1`.
"""
_TABLE = ("", "| key | default | allowed | meaning |", "| --- | --- | --- | --- |")


def pages() -> dict[str, str]:
    """The index and the page of each section, by file name."""
    bootstrap_project(ROOT)
    values = settings.all_values(settings.loader_of(ROOT / "conf", "base", {}))
    index = [_INDEX, "| section | holds |", "| --- | --- |"]
    single = ["", "## What names a run", *_TABLE]
    sections: dict[str, list[str]] = {}
    for entry in collect_entries(settings.with_methods(), values, values):
        section = entry.key.partition(".")[0]
        if section in sections or entry.type:
            sections.get(section, single).append(_row(entry))
        else:
            method = method_type(section).__doc__ if section in METHODS else None
            meaning = _escape_html(method.splitlines()[0] if method else entry.meaning)
            holds = meaning.removeprefix("Settings of ").removeprefix("the ")
            index.append(f"| [{section}]({section}.md) | {holds[:1].upper()}{holds[1:]} |")
            sections[section] = [f"# {section}", "", meaning, *_TABLE]
    written = {f"{section}.md": lines for section, lines in sections.items()}
    return {
        name: "\n".join([*lines, ""])
        for name, lines in {"index.md": [*index, *single], **written}.items()
    }


def _row(entry: ParameterEntry) -> str:
    if isinstance(entry.default, dict) and list in map(type, entry.default.values()):
        entry = entry._replace(default=sorted(entry.default))  # its lists would not fit a cell
    default = f"`{given}`" if (given := default_text(entry)) else ""
    cells = (f"`{entry.key}`", default, entry.type, _escape_html(entry.meaning))
    return " | ".join(["", *(cell.replace("|", r"\|") for cell in cells), ""]).strip()


def _escape_html(meaning: str) -> str:
    """A Markdown text with `<` escaped outside of backticks, so `<name>` is not read as HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", meaning)


def main() -> None:
    """Write the pages, and remove those of sections that no longer exist."""
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
