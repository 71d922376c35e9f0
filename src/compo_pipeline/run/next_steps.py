"""Commands as the user would type them, and the last lines of a run: results and next commands."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from compo_pipeline.configuration.settings import leaves, masked, pip_install
from compo_pipeline.run.console import terminal

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from rich.console import Console

# Results to open, by catalog entry: label, and the page inside its folder.
_RESULTS = {
    "report": ("Report", "*.html"),
    "tuning_report": ("Study", "*.html"),
    "wise_ft_report": ("WiSE-FT", "*.html"),
    "diagnosis_report": ("Diagnosis", "*.html"),
    "suite_report": ("Benchmarks", "*.html"),
    "attention_report": ("Attention", "*/*.html"),
    "foils_review_page": ("Review of foils", "*.html"),
    "comparison_report": ("Comparison", "*.html"),
    "monitoring_report": ("Monitoring", "*.html"),
    "promotion_report": ("Decision", "promotion.*"),
    "export": ("Model", ""),
    "exported": ("Exports", ""),
    "base_model": ("Base model", ""),
    "recaptions_preview": ("Recaptions", "*.html"),
    "views_preview": ("Training examples", "*.html"),
    "data_docs": ("Data Docs", "*.html"),
}


def kedro_run(pipeline: str, env: str | None, params: Mapping[str, Any]) -> str:
    """The `kedro run` command of a pipeline, as the user would type it.

    Args:
        pipeline: its name.
        env: Kedro's environment; None is its default.
        params: by dotted key, or nested.
    """
    return f"kedro run --pipeline={pipeline}{options(env, params)}"


def options(env: str | None, params: Mapping[str, Any]) -> str:
    """Command-line options ` --env=... --params ...` as text, with passwords masked.

    Args:
        env: Kedro's environment; None is its default.
        params: by dotted key, or nested.
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
    parameters: Any,
    console: Console | None = None,
) -> None:
    """Print the existing results of a finished pipeline, and the usual next commands.

    Args:
        pipeline: the finished one.
        catalog: Kedro's.
        parameters: the settings of the run.
        console: the terminal by default.
    """
    outputs = pipeline.all_outputs()
    rows = []
    for entry, (label, page) in _RESULTS.items():
        if entry in outputs and catalog.exists(entry):
            folder = Path(catalog[entry]._describe()["filepath"])
            # A folder without its page: there was nothing to show.
            if path := next(folder.glob(page), None) if page else folder:
                rows.append((label, os.path.relpath(path)))
    if "metrics" in outputs and catalog.exists("metrics"):
        path = os.path.relpath(catalog["metrics"]._describe()["filepath"])
        rows.append(("Metrics", f"{path}, to be committed: `dvc metrics diff` compares commits"))
    if "validation_result" in outputs and catalog.exists("validation_result"):
        rows += [("Captions", one) for one in catalog.load("validation_result")["warnings"]]
    commands: list[tuple[str, str]] = []
    if made := outputs & {"registered", "rescored"}:
        version = catalog.load(made.pop())
        rows.append(("Registered", f"{version['name']} version {version['version']}"))
        commands = _after_registration(version["alias"], parameters)
    elif {"decision", "promotion_report"} <= outputs:
        commands = _after_promotion(parameters)
    if not rows:
        return
    console = terminal(console)
    width = max(len(label) for label, _ in rows) + 2
    lines = [Text(), *(Text.assemble((f"{label:<{width}}", "dim"), shown) for label, shown in rows)]
    if commands:
        lines += [Text(), Text("Next:", style="dim")]
        for command, purpose in commands:
            lines += [Text(f"  # {purpose}", style="dim"), Text(f"  {command}")]
    for line in lines:
        # Unwrapped, so that paths and commands can be copied.
        console.print(line, soft_wrap=True)


def _ui_install_hint() -> str:
    """Hint at how to install the extra `ui`; empty where gradio is installed."""
    return "" if find_spec("gradio") else f", needs {pip_install('ui')}"


def _after_registration(alias: str | None, parameters: Any) -> list[tuple[str, str]]:
    """Commands to run after a registration, each with its purpose."""
    if alias is None:
        return []
    env, params = parameters.command.env, parameters.command.params
    promotion = kedro_run("promotion", env, params)
    compare = f"compo-pipeline try --alias {alias}{options(env, params)}"
    return [
        (promotion, "make it the champion if it passes the gate"),
        (compare, f"base and model in a browser{_ui_install_hint()}"),
    ]


def _after_promotion(parameters: Any) -> list[tuple[str, str]]:
    """Commands to run after a promotion, each with its purpose."""
    if parameters.promotion.dry_run:
        return []
    env, params = parameters.command.env, parameters.command.params
    # What this command did is not to be repeated: a rollback, another gate.
    others = {name: value for name, value in leaves(params) if not name.startswith("promotion.")}
    given = options(env, others)
    return [
        (f"compo-pipeline serve{given}", "the champion over HTTP"),
        (f"compo-pipeline try{given}", f"base and champion in a browser{_ui_install_hint()}"),
    ]
