"""Copies of the project as repositories of their own, small enough to run their pipelines."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.processes import ran

from compo_pipeline.core.settings import leaves, with_values

PROJECT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """Variables of a reader's shell in which this Python's programs are installed."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Each process would compile the modules of a new folder again.
    inherited = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
    return {**inherited, "PATH": programs, "OMP_NUM_THREADS": "1", **more}


def shell(commands: str, folder: Path) -> str:
    """Run commands as a page's reader does; their output."""
    done = ran(["bash", "-euc", commands], folder, **environment())
    assert done.returncode == 0, f"{commands}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def smoke_sizes() -> dict[str, Any]:
    """The values of conf/smoke by the files of conf/base that they belong to."""
    smoke = yaml.safe_load((PROJECT / "conf" / "smoke" / "parameters.yml").read_text())
    apart = ("training", "promotion", "tuning")
    changes: dict[str, Any] = {
        f"conf/base/parameters_{key}.yml": {key: smoke.pop(key)} for key in apart
    }
    return {"conf/base/parameters.yml": smoke, **changes}


def change(folder: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Set values in YAML files of a project."""
    for name, overrides in changes.items():
        file = folder / name
        values = yaml.safe_load(file.read_text()) if file.exists() else {}
        file.write_text(yaml.safe_dump(with_values(values, dict(leaves(overrides)))))


def repository(folder: Path, changes: Mapping[str, Mapping[str, Any]]) -> Path:
    """The project's files as a repository of their own, with other values in some YAML files."""
    listed = shell("git ls-files --cached --others --exclude-standard", PROJECT).splitlines()
    for name in listed:
        if (PROJECT / name).is_file() and not name.startswith("data/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    change(folder, changes)
    shell(
        "git init --quiet --initial-branch=main && git config user.name Tester && "
        "git config user.email tester@example.org && git add --all && git commit --quiet -m start",
        folder,
    )
    return folder
