"""Figures of the code's structure: size, rooms, files run, imports.

    python benchmarks/structure.py [--source DIR] [--static] [--verbose] [--json FILE]
    python benchmarks/structure.py --budgets [--source DIR]

- Code lines: lines with a token that is neither a comment nor a string that stands alone
  (docstrings, and descriptions of fields). Folders of `APART` are counted apart.
- Files: modules, `__init__.py` not counted. A room is a folder with code, or a module, directly
  below a package. An arrow leads from a room to one that it imports, at the top of a file or
  within a function. Floors are the rooms on the longest path along arrows.
- Files with one importer: modules that exactly one other module imports.
- Files imported with a module, in a fresh process.
- `compo-pipeline versions`, on a registry without versions: what it imports of `HEAVY`, and the
  processor seconds of its process over those of one that imports MLflow and Kedro's command line;
  how many of them MLflow's database needs. All are medians of five runs in turns.

`--source` measures another checkout with this one's scripts, `--static` leaves out what is run.
`--budgets` prints beside their budgets the code lines of the rooms that `ROOMS` names, Kedro nodes
(calls of `step`), hash functions (by their names), settings (fields of settings classes), lines of
tests for each code line, and rooms, floors and arrows; it never fails. Hops: see hops.py.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median
from typing import Any

import grimp

HERE = Path(__file__).resolve().parent
APART = ("scenes", "artefacts")
SMALL = 100  # code lines of a file that could be part of its importer
LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
# Budget in code lines of each room, `core` at the bottom.
ROOMS = {
    "core": 1800,
    "language": 2100,
    "losses": 270,
    "models": 1950,
    "data": 2900,
    "methods": 1650,
    "benchmarks": 2200,
    "generation": 2800,
    "training": 1650,
    "evaluation": 3000,
    "tuning": 1100,
    "registry": 2000,
    "serving": 2000,
    "pages": 1300,
    "pipelines": 1800,
    "project": 1450,
}
# What lies beside the rooms: Kedro's and Python's entries, a file that versions ship.
BESIDE = dict.fromkeys(
    ("__init__", "__main__", "cli", "settings", "pipeline_registry", "resources"), "project"
) | {"compo_decoding": "data"}
LIMITS = {
    "compo_pipeline": 30_000,
    "compo_scenes": 2700,
    "nodes": 60,
    "hash functions": 15,
    "settings": 400,
    "tests a code line": 1.1,
    "rooms": 16,
    "floors": 9,
    "arrows": 110,
}
HASH_NAME = re.compile("fingerprint|hash|digest|checksum|sha256")
IMPORTED_WITH = ("registry.gate", "training.loop", "training.settings")
HEAVY = ("torch", "spacy", "open_clip", "great_expectations")
RUNS = 5
# Prints the files of the package that a module imports.
IMPORT = """
import importlib, sys
importlib.import_module("compo_pipeline." + sys.argv[1])
files = [getattr(module, "__file__", None) or "" for name, module in sys.modules.items()
         if name.split(".")[0] == "compo_pipeline"]
print(sum(not file.endswith("__init__.py") for file in files if file))
"""
# Prints what a command imports of the modules named first, and its processor seconds.
COMMAND = """
import sys, time
names = sys.argv[1].split(",")
from compo_pipeline.__main__ import main
try:
    main(["versions"])
except SystemExit as end:
    if end.code:
        raise
print()
print(*[name for name in names if name in sys.modules], time.process_time())
"""
BARE = """
import time
import mlflow, kedro.framework.cli
print(time.process_time())
"""
# Further processor seconds of a listing by MLflow alone.
DATABASE = """
import time
import mlflow, kedro.framework.cli
start = time.process_time()
mlflow.MlflowClient("sqlite:///mlflow.db").search_model_versions()
print(time.process_time() - start)
"""


def code_lines(text: str) -> tuple[int, int]:
    """Code lines of a module, and how many of them are imports."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    alone = _lines(node for node in nodes if _is_string(node))
    imports = _lines(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - alone), len(imports & lines)


def _is_string(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _lines(nodes: Iterable[ast.AST]) -> set[int]:
    spans = [node for node in nodes if isinstance(node, ast.stmt)]
    return {line for n in spans for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}


def sizes(source: Path) -> dict[str, dict[str, int]]:
    """Files, code lines and lines of imports of each package, and of the tests."""
    packages = sorted(file.parent for file in (source / "src").glob("*/__init__.py"))
    counted: dict[str, dict[str, int]] = {}
    for package in packages:
        apart = {package / name for name in APART if (package / name).is_dir()}
        files = [file for file in package.rglob("*.py") if not apart & set(file.parents)]
        counted[package.name] = _size(files)
        for folder in sorted(apart):
            counted[f"{package.name}/{folder.name}"] = _size(folder.rglob("*.py"))
    counted["tests"] = _size((source / "tests").rglob("*.py"))
    return counted


def _size(files: Iterable[Path]) -> dict[str, int]:
    files = list(files)
    counts = [code_lines(file.read_text("utf-8")) for file in files]
    return {
        "files": sum(file.name != "__init__.py" for file in files),
        "lines": sum(lines for lines, _ in counts),
        "import_lines": sum(imports for _, imports in counts),
    }


def import_graph(source: Path) -> grimp.ImportGraph:
    """Who imports whom among all packages in src/."""
    sys.path.insert(0, str(source / "src"))
    names = sorted(file.parent.name for file in (source / "src").glob("*/__init__.py"))
    return grimp.build_graph(*names, cache_dir=None)


def arrows_between_rooms(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """The rooms of compo_pipeline, each with those that it imports."""
    arrows: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        if (room := _room(module)) is not None:
            imported = graph.find_modules_directly_imported_by(module)
            arrows[room] |= {other for name in imported if (other := _room(name)) is not None}
            arrows[room].discard(room)
    return arrows


def house(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms of each floor, from the lowest."""
    floor: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        floor[room] = max((floor[below] + 1 for below in arrows[room]), default=0)
    return [
        sorted(room for room in floor if floor[room] == level)
        for level in range(max(floor.values()) + 1)
    ]


def rooms(graph: grimp.ImportGraph) -> dict[str, int]:
    """Number of rooms of compo_pipeline, of floors, and of arrows between rooms."""
    arrows = arrows_between_rooms(graph)
    count = sum(map(len, arrows.values()))
    return {"rooms": len(arrows), "floors": len(house(arrows)), "arrows": count}


def _room(module: str) -> str | None:
    package, _, inside = module.partition(".")
    if package != "compo_pipeline" or not inside:
        return None
    name = inside.split(".")[0]
    return BESIDE.get(name, name)


def single_importers(graph: grimp.ImportGraph, source: Path) -> list[tuple[str, str, int]]:
    """Modules of compo_pipeline that one module imports, with it and their code lines."""
    found = []
    for module in sorted(graph.modules):
        file = source / "src" / f"{module.replace('.', '/')}.py"
        importers = sorted(graph.find_modules_that_directly_import(module))
        if file.exists() and module.startswith("compo_pipeline.") and len(importers) == 1:
            found.append((module, importers[0], code_lines(file.read_text("utf-8"))[0]))
    return found


def _python(source: Path, folder: Path, *arguments: str) -> str:
    """What a Python process prints that imports the measured checkout.

    Raises:
        SystemExit: the process failed; the end of what it wrote.
    """
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "KEDRO_DISABLE_TELEMETRY": "1"}
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{arguments[:2]} failed:\n{ended.stderr[-2000:]}")
    return ended.stdout


def imported_with(source: Path) -> dict[str, int]:
    """Number of the package's files that importing a module imports, with its own."""
    return {name: int(_python(source, source, "-c", IMPORT, name)) for name in IMPORTED_WITH}


def versions_command(source: Path) -> dict[str, Any]:
    """What `versions` imports, and its processor seconds over those of its libraries."""
    ours, bare, database = [], [], []
    heavy: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "conf").symlink_to(source / "conf")
        (project / "pyproject.toml").symlink_to(source / "pyproject.toml")
        (project / "src").mkdir()
        for _ in range(1 + RUNS):  # the first run creates MLflow's database
            ended = _python(source, project, "-c", COMMAND, ",".join(HEAVY))
            *imported, seconds = ended.splitlines()[-1].split()
            heavy.update(imported)
            ours.append(float(seconds))
            bare.append(float(_python(source, project, "-c", BARE)))
            listed = _python(source, project, "-c", DATABASE)
            database.append(float(listed.splitlines()[-1]))
    own, libraries = median(ours[1:]), median(bare[1:])
    return {
        "imports": sorted(heavy),
        "seconds": round(own, 2),
        "libraries_seconds": round(libraries, 2),
        "database_seconds": round(median(database[1:]), 2),
        "above": round(own - libraries, 2),
    }


def measure(source: Path, *, static: bool) -> dict[str, Any]:
    """All figures of a checkout, without those that run it if `static`."""
    size, graph = sizes(source), import_graph(source)
    code = [counts for name, counts in size.items() if name != "tests"]
    lines = sum(counts["lines"] for counts in code)
    single = single_importers(graph, source)
    figures: dict[str, Any] = {
        "revision": _revision(source),
        "size": size,
        "import_share": round(sum(counts["import_lines"] for counts in code) / lines, 4),
        **rooms(graph),
        "single_importers": single,
    }
    if not static:
        figures["imported_with"] = imported_with(source)
        figures["versions"] = versions_command(source)
    return figures


def budgets(source: Path) -> list[tuple[str, float, float]]:
    """What is counted, its value and its budget."""
    lines: Counter[str] = Counter()
    found: dict[str, float] = {"nodes": 0, "hash functions": 0, "settings": 0}
    for file in sorted((source / "src").rglob("*.py")):
        package, *inside = file.relative_to(source / "src").with_suffix("").parts
        inside = inside or [package]
        text, own = file.read_text("utf-8"), package != "compo_scenes"
        room = BESIDE.get(inside[0], inside[0])
        lines[room if own else package] += code_lines(text)[0]
        for part in ast.walk(ast.parse(text)):
            if isinstance(part, ast.FunctionDef):
                found["hash functions"] += own and bool(HASH_NAME.search(part.name))
            elif isinstance(part, ast.Call):
                found["nodes"] += own and ast.unparse(part.func) == "step"
            elif isinstance(part, ast.ClassDef) and part.decorator_list:
                marked = "settings" in map(ast.unparse, part.decorator_list)
                found["settings"] += marked and sum(isinstance(x, ast.AnnAssign) for x in part.body)
    found["compo_scenes"] = lines.pop("compo_scenes", 0)
    found["compo_pipeline"] = lines.total()
    tests = _size((source / "tests").rglob("*.py"))["lines"]
    code = found["compo_pipeline"] + found["compo_scenes"]
    found |= {"tests a code line": round(tests / code, 2), **rooms(import_graph(source))}
    names = [*ROOMS, *sorted(lines.keys() - ROOMS)]
    table = [(name, lines[name], ROOMS.get(name, 0)) for name in names]
    return [*table, *((name, found[name], most) for name, most in LIMITS.items())]


def _revision(source: Path) -> str | None:
    """The commit that a checkout is at, with a + if its code was changed since."""
    git = [
        "git",
        "-C",
        str(source),
        "describe",
        "--always",
        "--abbrev=7",
        "--dirty=+",
        "--exclude=*",
    ]
    ended = subprocess.run(git, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or None


def rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The table that is printed: figure and value."""
    table = []
    for name, counts in figures["size"].items():
        table.append((f"code lines of {name}", f"{counts['lines']:,}"))
        table.append((f"files of {name}", str(counts["files"])))
    small = [lines for *_, lines in figures["single_importers"] if lines < SMALL]
    table += [
        ("imports among code lines", f"{figures['import_share']:.1%}"),
        ("rooms, floors, arrows", "{rooms}, {floors}, {arrows}".format(**figures)),
        ("files with one importer", str(len(figures["single_importers"]))),
        (f"of these with fewer than {SMALL} code lines", str(len(small))),
    ]
    for name, count in figures.get("imported_with", {}).items():
        table.append((f"files imported with {name}", str(count)))
    if found := figures.get("versions"):
        table.append(("heavy imports of `versions`", ", ".join(found["imports"]) or "none"))
        seconds = (
            "{above} s ({seconds} s, {libraries_seconds} s for the imports; "
            "MLflow's database {database_seconds} s)"
        )
        table.append(("`versions` above its libraries", seconds.format(**found)))
    return table


def main() -> None:
    """Print the table, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=HERE.parent, help="the checkout")
    parser.add_argument("--static", action="store_true", help="only what needs no run")
    parser.add_argument("--verbose", action="store_true", help="list the files behind the figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--budgets", action="store_true", help="print the table of budgets alone")
    options = parser.parse_args()
    if options.budgets:
        print(f"{'code lines and counts':22}{'now':>9}{'budget':>9}")
        for name, now, budget in budgets(options.source.resolve()):
            print(f"{name:22}{now:9,}{budget:9,}{'  above' if now > budget else ''}")
        return
    figures = measure(options.source.resolve(), static=options.static)
    width = max(len(name) for name, _ in rows(figures))
    for name, value in rows(figures):
        print(f"{name:{width}}  {value}")
    if options.verbose:
        print(f"\nFiles with one importer and fewer than {SMALL} code lines:")
        for module, importer, lines in figures["single_importers"]:
            if lines < SMALL:
                print(f"  {module} ({lines}), by {importer}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
