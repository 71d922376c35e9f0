"""Files of src/ whose functions are called on three paths through the code.

    python benchmarks/call_paths.py

Runs the smoke configuration in a temporary project and counts the files that run

- from a valid caption to CLIC's loss: in the nodes that parse, draw views and train, until the
  first loss;
- in a promotion decision: in `promote`, by the evidence of a version and of its base;
- in a trial of tuning: in one call of the objective.

Imports do not count, nor does what Kedro calls between nodes. Prints the files of each path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import compo_pipeline

SOURCE = Path(compo_pipeline.__file__).parent
ROOT = SOURCE.parent.parent
CO_OPTIMIZED = 1  # set for functions; not for the bodies of modules and classes

# Path: its pipelines, the functions inside which files count, the function whose return ends it.
PATHS = {
    "a caption to CLIC's loss": (
        "views,training",
        (
            "pipelines/views.py:parse_captions",
            "pipelines/views.py:draw_views",
            "pipelines/training.py:train_model",
        ),
        "methods/clic.py:loss",
    ),
    "a promotion decision": (
        "promotion",
        ("registry/promotion.py:promote",),
        "registry/promotion.py:promote",
    ),
    "a trial of tuning": ("tuning", ("tuning/trial.py:__call__",), "tuning/trial.py:__call__"),
}
# What a path needs; their own runs do not count.
BEFORE = {
    "a caption to CLIC's loss": ("raw,ingest,validation,counterfactuals",),
    "a promotion decision": ("training,evaluation,registration",),
    "a trial of tuning": (),
}


class CalledFiles:
    """Profile function that collects files called inside some functions, until another returns."""

    def __init__(self, inside: Sequence[str], last: str) -> None:
        """Name functions as file:function, below the package."""
        self.inside, self.last = inside, last
        self.files: set[str] = set()
        self.depth = 0
        self.done = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call or a return, see `sys.setprofile`."""
        code = frame.f_code
        in_package = code.co_filename.startswith(f"{SOURCE}{os.sep}")
        if self.done or event not in ("call", "return") or not in_package:
            return
        file = Path(code.co_filename).relative_to(SOURCE).as_posix()
        name = f"{file}:{code.co_name}"
        if name in self.inside:
            self.depth += 1 if event == "call" else -1
        if event == "call" and code.co_flags & CO_OPTIMIZED and self.depth:
            self.files.add(file)
        self.done = event == "return" and name == self.last and bool(self.files)


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
    for name in pipelines.split(","):
        one_trial = {"tuning": {"study": {"trials": 1, "workers": 1}}}
        session: Any = KedroSession.create(folder, env="smoke", runtime_params=one_trial)
        with session:
            session.run(pipeline_name=name)


def follow(folder: Path, name: str) -> list[str]:
    """The files of a path, in alphabetical order."""
    pipelines, inside, last = PATHS[name]
    for needed in BEFORE[name]:
        run(folder, needed)
    called = CalledFiles(inside, last)
    sys.setprofile(called)
    threading.setprofile(called)
    try:
        run(folder, pipelines)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if not called.done:
        raise SystemExit(f"{name}: {last} was not run")
    return sorted(called.files)


def main() -> None:
    """Print every path's files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with project() as folder:
        counted = {name: follow(folder, name) for name in PATHS}
    for name, files in counted.items():
        print(f"\n{name}: {len(files)} files")
        print("\n".join(f"  {file}" for file in files))


if __name__ == "__main__":
    main()
