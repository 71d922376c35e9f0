"""The commands of the pages do what they say: stories of tests/docs/commands.yml are executed."""

import itertools
import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.chat_server import Chat
from tests.docs.pages import plan, replaced
from tests.repositories import PROJECT, environment, repository, smoke_sizes

from compo_pipeline.core.settings import leaves, with_values

PLAN = plan()
SHELL = Path(__file__).with_name("story.sh").read_text("utf-8")
SECONDS = 1200
"""Longest time of a story."""


def script(steps: list[dict[str, Any]], replacements: Mapping[str, str], folder: Path) -> str:
    """The shell's script of a story, whose steps are written into a folder."""
    lines = [SHELL]
    for number, step in enumerate(steps):
        file, printed = folder / f"{number}.sh", folder / f"{number}.out"
        typed = command_of(step) if "setup" in step else replaced(command_of(step), replacements)
        # A server replaces the shell that starts it, so that it is what is ended.
        file.write_text(f"exec {typed}\n" if "server" in step else f"{typed}\n")
        start = f'serve "{file}" {step["url"]}' if "server" in step else f'. "{file}" </dev/null'
        lines.append(f"begin {number}")
        lines.append(f'{start} >"{printed}" 2>&1')
        lines.append(f'expect $? {step.get("status", 0)} "{printed}"')
    return "\n".join([*lines, "begin end", ""])


def command_of(step: Mapping[str, Any]) -> str:
    return str(step.get("run") or step.get("server") or step["setup"])


def refuse_taken_ports(steps: list[dict[str, Any]]) -> None:
    """Pages name the ports of their servers: another program that has one would answer."""
    for port in {int(re.search(r":(\d+)", step["url"])[1]) for step in steps if "url" in step}:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"another program listens on port {port}, which a page names")


@pytest.fixture
def captioner(chat: Chat) -> str:
    """The URL of a chat server that gives each image a caption."""
    chat.script = lambda turn, number, body: turn.say(
        f"A red chair stands left of {number + 2} green tables."
    )
    return chat.url


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAN["stories"])
def test_the_commands_of_a_story_succeed(
    name: str, captioner: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """In a report of pytest (--junitxml), the properties are the seconds that each took, and those
    of the processor that all commands so far have used.
    """
    story = PLAN["stories"][name]
    steps = [{"run": step} if isinstance(step, str) else step for step in story["steps"]]
    refuse_taken_ports(steps)
    project, home, written = (tmp_path / each for each in ("project", "home", "steps"))
    for folder in (project, home, written):
        folder.mkdir()
    if story.get("folder") != "empty":
        repository(project, changes(story.get("config", {})))
    file = written / "story.sh"
    file.write_text(script(steps, story.get("replace", {}), written))
    variables = {"HOME": home, "STEPS": written, "PROJECT": PROJECT, "CHAT": captioner}
    status = execute(file, project, **{name: str(each) for name, each in variables.items()})
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    record_property("processor", round(used.ru_utime + used.ru_stime))
    begun = [line.split() for line in (written / "begun").read_text().splitlines()]
    for (number, start), (_, end) in itertools.pairwise(begun):
        record_property(command_of(steps[int(number)]), round(float(end) - float(start), 1))
    last = begun[-1][0]
    assert last == "end", (
        f"{command_of(steps[int(last)])}\n{(written / f'{last}.out').read_text()[-4000:]}"
    )
    assert status == 0
    for number, step in enumerate(steps):
        printed = (written / f"{number}.out").read_text()
        pattern = step.get("prints", "")
        assert re.search(pattern, printed, re.MULTILINE), f"{command_of(step)}\n{printed}"


def changes(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The sizes of conf/smoke, and further values of a story, by file."""
    found = smoke_sizes()
    for file, values in config.items():
        found[file] = with_values(found.get(file, {}), dict(leaves(values)))
    return found


def execute(file: Path, folder: Path, **variables: str) -> int:
    """The status of a script; nothing that it started outlives it."""
    author = {"GIT_AUTHOR_NAME": "Tester", "GIT_AUTHOR_EMAIL": "tester@example.org"}
    committer = {key.replace("AUTHOR", "COMMITTER"): value for key, value in author.items()}
    process = subprocess.Popen(
        ["bash", str(file)],
        cwd=folder,
        env=environment(**author, **committer, **variables),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
