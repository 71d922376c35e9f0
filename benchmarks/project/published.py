"""Read the papers' tables into published.yml, as published_tables.yml describes them.

    python benchmarks/project/published.py ../shared/papers

Every number is copied as printed. The report names cells that the text conversion has garbled,
numbers that differ between tables, and averages that are not those of their parts.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.benchmarks.settings import BENCHMARKS

DESCRIPTION = Path(__file__).with_name("published_tables.yml")
PUBLISHED = Path(__file__).parents[2] / "src/compo_pipeline/evaluation/published.yml"
Described = dict[str, Any]
ROUNDING = 0.1 + 1e-9
NUMBER = r"(?:-|\d+\.\d+%?|\d+\.\d+\.\d+)"  # the last: a mean and a deviation that ran together


class TextError(Exception):
    """A text that is not as the description says."""


def flat(parts: list[Any]) -> Iterator[Any]:
    """Items of nested lists."""
    for part in parts:
        yield from flat(part) if isinstance(part, list) else [part]


def table_lines(text: list[str], table: Described) -> list[tuple[str, list[str]]]:
    """Label and printed cells of each line of a table that has numbers."""
    starts = [k for k, line in enumerate(text) if re.search(table["after"], line)]
    if len(starts) < table.get("nth", 1):
        raise TextError(f"{table['id']}: no line like '{table['after']}'")
    rows = sum(len(list(flat(names))) for each in table["rows"] for names in each.values())
    wanted = rows * len(table.get("parts", [0]))
    found: list[tuple[str, list[str]]] = []
    least = min(3, *(len(list(flat(part))) for part in table.get("parts", [[0] * 3])), 3)
    for line in text[starts[table.get("nth", 1) - 1] + 1 :]:
        if line.startswith("Table "):
            break
        plain = re.sub(
            r"\(\+[\d.]+\)|\\ul|†|‡|✓|italic_p start_POSTSUBSCRIPT \d end_POSTSUBSCRIPT", "", line
        )
        plain = re.sub(r"\s+", " ", plain.replace("|", " ").replace("%", "")).strip()
        plain = re.sub(r" [+-]\d+\.\d$", "", plain) if "transposed" in table else plain
        cells = re.search(rf"((?:^| ){NUMBER})+$", plain)
        if cells and len(cells[0].split()) >= least:
            found.append((plain[: cells.start()].strip(), cells[0].split()))
        elif len(found) >= wanted:
            break
    if len(found) > wanted:
        raise TextError(f"{table['id']}: the row '{found[wanted][0]}' is not described")
    return found


def matches(printed: str, label: str) -> bool:
    """Whether a printed row begins as its description says, without marks of notes."""
    return printed.startswith(label) or re.sub(r"\d", "", printed).startswith(label)


def value(cell: str) -> float | None:
    """A printed cell as a number, None for a dash."""
    return None if cell == "-" else float(cell)


def read_table(text: list[str], table: Described, garbled: list[str]) -> Iterator[Any]:
    """Yield base, model, columns' names and their values, a row at a time."""
    lines = iter(table_lines(text, table))
    for part in table.get("parts", [[]]):
        columns = list(flat(part)) or table["transposed"]
        for base, names in ((b, list(flat(n))) for rows in table["rows"] for b, n in rows.items()):
            for name in names:
                begins, _, label = (piece.strip() for piece in name.partition(" = "))
                printed, cells = next(lines, ("", []))
                if "transposed" in table:  # a gain follows
                    cells = cells[: len(columns)]
                if (more := len(cells) - len(columns)) > 0 and (
                    "before" in table or cells[0] == "-"
                ):
                    printed, cells = " ".join([printed, *cells[:more]]).strip(), cells[more:]
                if not matches(printed, begins):
                    raise TextError(
                        f"{table['id']}: expected the row '{begins}', found '{printed}'"
                    )
                row = f"{table['id']}, {base}, {label or begins}"
                if len(cells) != len(columns) or any(cell.count(".") > 1 for cell in cells):
                    garbled.append(f"{row}: {' '.join(cells)} ({len(columns)} columns)")
                    continue
                numbers = [value(cell) for cell in cells]
                for place, parts in table.get("means", {}).items():
                    yield from misfit(
                        row, columns[place], numbers[place], [numbers[k] for k in parts]
                    )
                if "transposed" in table:
                    for model, number in zip(columns, numbers, strict=True):
                        yield base, model, label, number
                else:
                    for column, number in zip(columns, numbers, strict=True):
                        yield base, label or begins, column, number


def misfit(
    row: str, name: str, found: float | None, parts: Sequence[float | None]
) -> Iterator[str]:
    """Yield a line where a printed average is not that of its parts."""
    numbers = [part for part in parts if part is not None]
    if found is None or len(numbers) < len(parts):
        return
    if abs(found - (mean := sum(numbers) / len(numbers))) > ROUNDING:
        yield f"{row}, {name.lstrip('~')}: printed {found}, its parts average {mean:.2f}"


def make(papers: Path, description: Described) -> Described:
    """Content of published.yml below its items."""
    blocks: dict[tuple[str, str, str], Described] = {}
    garbled: list[str] = []
    misfits: list[str] = []
    unmeasured: dict[str, Counter[str]] = defaultdict(Counter)
    for table in description["tables"]:
        name = table["id"].partition("/")[0]
        paper = description["papers"][name]
        text = (papers / paper["file"]).read_text("utf-8").splitlines()
        for cell in read_table(text, table, garbled):
            if isinstance(cell, str):
                misfits.append(cell)
                continue
            base, model, column, number = cell
            if column.startswith("~"):
                unmeasured[table["id"]][column[1:]] += number is not None
                continue
            apart = f", {table['apart']}" if "apart" in table else ""
            block = blocks.setdefault((name, base, apart), {})
            block.setdefault(table["id"], {}).setdefault(column, {})[model] = number
    found = [entry(description, *key, tables) for key, tables in blocks.items()]
    for one in description["further"]:
        facts = about(description, one["paper"], one["base"], one["models"])
        found.append(one | {"id": f"{one['paper']}/{one['base']}"} | facts)
    for one in found:
        one["shown"] = one["id"] in description["shown"]
    misfits += chain.from_iterable(map(disagreements, found))
    missing = {name: dict(counts) for name, counts in unmeasured.items()}
    return {"papers": found, "misfits": misfits, "garbled": garbled, "not_measured": missing}


def entry(
    description: Described, paper: str, base: str, apart: str, tables: Described
) -> Described:
    """A block of published.yml: the models of one base in a paper's tables."""
    known = description["papers"][paper]
    models = list(dict.fromkeys(m for t in tables.values() for c in t.values() for m in c))
    numbers = ", ".join(name.partition("/")[2] for name in tables)
    return {
        "id": next(iter(tables)) if apart else f"{paper}/{base}",
        "title": f"{known['title']}, {description['bases'][base]['title']}{apart}",
        "base": base,
        "source": f"{known['source']}, tables {numbers}",
        "models": models,
        **about(description, paper, base, models),
        "tables": {
            table: {key: [column.get(model) for model in models] for key, column in columns.items()}
            for table, columns in tables.items()
        },
    }


def about(description: Described, paper: str, base: str, models: list[str]) -> Described:
    """How the models were made and what measures them here, as the fields of a block."""
    found: Described = {"methods": {}, "data": {}, "runs": {}, "bases": {}, "hours": {}}
    for model in models:
        name = f"{paper}/{base}/{model}"
        fitting = (f for g, f in description["about"].items() if fnmatchcase(name, g))
        facts: Described = next(fitting, {})
        found["methods"][model] = facts.get("method", "the paper does not say")
        found["data"][model] = facts.get("data", "the paper does not say")
        if "hours" in facts:
            found["hours"][model] = facts["hours"]
        if "run" not in facts:
            continue
        run = facts["run"].replace("LABEL", model[:2].lower()).replace("BASE", base)
        environment, *how = run.split("/")
        if len(how) == 1:
            found["bases"][model] = how[0]
            how = f" --pipeline=benchmark --params models={description['lists'][environment]}"
        else:
            method, variant = how
            given = [f"method={method}"] * (method != description["environments"][environment])
            given += [f"variant={variant}"] * (variant != "default")
            how = f" --params {','.join(given)}" if given else ""
        found["runs"][model] = f"--env={environment}{how}"
    return found


def disagreements(block: Described) -> Iterator[str]:
    """Yield lines about numbers that differ between tables, and averages that do not fit."""
    merged: dict[tuple[str, str], tuple[str, float | None]] = {}
    for table, columns in block["tables"].items():
        for key, values in columns.items():
            for model, number in zip(block["models"], values, strict=True):
                seen, there = merged.setdefault((key, model), (table, number))
                if None not in (there, number) and there != number:
                    both = f"{there} in {seen}, {number} in {table}"
                    yield f"{block['title']}, {model}, {key}: {both}"
                if there is None and number is not None:
                    merged[key, model] = (table, number)
    for benchmark in BENCHMARKS.values():
        for metric, averages in benchmark.averages.items():
            for name, mean in averages.items():
                key = f"{benchmark.name}/{metric}/{name}"
                for model in block["models"]:
                    parts = [
                        merged.get((f"{benchmark.name}/{metric}/{part}", model), ("", None))[1]
                        for part in mean.subtasks
                    ]
                    if parts and (key, model) in merged and name != "by_group":
                        yield from misfit(
                            f"{block['title']}, {model}", key, merged[key, model][1], parts
                        )


def text_of(content: Described, head: str) -> str:
    """The file: its head, kept, and the blocks with a column of numbers a line."""

    def line(number: float | None) -> str:
        return "null" if number is None else f"{number:g}" if number % 1 else f"{number:.1f}"

    def plain(data: Any) -> str:
        text: str = yaml.safe_dump(
            data, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=True
        )
        return text.removesuffix("...\n").strip()

    lines = [head.rstrip(), "papers:"]
    for block in content["papers"]:
        lines.append(f"  - title: {plain(block['title'])}")
        for key in ("id", "base", "shown", "source", "models", "methods", "data"):
            lines.append(f"    {key}: {plain(block[key])}")
        for key in ("runs", "bases", "hours"):
            lines.append(f"    {key}:" if block[key] else f"    {key}: {{}}")
            lines += [f"      {plain({m: v})[1:-1]}" for m, v in block[key].items()]
        lines.append("    tables:")
        for table, columns in block["tables"].items():
            lines.append(f"      {table}:")
            lines += [
                f"        {key}: [{', '.join(map(line, row))}]" for key, row in columns.items()
            ]
    lines.append("# Copied as printed; averages are recomputed with a rounding of 0.1 allowed.")
    for key in ("misfits", "garbled"):
        lines.append(f"{key}:" if content[key] else f"{key}: []")
        lines += [f"  - {plain(each)}" for each in content[key]]
    lines += [
        "# Numbers by table of what no command here measures under the same protocol.",
        "not_measured:",
    ]
    lines += [f"  {name}: {plain(counts)}" for name, counts in content["not_measured"].items()]
    return "\n".join(lines) + "\n"


def published(papers: Path) -> str:
    """Text of published.yml, from the papers' texts."""
    description = yaml.safe_load(DESCRIPTION.read_text("utf-8"))
    head = PUBLISHED.read_text("utf-8").partition("\npapers:\n")[0]
    return text_of(make(papers, description), head)


if __name__ == "__main__":
    written = published(Path(sys.argv[1]))
    PUBLISHED.write_text(written, "utf-8")
    content = yaml.safe_load(written)
    numbers = sum(
        value is not None
        for block in content["papers"]
        for table in block["tables"].values()
        for row in table.values()
        for value in row
    )
    left = sum(sum(counts.values()) for counts in content["not_measured"].values())
    print(f"{numbers} numbers with a key, {left} of what is not measured here")
    for kind in ("misfits", "garbled"):
        print(f"{kind}: {len(content[kind])}", *content[kind], sep="\n  ")
