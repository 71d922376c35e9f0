"""Summary printed at the end of a run: its results, and the commands to type next."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from compo_pipeline.core.console import terminal
from compo_pipeline.core.settings import leaves, masked

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from rich.console import Console

    from compo_pipeline.core.provenance import CommandOptions

# Folders of models to name, besides the pages.
_MODELS = ("export", "base_model")


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
        given = ",".join(
            f"{name}={masked(_quote_value(value), name)}" for name, value in leaves(params)
        )
        command += f" --params {shlex.quote(given)}"
    return command


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


def show_results(
    pipeline: Pipeline,
    catalog: CatalogProtocol[Any, Any],
    promotion: Any,
    typed: CommandOptions,
    console: Console | None = None,
) -> None:
    """Print the existing results of a finished pipeline, and the usual next commands.

    Args:
        pipeline: the finished one.
        catalog: Kedro's data catalog.
        promotion: the settings of promotion.
        typed: options of the run.
        console: the terminal by default.
    """
    outputs = dict.fromkeys(name for node in pipeline.nodes for name in node.outputs)
    made = [name for name in outputs if name in catalog and catalog.exists(name)]
    rows = []
    for name in made:
        described = catalog[name]._describe()
        label = name.replace("_", " ").capitalize()
        if "page" in described:
            # A folder without its page: there was nothing to show.
            pages = Path(described["filepath"]).rglob(Path(described["page"]).name)
            rows += [(label, os.path.relpath(page)) for page in pages]
        elif name in _MODELS:
            rows.append((label, os.path.relpath(described["filepath"])))
        elif name == "metrics":
            path = os.path.relpath(described["filepath"])
            rows.append((label, f"{path}, to be committed: `dvc metrics diff` compares commits"))
        elif name == "validation_result":
            rows += [("Captions", one) for one in catalog.load(name)["warnings"]]
    commands: dict[str, str] = {}
    if registered := next((name for name in made if name in ("registered", "rescored")), None):
        version = catalog.load(registered)
        rows.append(("Registered", f"{version['name']} version {version['version']}"))
        if alias := version["alias"]:
            commands["kedro run --pipeline=promotion"] = "the champion, if it passes the gate"
            commands[f"compo-pipeline try --alias {alias}"] = "base and model in a browser"
    elif "promotion_report" in made and not promotion.dry_run:
        commands["compo-pipeline serve"] = "the champion over HTTP"
        commands["compo-pipeline try"] = "base and champion in a browser"
    if not rows:
        return
    console = terminal(console)
    width = max(len(label) for label, _ in rows) + 2
    lines = [Text(), *(Text.assemble((f"{label:<{width}}", "dim"), shown) for label, shown in rows)]
    # What this command did is not to be repeated: a rollback, another gate.
    given = leaves(typed.params)
    others = {name: value for name, value in given if not name.startswith("promotion.")}
    for command, purpose in commands.items():
        lines += [
            Text(),
            Text(f"# {purpose}", style="dim"),
            Text(command + options(typed.env, others)),
        ]
    for line in lines:
        # Unwrapped, so that paths and commands can be copied.
        console.print(line, soft_wrap=True)
