"""Share of small random faults that the tests notice (mutation testing).

    python benchmarks/mutants.py [--count 200] [--seed 20261123] [--jobs 1] [--results FILE]

Mutants are drawn at random, without replacement, from all that `OPERATORS` make of the files in
`TARGETS`. Each is written into a copy of the checkout's files in a temporary folder, and the tests
of its room run there, those of its own file first. A mutant is killed if a test fails, or if the
tests take more than 60 processor seconds, which is reported apart. Texts are not mutated: most are
messages.

Before, the unchanged copy must pass the same tests in three quarters of the time. Outcomes are
appended to a file of JSON lines; mutants that have one there, of the same source, are not run
again. Prints the share of killed mutants with its 95% Wilson interval, and the survivors.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
PACKAGE = "src/compo_pipeline"
# Files that are mutated (patterns below the package) and the tests of their rooms (below tests/).
TARGETS = {
    "losses/*.py": "losses",
    "methods/*.py": "methods",
    "evaluation/statistics.py": (
        "evaluation/test_statistics.py evaluation/test_comparison.py evaluation/test_conclusions.py"
    ),
    "registry/gate.py": "registry/test_gate.py registry/test_gate_roles.py",
    "training/checkpoint.py": "training/test_checkpoint.py",
}
SECONDS = 60  # of processor time, so that other work on the machine kills no mutant
UNCHANGED_SECONDS = 45  # without a mutant
WALL_SECONDS = 900  # for tests that wait for something without end

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


# A node with a position in the file, and what is written in its place.
Change = tuple[ast.expr | ast.stmt, ast.AST]


@dataclass(frozen=True)
class Mutant:
    """A fault: the bytes of a file from `start` to `end` are replaced."""

    file: str
    line: int
    operator: str
    start: int
    end: int
    old: str
    new: str
    source: str
    """Hash of the file's text."""


def _comparison(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = COMPARISONS[type(operator)]()
            yield node, changed


def _arithmetic(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        changed = copy.deepcopy(node)
        changed.op = ARITHMETIC[type(node.op)]()
        yield node, changed
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node, node.operand


def _boolean(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, changed
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand


def _negated(node: ast.AST) -> Iterator[Change]:
    """Negates the condition of a statement, an expression or a comprehension."""
    conditions: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        conditions = [node.test]
    elif isinstance(node, ast.comprehension):
        conditions = node.ifs
    for condition in conditions:
        yield condition, ast.UnaryOp(ast.Not(), condition)


def _removed(node: ast.AST) -> Iterator[Change]:
    """Removes a call, an error, an assignment to a part of something."""
    if isinstance(node, ast.Assign):
        if all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets):
            yield node, ast.Pass()
    elif isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue) or (
        isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    ):
        yield node, ast.Pass()


def _default(node: ast.AST) -> Iterator[Change]:
    """Changes the default of an argument; to None if it is no number."""
    if isinstance(node, ast.arguments):
        for value in [*node.defaults, *filter(None, node.kw_defaults)]:
            yield next(_constant(value), (value, ast.Constant(None)))


def _constant(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield node, ast.Constant(node.value + 1)


def _returned(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Return) and node.value is not None:
        yield node.value, ast.Constant(None)


# The first of several that make the same change names it.
OPERATORS: dict[str, Callable[[ast.AST], Iterator[Change]]] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "boolean": _boolean,
    "negated condition": _negated,
    "removed statement": _removed,
    "argument default": _default,
    "constant": _constant,
    "return value": _returned,
}


def mutants(file: str, text: str) -> list[Mutant]:
    """All mutants of a module, each of which differs from it in one place."""
    code, digest = text.encode(), hashlib.sha256(text.encode()).hexdigest()[:16]
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[tuple[int, int, str], Mutant] = {}
    nodes = list(_executed(ast.parse(text)))
    for operator, changes in OPERATORS.items():
        for old, new in (change for node in nodes for change in changes(node)):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            written = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            if ast.dump(old) != ast.dump(new):
                replaced = code[start:end].decode()
                mutant = Mutant(file, old.lineno, operator, start, end, replaced, written, digest)
                found.setdefault((start, end, written), mutant)
    return list(found.values())


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node; without annotations, what type checkers read, and f-strings.

    Python 3.11 gives no positions of the nodes within f-strings.
    """
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            checked = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and not checked:
                yield from _executed(child)


def drawn(root: Path, count: int, seed: int) -> list[Mutant]:
    """Mutants of the targets at random, each as likely as any other."""
    files = sorted(file for pattern in TARGETS for file in (root / PACKAGE).glob(pattern))
    everything = [
        mutant
        for file in files
        for mutant in mutants(file.relative_to(root / PACKAGE).as_posix(), file.read_text("utf-8"))
    ]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def tests_of(root: Path, file: str) -> list[str]:
    """The tests of a file's room, first those that are named after the file."""
    room = next(tests for pattern, tests in TARGETS.items() if Path(file).match(pattern))
    paths = [root / "tests" / name for name in room.split()]
    files = {
        test for path in paths for test in (path.glob("test_*.py") if path.is_dir() else [path])
    }
    stem = f"test_{Path(file).stem}"
    ordered = sorted(files, key=lambda test: (not test.stem.startswith(stem), test))
    return [test.relative_to(root).as_posix() for test in ordered]


def copied(root: Path, folder: Path) -> Path:
    """A copy of a checkout's files, beside the same development data."""
    project = folder / "project"
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, project / name)
    if (shared := root.parent / "shared").exists():
        (folder / "shared").symlink_to(shared)
    return project


def outcome(project: Path, tests: Sequence[str], seconds: int = SECONDS) -> str:
    """What the tests say of a copy: survived, killed, or timed out."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=project,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
    try:
        status = process.wait(WALL_SECONDS)
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timed out"
    return "killed" if status else "survived"


def tried(mutant: Mutant, project: Path) -> str:
    """The outcome of a mutant's tests in a copy, which is as before afterwards."""
    file = project / PACKAGE / mutant.file
    code = file.read_bytes()
    file.write_bytes(code[: mutant.start] + mutant.new.encode() + code[mutant.end :])
    try:
        return outcome(project, tests_of(project, mutant.file))
    finally:
        file.write_bytes(code)


def check_unchanged(project: Path, files: Sequence[str]) -> None:
    """Refuse tests that do not pass on the unchanged copy, or that need nearly all of the time.

    Raises:
        SystemExit: the first such tests.
    """
    for tests in sorted({" ".join(sorted(tests_of(project, file))) for file in files}):
        if (found := outcome(project, tests.split(), UNCHANGED_SECONDS)) != "survived":
            reason = "take longer" if found == "timed out" else "fail"
            raise SystemExit(f"without a mutant, within {UNCHANGED_SECONDS} s: {reason}: {tests}")


def run(wanted: Sequence[Mutant], root: Path, jobs: int, results: Path) -> None:
    """Try mutants in as many copies as jobs, and append each outcome to the results."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            free.put(copied(root, Path(folder) / str(number)))
        first = free.get()
        check_unchanged(first, [mutant.file for mutant in wanted])
        free.put(first)

        def one(mutant: Mutant) -> None:
            project = free.get()
            found = {**asdict(mutant), "outcome": tried(mutant, project)}
            free.put(project)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(f"{found['outcome']:9} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)

        list(pool.map(one, wanted))


def outcomes(results: Path) -> dict[Mutant, str]:
    """The stored outcomes."""
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {Mutant(**record): found for record in records for found in [record.pop("outcome")]}


def summary(found: dict[Mutant, str]) -> str:
    """The killed share with its interval, and the survivors."""
    counts = Counter(found.values())
    killed = counts["killed"] + counts["timed out"]
    interval = binomtest(killed, len(found)).proportion_ci(method="wilson")
    lines = [
        f"\n{killed} of {len(found)} killed: {killed / len(found):.1%} "
        f"({interval.low:.1%} to {interval.high:.1%}); {counts['timed out']} by time alone"
    ]
    for mutant in sorted(found, key=lambda each: (each.file, each.line)):
        if found[mutant] == "survived":
            old = " ".join(mutant.old.split())
            lines.append(f"{mutant.file}:{mutant.line} {mutant.operator}: {old} -> {mutant.new}")
    return "\n".join(lines)


def main() -> None:
    """Try the mutants that have no outcome yet, and print the share."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted, known = drawn(ROOT, options.count, options.seed), outcomes(options.results)
    if missing := [mutant for mutant in wanted if mutant not in known]:
        run(missing, ROOT, options.jobs, options.results)
        known = outcomes(options.results)
    print(summary({mutant: known[mutant] for mutant in wanted}))


if __name__ == "__main__":
    main()
