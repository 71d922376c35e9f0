"""Provenance of a result: git commit of the code, and command lines as a user types them."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from compo_pipeline.core.settings import leaves, masked

UNKNOWN_COMMIT = "unknown"


def git_state(folder: Path) -> tuple[str, bool]:
    """Git commit of a folder, and whether files outside data/ have uncommitted changes.

    Without a repository, or without git, the commit is `unknown`.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", ".", ":(exclude)data")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT, False


@dataclass(frozen=True)
class CommandOptions:
    """Options of the running command line (`--env`, `--params`), for commands shown to the user."""

    env: str | None = None
    """Kedro's environment. None is its default."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters that `--params` gave."""

    def record(self) -> dict[str, Any]:
        """Environment, and parameters by dotted key as a user types them, with passwords masked."""
        return {"env": self.env, "params": _typed(self.params)}


@dataclass(frozen=True)
class Site:
    """Paths of all HTML pages that the project writes, and the running command, for their links."""

    command: CommandOptions = field(default_factory=CommandOptions)
    """How the run was started."""
    pages: dict[str, str] = field(default_factory=dict)
    """File of each page, by catalog entry."""

    def page(self, entry: str) -> Path:
        """Path of the HTML page of a catalog entry."""
        return Path(self.pages[entry])

    def folder(self, entry: str) -> Path:
        """Folder of the HTML page of a catalog entry."""
        return self.page(entry).parent

    def run(self, pipeline: str) -> str:
        """Command line that runs a pipeline with the options of this run."""
        return kedro_run(pipeline, self.command.env, self.command.params)

    def facts(self, pipeline: str) -> dict[str, str]:
        """Date, command line and commit to show on a page."""
        commit, dirty = git_state(Path.cwd())
        changes = ", with uncommitted changes" if dirty else ""
        return {
            "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            "command": self.run(pipeline),
            "commit": f"{commit[:12]}{changes}",
        }


def kedro_run(pipeline: str, env: str | None, params: Mapping[str, Any]) -> str:
    """The `kedro run` command of a pipeline, as the user would type it.

    Args:
        pipeline: name of the pipeline.
        env: Kedro environment. None is Kedro's default.
        params: parameters by dotted key, or nested.
    """
    return f"kedro run --pipeline={pipeline}{options(env, params)}"


def options(env: str | None, params: Mapping[str, Any]) -> str:
    """Command-line options ` --env=... --params ...` as text, with passwords masked.

    Args:
        env: Kedro environment. None is Kedro's default.
        params: parameters by dotted key, or nested.
    """
    command = "" if env is None else f" --env={shlex.quote(env)}"
    if params:
        given = ",".join(f"{name}={value}" for name, value in _typed(params).items())
        command += f" --params {shlex.quote(given)}"
    return command


def _typed(params: Mapping[str, Any]) -> dict[str, str]:
    """Values of parameters by dotted key, as a user types them, with passwords masked."""
    return {name: masked(_quote_value(value), name) for name, value in leaves(params)}


def arguments(env: str | None, params: Mapping[str, Any]) -> list[str]:
    """Command-line arguments `--env` and `--params` for a subprocess, with passwords unmasked."""
    given = ",".join(f"{name}={_quote_value(value)}" for name, value in leaves(params))
    return [*([] if env is None else [f"--env={env}"]), *([f"--params={given}"] if given else [])]


def quote_unreadable(value: str) -> str:
    """A value of `--params`, quoted if YAML cannot read it: `{key}.jpg` and `*.tar` are texts."""
    import yaml
    from omegaconf import OmegaConf

    try:
        OmegaConf.from_dotlist([f"value={value}"])
    except yaml.YAMLError:
        return json.dumps(value)
    return value


def _quote_value(value: Any) -> str:
    """A value for `--params` as text, quoted if it would be parsed as another type."""
    from omegaconf import OmegaConf

    if not isinstance(value, str):
        return json.dumps(value)
    quoted = quote_unreadable(value)
    read = OmegaConf.from_dotlist([f"value={quoted}"])
    return quoted if read == {"value": value} else json.dumps(value)
