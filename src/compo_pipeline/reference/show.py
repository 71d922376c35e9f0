"""The reference on a terminal, as lines for other programs, and as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from compo_pipeline.reference.entries import Entry

if TYPE_CHECKING:
    from rich.console import Console

_HEAD = """# Parameters

Every key of `conf/base`, its default, what it may be and what it means. This page is made by
`compo-pipeline params --markdown > docs/parameters.md`; on a terminal, `compo-pipeline params
training` lists the keys below one, with `--env` also the values of an environment.

A key is changed in an environment's files (`conf/<env>/parameters.yml`) or for one run with
`--params`, e.g. `kedro run --params training.epochs=3,seed=1`.
"""

_TABLE = ("| key | default | allowed | meaning |", "| --- | --- | --- | --- |")
_PIPE = r"\|"


def text(value: Any) -> str:
    """A value as YAML on one line."""
    import yaml

    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return str(dumped).removesuffix("...\n").strip()


def show(entries: Sequence[Entry], env: str, console: Console) -> None:
    """Print entries for people on a terminal: a heading each, its meaning below."""
    for entry in entries:
        console.print(_heading(entry, env), soft_wrap=True)
        if entry.meaning:
            console.print(Padding(Text(entry.meaning), (0, 0, 0, 4)))


def lines(entries: Sequence[Entry], env: str) -> Iterator[str]:
    """A line for each entry: key, default, type, meaning and differing value, between tabs."""
    for entry in entries:
        other = f"{env}: {text(entry.value)}" if entry.value != entry.default else ""
        columns = (entry.key, _default(entry), entry.type, entry.meaning, other)
        yield "\t".join(columns).rstrip()


def _default(entry: Entry) -> str:
    return "" if not entry.type or "<" in entry.key else text(entry.default)


def _heading(entry: Entry, env: str) -> Text:
    heading = Text(entry.key, style="bold")
    if default := _default(entry):
        heading.append(f" = {default}", style="not bold cyan")
    if entry.value != entry.default:
        heading.append(f"  {env}: {text(entry.value)}", style="not bold yellow")
    heading.append(f"  ({entry.type})" if entry.type else "", style="not bold dim")
    return heading


def markdown(entries: Sequence[Entry]) -> str:
    """A page with a table for each top-level mapping; single values come first."""
    page = [_HEAD.strip()]
    single = [entry for entry in entries if "." not in entry.key and entry.type]
    page += ["", "## What names a run", "", *_TABLE, *map(_row, single)]
    for entry in entries:
        if "." in entry.key:
            page.append(_row(entry))
        elif not entry.type:
            about = f"In `{entry.file}`. {_escaped(entry.meaning)}".strip()
            page += ["", f"## {entry.key}", "", about, "", *_TABLE]
    return "\n".join(page) + "\n"


def _row(entry: Entry) -> str:
    default = f"`{given}`" if (given := _default(entry)) else ""
    cells = (f"`{entry.key}`", default, entry.type, _escaped(entry.meaning))
    return f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |"


def _escaped(meaning: str) -> str:
    """No `<name>` is read as HTML; within backticks none is."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", meaning)
