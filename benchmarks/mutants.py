"""Share of small random faults that the tests notice in each room (mutation testing).

    python benchmarks/mutants.py [--each 20] [--seed 20261123] [--jobs 1] [--results FILE]
    python benchmarks/mutants.py --of FILE [--jobs 1] [--results FILE]

Mutants are drawn at random, without replacement, from all that `OPERATORS` make of each room: a
folder of the package. Each is written into a copy of the checkout's files in a temporary folder,
and the fast tests that call its function run there, the quickest first, as many as take 20 s
without it. Texts are not mutated: most are messages.

Which test calls which function is traced once before, while all fast tests run. A mutant is killed
if a test fails that passes on the unchanged copy, or if the tests take more than 60 processor
seconds, which they do not without it. Its first killers are stored, five at most. Outcomes are
appended to a file of JSON lines; mutants that have one there, of the same source, are not run
again. `--of` tries the mutants of another such file again, as far as the code still has their
places, with the tests that killed them before as the first. Prints the killed of each room, the
share of all with its 95% Wilson interval, and the survivors.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
PACKAGE = "src/compo_pipeline"
CALLS = "MUTANTS_CALLS"  # names the folder for the traced calls, in the environment
SECONDS = 60  # of processor time, so that other work on the machine kills no mutant
UNCHANGED_SECONDS = 20  # of the tests of a mutant, without it
MOST_TESTS = 60
MOST_KILLERS = 5
WALL_SECONDS = 300  # for tests that wait for something without end
# Imported once, before the process is copied for each mutant.
LIBRARIES = (
    "numpy pandas pyarrow.parquet pydantic scipy.stats sklearn torch open_clip PIL.Image omegaconf "
    "kedro.framework.session kedro.framework.startup matplotlib.pyplot spacy safetensors.torch "
    "sqlalchemy jinja2 hypothesis xdist"
)

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


@dataclass(frozen=True)
class Test:
    """A fast test: its processor time, and the functions of the package that it calls."""

    name: str
    seconds: float
    functions: frozenset[str]
    """Each `file:line` of its first line, a decorator's where it has one."""


@dataclass
class Attempt:
    """How tests ended: the exit status of pytest or a signal, and the tests that failed."""

    status: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the tests ended by themselves."""
        return self.status >= 0


def by_room(root: Path) -> dict[str, list[Mutant]]:
    """All mutants of the package by room, a folder of it; `resources` is of new projects."""
    found: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((root / PACKAGE).glob("*/**/*.py")):
        file = path.relative_to(root / PACKAGE).as_posix()
        found[file.partition("/")[0]] += mutants(file, path.read_text("utf-8"))
    return {room: every for room, every in found.items() if room != "resources" and len(every) > 1}


def drawn(root: Path, each: int, seed: int) -> list[Mutant]:
    """Mutants of each room at random, each of a room's as likely as any other of it."""
    rooms = [
        random.Random(f"{seed} {room}").sample(every, min(each, len(every)))
        for room, every in by_room(root).items()
    ]
    # In turns, so that those tried before an interruption are of all rooms.
    return [mutant for some in zip_longest(*rooms) for mutant in some if mutant is not None]


def still_there(root: Path, results: Path) -> dict[Mutant, list[str]]:
    """The mutants of the code that make the same change as stored ones, and what killed those.

    The change is in the same file or, if that is gone, the only one of its kind in the room.
    """
    places: dict[tuple[str, ...], list[Mutant]] = defaultdict(list)
    for room, mutants in by_room(root).items():
        for each in mutants:
            for place in (each.file, room):
                places[place, each.operator, each.old, each.new].append(each)
    found: dict[Mutant, list[str]] = {}
    for mutant, (_, killers) in stored(results).items():
        change = (mutant.operator, mutant.old, mutant.new)
        same = places[mutant.file, *change]
        if not same and not (root / PACKAGE / mutant.file).exists():
            same = places[mutant.file.partition("/")[0], *change]
            same = same if len(same) == 1 else []
        if same:
            found[min(same, key=lambda each: abs(each.line - mutant.line))] = killers
    return found


class Tracer:
    """Pytest plug-in: writes which functions of the package each test calls."""

    def __init__(self, project: Path, folder: Path) -> None:
        self._inside = f"{project / PACKAGE}/"
        self._file = folder / f"{os.getpid()}.jsonl"
        self._called: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._inside):
            self._called.add((code.co_filename, code.co_firstlineno))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test with its fixtures."""
        self._called.clear()
        start = time.process_time()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            called = [f"{file[len(self._inside) :]}:{line}" for file, line in self._called]
            found = {
                "name": item.nodeid,
                "seconds": round(time.process_time() - start, 3),
                "functions": sorted(called),
            }
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Trace the tests where this module is a plug-in of pytest (`-p mutants`)."""
    config.pluginmanager.register(Tracer(Path.cwd(), Path(os.environ[CALLS])))


def traced(project: Path, folder: Path, jobs: int) -> list[Test]:
    """Run all fast tests of a copy, and find which functions each calls."""
    folder.mkdir(parents=True)
    options = ["-q", "-m", "not slow", "-p", "mutants", "-p", "no:cacheprovider"]
    parallel = ["-n", str(jobs), "--dist=loadfile"] if jobs > 1 else []
    scripts = project / "benchmarks"
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *parallel, "tests"],
        cwd=project,
        env={**_environment(project), "PYTHONPATH": f"{project / 'src'}:{scripts}"}
        | {CALLS: str(folder)},
        check=False,
    )
    lines = [line for file in folder.glob("*.jsonl") for line in file.open(encoding="utf-8")]
    return [
        Test(each["name"], each["seconds"], frozenset(each["functions"]))
        for each in map(json.loads, lines)
    ]


def _environment(project: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(project / "src"),
        "PYTHONPYCACHEPREFIX": str(project.parent / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }


def function_of(text: str, line: int) -> int | None:
    """First line of the innermost function around a line of a module; None outside of functions."""
    inside = [
        (node.lineno, min([each.lineno for each in node.decorator_list], default=node.lineno))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    return max(inside)[1] if inside else None


def tests_of(project: Path, mutant: Mutant, tests: Sequence[Test]) -> list[str]:
    """The tests that call a mutant's function, or of a module's own lines any of its functions."""
    text = (project / PACKAGE / mutant.file).read_text("utf-8")
    line = function_of(text, mutant.line)
    place = f"{mutant.file}:" if line is None else f"{mutant.file}:{line}"
    callers = [
        test
        for test in tests
        if any(
            each == place or (line is None and each.startswith(place)) for each in test.functions
        )
    ]
    chosen: list[str] = []
    seconds = 0.0
    for test in sorted(callers, key=lambda each: (each.seconds, each.name))[:MOST_TESTS]:
        if chosen and seconds + test.seconds > UNCHANGED_SECONDS:
            break
        seconds += test.seconds
        chosen.append(test.name)
    return chosen


def attempt(project: Path, tests: Sequence[str], most: int = MOST_KILLERS) -> Attempt:
    """Run tests of a copy in a copy of this process, until as many as `most` have failed."""
    reader, writer = os.pipe()
    if not (process := os.fork()):
        _run_tests(project, tests, most, writer)
    os.close(writer)
    end, found, status = time.monotonic() + WALL_SECONDS, Attempt(), 0
    while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    status = ended[1] if ended[0] else os.waitpid(process, 0)[1]
    with os.fdopen(reader, encoding="utf-8") as failed:
        found.failed = failed.read().splitlines()
    found.status = os.waitstatus_to_exitcode(status)
    return found


def _run_tests(project: Path, tests: Sequence[str], most: int, writer: int) -> None:
    """Run tests in this process, name the failed ones through a pipe, and end."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.environ.update(_environment(project))
    sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False
    sys.path[:0] = [str(project), str(project / "src")]
    os.chdir(project)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS,) * 2)

    class Failures:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(writer, f"{report.nodeid}\n".encode())

    options = ["-q", f"--maxfail={most}", "-p", "no:cacheprovider", "-p", "no:xdist"]
    status = 3
    with suppress(BaseException):
        status = int(pytest.main([*options, *tests], plugins=[Failures()]))
    os._exit(status)


class Trials:
    """Tries mutants in a copy; remembers which tests pass there without one."""

    def __init__(self, project: Path, tests: Sequence[Test]) -> None:
        self._project, self._tests = project, tests
        self._sound: dict[str, bool] = {}

    def tried(self, mutant: Mutant, killers: Sequence[str]) -> tuple[str, list[str]]:
        """Outcome of a mutant, and the first tests that fail by it; the copy is as before.

        Tests that killed it before are the first, and one that fails is enough then.
        """
        known = {test.name for test in self._tests}
        killers = [test for test in killers if test in known]
        tests = [*dict.fromkeys([*killers, *tests_of(self._project, mutant, self._tests)])]
        if not tests:
            return "no test", []
        file = self._project / PACKAGE / mutant.file
        code, before = file.read_bytes(), file.stat()
        file.write_bytes(code[: mutant.start] + mutant.new.encode() + code[mutant.end :])
        # Bytecode is made anew where the time differs, in whole seconds.
        os.utime(file, (0, random.randrange(2**31)))
        try:
            found = attempt(self._project, tests, 1 if killers else MOST_KILLERS)
        finally:
            file.write_bytes(code)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        if killers := [test for test in found.failed if self._passes(test)]:
            return "killed", killers
        if found.status == 0 or found.failed:
            return "survived", []
        # Collection fails, or the tests end the process or take too long, with the mutant alone.
        unchanged = attempt(self._project, tests)
        if unchanged.status not in (0, 1):
            return "not tried", []
        return ("killed" if found.ended else "timed out"), tests[:1]

    def _passes(self, test: str) -> bool:
        if test not in self._sound:
            self._sound[test] = attempt(self._project, [test]).status == 0
        return self._sound[test]


def run(
    wanted: Mapping[Mutant, Sequence[str]], root: Path, jobs: int, results: Path, calls: Path
) -> None:
    """Try mutants in as many copies as jobs, and append each outcome to the results."""
    with tempfile.TemporaryDirectory() as folder:
        projects = [copied(root, Path(folder) / str(number)) for number in range(jobs)]
        if not calls.exists():
            tests = traced(projects[0], Path(folder) / "calls", jobs)
            calls.parent.mkdir(parents=True, exist_ok=True)
            calls.write_text(json.dumps([asdict(test) for test in tests], default=sorted))
        tests = [
            Test(each["name"], each["seconds"], frozenset(each["functions"]))
            for each in json.loads(calls.read_text())
        ]
        os.environ["OMP_NUM_THREADS"] = "1"
        for name in LIBRARIES.split():
            importlib.import_module(name)
        workers = []
        for number, project in enumerate(projects):
            if not (worker := os.fork()):
                trials = Trials(project, tests)
                for mutant in list(wanted)[number::jobs]:
                    outcome, killers = trials.tried(mutant, wanted[mutant])
                    found = {**asdict(mutant), "outcome": outcome, "killers": killers}
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found) + "\n")
                    print(f"{outcome:9} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)
                os._exit(0)
            workers.append(worker)
        for worker in workers:
            os.waitpid(worker, 0)


def stored(results: Path) -> dict[Mutant, tuple[str, list[str]]]:
    """The stored outcomes, with the tests that killed a mutant."""
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    found = {}
    for record in map(json.loads, lines):
        outcome, killers = record.pop("outcome"), record.pop("killers")
        found[Mutant(**record)] = (outcome, killers)
    return found


def summary(found: Mapping[Mutant, str]) -> str:
    """The killed of each room, their share with its interval, and the survivors."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, outcome in found.items():
        rooms[mutant.file.partition("/")[0]][outcome] += 1
    killed = sum(each["killed"] + each["timed out"] for each in rooms.values())
    tried = sum(each.total() - each["not tried"] for each in rooms.values())
    interval = binomtest(killed, tried).proportion_ci(method="wilson")
    lines = [
        f"{room:12} {each['killed'] + each['timed out']:3} of {each.total() - each['not tried']}"
        for room, each in sorted(rooms.items())
    ]
    lines.append(
        f"\n{killed} of {tried} killed: {killed / tried:.1%} "
        f"({interval.low:.1%} to {interval.high:.1%})"
    )
    for mutant in sorted(found, key=lambda each: (each.file, each.line)):
        if (outcome := found[mutant]) in ("survived", "no test", "not tried"):
            old = " ".join(mutant.old.split())
            place = f"{mutant.file}:{mutant.line} {mutant.operator}"
            lines.append(f"{outcome}: {place}: {old} -> {mutant.new}")
    return "\n".join(lines)


def main() -> None:
    """Try the mutants that have no outcome yet, and print the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=20, help="mutants of a room")
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--of", type=Path, help="results whose mutants are tried again")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--calls", type=Path, default=ROOT / "build" / "mutants" / "calls.json")
    options = parser.parse_args()
    if options.of:
        wanted = still_there(ROOT, options.of)
    else:
        wanted = {mutant: [] for mutant in drawn(ROOT, options.each, options.seed)}
    known = stored(options.results)
    if missing := {each: wanted[each] for each in wanted if each not in known}:
        run(missing, ROOT, options.jobs, options.results, options.calls)
        known = stored(options.results)
    print(summary({mutant: known[mutant][0] for mutant in wanted if mutant in known}))


if __name__ == "__main__":
    main()
