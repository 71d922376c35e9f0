"""The pages of the documentation site, gathered in build/pages for MkDocs.

    make docs                         # or: python benchmarks/project/pages.py && mkdocs build

Copies README.md, CHANGELOG.md, CONTRIBUTING.md, SECURITY.md and docs/, and of the other files of
the repository those that they link to, under the same paths: a link holds in the repository and on
the site. The page of pipelines and catalog is written from the code and conf/base.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from kedro.framework.startup import bootstrap_project

from compo_pipeline.pipeline_registry import TRAIN_EVAL, descriptions, register_pipelines
from compo_pipeline.project.settings import loader_of

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
FIRST = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
# Of Markdown, and of HTML in it.
_LINK = re.compile(r"(?:\]\(|(?:href|src)=\")([^)\s#\"]+)")
_RUN = ("dataset", "method", "variant", "seed", "models", "set")
_HEAD = """\
# Pipelines and catalog

`kedro run --pipeline=<pipeline>` runs one, `--pipelines=<pipeline>,<pipeline>` several.
`train_eval`, which `kedro run` alone means too, chains {chain}.

| pipeline | is |
| --- | --- |
"""
_CATALOG = """
## Catalog

What `conf/base/catalog.yml` names: tables, models and reports, where they lie, and which pipelines
write and read them. What stands in angle brackets is a setting of that name: `--params
dataset=photos,seed=1`. `kedro run --to-outputs=<entry>` makes an entry, `kedro viz run` shows the
graph. [Rows of tables](api/data.md) have the columns of their classes.

| entry | file or folder | rows, page | written by | read by |
| --- | --- | --- | --- | --- |
"""


def gathered(root: Path = ROOT) -> Iterator[Path]:
    """Files of the site, by their paths from the root: the first ones, and what they link to."""
    found = [root / name for name in FIRST if (root / name).is_file()]
    found += [path for path in sorted((root / "docs").rglob("*")) if path.is_file()]
    for path in found:  # which grows
        yield path.relative_to(root)
        if path.suffix != ".md":
            continue
        for link in _LINK.findall(path.read_text(encoding="utf-8")):
            target = (path.parent / link).resolve()
            if target.is_file() and target.is_relative_to(root) and target not in found:
                found.append(target)


def pipelines_and_catalog(root: Path = ROOT) -> str:
    """The page of pipelines, by their docstrings, and of the entries of the catalog."""
    bootstrap_project(root)
    registered = register_pipelines()
    lines = [_HEAD.format(chain=f"{', '.join(TRAIN_EVAL[:-1])} and {TRAIN_EVAL[-1]}")]
    lines += [f"| `{name}` | {text} |\n" for name, text in descriptions().items()]
    lines.append(_CATALOG)
    writing = [name for name in registered if name not in ("train_eval", "__default__")]
    entries = loader_of(root / "conf", "base", {key: f"<{key}>" for key in _RUN})["catalog"]
    for name, entry in sorted(entries.items()):
        if "filepath" not in entry:  # in memory
            continue
        cells = [f"`{name}`", f"`{entry['filepath']}`"]
        cells.append(f"`{entry['row']}`" if "row" in entry else entry.get("page", ""))
        for names in ("all_outputs", "all_inputs"):
            cells.append(
                ", ".join(each for each in writing if name in getattr(registered[each], names)())
            )
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def main() -> None:
    """Write build/pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in gathered():
        (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, PAGES / path)
    page = PAGES / "docs" / "reference" / "pipelines.md"
    page.write_text(pipelines_and_catalog(), encoding="utf-8")


if __name__ == "__main__":
    main()
