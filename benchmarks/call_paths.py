"""Files of src/ whose functions are called on three paths through the code.

    python benchmarks/call_paths.py [--json FILE]

Runs the smoke configuration in a temporary project and counts the files that run

- from a valid caption to CLIC's loss: in the nodes of `views` and `training`, until the first
  loss;
- in a promotion decision: in the nodes of `promotion`;
- in a trial of tuning: while Optuna runs the trial.

A path begins where Kedro executes a node, with loading its inputs and saving its outputs, or where
Optuna runs a trial, so that code counts wherever it lies: in a node, in a dataset or below. It ends
with the loss, whose name is given by the interface of methods, or with the run. Imports, hooks and
HTML pages do not count. Measures the `compo_pipeline` that is imported: PYTHONPATH selects another
checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import compo_pipeline

SOURCE = Path(compo_pipeline.__file__).parent.parent
ROOT = SOURCE.parent
CO_OPTIMIZED = 1  # set for functions; not for the bodies of modules and classes
NODE = "kedro/runner/task.py:execute"
TRIAL = "optuna/study/_optimize.py:_run_trial"
HOOKS = "/pluggy/"  # calls Kedro's hooks
PAGES = f"{SOURCE}/compo_pipeline/presentation/"


@dataclass(frozen=True)
class CallPath:
    """A path through the code, as part of runs of Kedro."""

    needs: str
    """Pipelines that are run before; they do not count."""
    pipelines: str
    start: str
    """End of a file's path, and a function in it: calls inside count."""
    last: str | None = None
    """The function whose first return ends the path."""


PATHS = {
    "a caption to CLIC's loss": CallPath(
        "raw,ingest,validation,foils,counterfactuals",
        "views,training",
        NODE,
        "methods/clic.py:loss",
    ),
    "a promotion decision": CallPath("training,evaluation,registration", "promotion", NODE),
    "a trial of tuning": CallPath("", "tuning", TRIAL),
}


class CalledFiles:
    """Profile function that collects the files of src/ that a path calls."""

    def __init__(self, path: CallPath) -> None:
        self.path = path
        self.files: set[str] = set()
        self.ended = False
        self._inside = 0  # frames of the start on the stack
        self._outside = 0  # frames of hooks and pages on the stack

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call or a return, see `sys.setprofile`."""
        if self.ended or event not in ("call", "return"):
            return
        file, step = frame.f_code.co_filename, 1 if event == "call" else -1
        name = f"{file}:{frame.f_code.co_name}"
        if name.endswith(self.path.start):
            self._inside += step
        elif HOOKS in file or file.startswith(PAGES):
            self._outside += step
        elif self._inside and not self._outside and file.startswith(f"{SOURCE}{os.sep}"):
            if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:
                self.files.add(Path(file).relative_to(SOURCE).as_posix())
            if event == "return" and self.path.last and name.endswith(self.path.last):
                self.ended = True


@contextmanager
def project() -> Iterator[Path]:
    """A temporary project with this one's configuration and code, as the working directory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "conf", folder / "conf")
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "src").mkdir()  # Kedro wants one; the code is this process's own
        os.chdir(folder)
        yield folder
        os.chdir(ROOT)


def run(folder: Path, pipelines: str) -> None:
    """One Kedro run per pipeline of the smoke environment."""
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(folder)
    for name in filter(None, pipelines.split(",")):
        one_trial = {"tuning": {"study": {"trials": 1, "workers": 1}}}
        session: Any = KedroSession.create(folder, env="smoke", runtime_params=one_trial)
        with session:
            session.run(pipeline_name=name)


def follow(folder: Path, path: CallPath) -> list[str]:
    """The files of a path, in alphabetical order.

    Raises:
        SystemExit: the path's start or end was not run.
    """
    run(folder, path.needs)
    called = CalledFiles(path)
    sys.setprofile(called)
    threading.setprofile(called)
    try:
        run(folder, path.pipelines)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if not called.files or (path.last and not called.ended):
        raise SystemExit(f"{path.pipelines}: {path.last or path.start} was not run")
    return sorted(called.files)


def main() -> None:
    """Print every path's files, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the files as JSON")
    target = parser.parse_args().json
    target = target and target.absolute()
    with project() as folder:
        counted = {name: follow(folder, path) for name, path in PATHS.items()}
    for name, files in counted.items():
        print(f"\n{name}: {len(files)} files")
        print("\n".join(f"  {file}" for file in files))
    if target:
        target.write_text(json.dumps(counted, indent=1) + "\n")


if __name__ == "__main__":
    main()
