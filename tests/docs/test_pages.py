"""Each command of the pages is executed by a test or says why not, and would be accepted."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from kedro.framework.project import pipelines
from kedro.pipeline import Pipeline
from tests.docs.pages import PLAN, PROJECT, commands_of_pages, executed, plan, replaced, spans

from compo_pipeline import cli
from compo_pipeline.evaluation.suite import find_entry, listed_models
from compo_pipeline.project import commands as without_project
from compo_pipeline.project.settings import (
    Parameters,
    check_settings,
    loader_of,
    read_settings,
)

FOUND = commands_of_pages()
LISTED = plan()
# What only the stories have: the method of a new project, and a variant that the reader writes.
OWN_METHOD, OWN_VARIANT = "method=cyclip", ("variant", "advised")


def listed() -> Iterator[tuple[str, str]]:
    """Places of commands.yml, and the commands there."""
    for name, story in LISTED["stories"].items():
        yield from ((f"stories.{name}", command) for command in executed(story))
    for kind in ("elsewhere", "not_executed"):
        for name, group in LISTED[kind].items():
            yield from ((f"{kind}.{name}", command.strip()) for command in group)


def test_every_command_of_a_page_is_executed_or_says_why_not() -> None:
    known = {command for _, command in listed()}
    new = [f"  {command}\n    ({', '.join(FOUND[command])})" for command in FOUND.keys() - known]
    assert not new, (
        f"not in {PLAN}:\n" + "\n".join(sorted(new)) + "\nAdd each to the steps of a story, or "
        "under not_executed with what it would need"
    )
    stale = [f"  {place}: {command}" for place, command in listed() if command not in FOUND]
    assert not stale, f"in {PLAN}, but on no page:\n" + "\n".join(stale)


def words_after(program: str, command: str) -> Iterator[list[str]]:
    """The arguments of a program wherever a command runs it."""
    for line in re.split(r"[;\n]|&&", replaced(command, LISTED["placeholders"])):
        for found in re.findall(rf"^(?:\s|then |else )*{program} (.*)", line):
            # Within a string of `bash -c`, the last command ends with the string's quote.
            own = found.partition(" > ")[0]
            yield shlex.split(own if own.count("'") % 2 == 0 else own.rstrip("'"))


EVERYTHING = sorted({*FOUND, *spans()})
RUNS = {
    tuple(words[1:])
    for command in EVERYTHING
    if OWN_METHOD not in command
    for words in words_after("kedro", command)
    if words[:1] == ["run"]
}
COMMANDS = {tuple(words) for each in EVERYTHING for words in words_after("compo-pipeline", each)}


@cache
def settings_of(env: str | None, params: str) -> Parameters:
    """The settings of a run by environment and `--params`, as JSON; not those of conf/local."""
    env = "base" if env is None else env
    assert (PROJECT / "conf" / env).is_dir(), f"conf/{env} is no folder"
    loader = loader_of(PROJECT / "conf", env, json.loads(params))
    return read_settings(loader)


@pytest.mark.parametrize("words", [pytest.param(each, id=" ".join(each)) for each in sorted(RUNS)])
def test_a_run_is_accepted_before_it_looks_for_data(
    words: tuple[str, ...], bootstrapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment, pipelines, nodes, settings, variants, model lists and sets exist."""

    def accept(**given: Any) -> None:
        params = dict(each for each in given["params"].items() if each != OWN_VARIANT)
        settings = settings_of(given["env"], json.dumps(params))
        names = given["pipelines"] or [given["pipeline"] or "__default__"]
        chosen = sum((pipelines[name] for name in names), Pipeline([]))
        check_settings(settings, chosen)
        listed_models(settings.models, settings.model_lists)
        find_entry(settings.set, "set", settings.comparison_sets, "comparison_sets")

    run = click.Command("run", params=cli.kedro_run.params, callback=accept)
    monkeypatch.setattr(cli, "kedro_run", run)
    done = CliRunner().invoke(cli.cli, ["run", *words])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "words", [pytest.param(each, id=" ".join(each)) for each in sorted(COMMANDS)]
)
def test_a_command_of_the_project_takes_its_arguments(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *arguments = words
    known = {**without_project.commands.commands, **cli.cli.commands}
    assert name in known
    monkeypatch.chdir(tmp_path)
    for file in (Path(each) for each in arguments if each.endswith(".pkl")):
        file.touch()
    for folder in re.findall(r"_root=([^,\s]+)", " ".join(words)):
        Path(folder).mkdir(parents=True)
    if re.fullmatch(r"--[\w-]+", words[-1]):  # named in a text, without its value
        assert any(arguments[-1] in each.opts for each in known[name].params)
        arguments.pop()
    parsed = known[name].make_context(name, arguments, resilient_parsing=not arguments)
    params = parsed.params.get("params")
    if isinstance(params, dict):
        settings_of(parsed.params["env"], json.dumps(params))


def test_extras_that_are_installed_exist() -> None:
    content = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {
        extra
        for command in FOUND
        if command.startswith("pip install")
        for extras in re.findall(r"\[(.*)]", command)
        for extra in extras.split(",")
    }
    assert named and named <= content["project"]["optional-dependencies"].keys()
