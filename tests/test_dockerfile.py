"""The install lines of the Dockerfile install what is locked, and the package starts.

They run in a temporary folder, without Docker: nothing here builds an image.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def stages(project: Path) -> dict[str, list[list[str]]]:
    """Instruction and value of each line of a stage, by the stage's name."""
    text = re.sub(r"^#.*\n", "", (project / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, list[list[str]]] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("FROM"):
            lines = found.setdefault(line.rpartition(" AS ")[2], [])
        elif line:
            lines.append(line.split(" ", 1))
    return found


class Build:
    """Copies and runs what stages name; `/opt`, `/dist` and the working folder are in `root`.

    Of `ENV`, which is about bytecode and copies in place of links, nothing is set.
    """

    def __init__(self, project: Path, root: Path) -> None:
        self._project, self._root, self._work = project, root, root / "build"
        outside = ("PYTHON", "VIRTUAL_ENV", "UV_TORCH_BACKEND")
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(outside)
        }
        self._work.mkdir()

    def copy(self, value: str) -> None:
        """`COPY` from the context."""
        *sources, target = value.split()
        for source in (self._project / each for each in sources):
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "local", "credentials*")
                shutil.copytree(source, self._work / target, ignore=ignored)
            else:
                shutil.copy(source, self._work / target)

    def run(self, command: str, **arguments: str) -> str:
        """`RUN`, without its mounts.

        Args:
            command: of the shell.
            arguments: the stage's `ARG`.

        Returns:
            What it printed.
        """
        command = re.sub(r"--mount=\S+ ", "", command)
        command = re.sub(r"(?<![\w./])/(opt|dist)\b", rf"{self._root}/\1", command)
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=self._work,
            env=self._environment | arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def stage(self, lines: list[list[str]], **arguments: str) -> str:
        """The stage's `COPY` from the context, and its `RUN`, but of Debian's packages.

        Returns:
            What its `RUN` printed.
        """
        printed = ""
        for instruction, value in lines:
            if instruction == "COPY" and "--from" not in value:
                self.copy(value)
            elif instruction == "RUN" and not value.startswith("apt-get"):
                printed += self.run(value, **arguments)
        return printed


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed after the test: gigabytes are installed into it."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_the_install_lines_install_what_is_locked(
    project: Path, root: Path, stages: dict[str, list[list[str]]]
) -> None:
    build = Build(project, root)
    for name in ("dependencies", "wheel"):
        build.stage(stages[name], UV_TORCH_BACKEND="", EXTRAS="--extra s3")
    build.stage(stages["runtime"])
    frozen = build.run("/opt/venv/bin/uv pip freeze --python /opt/venv/bin/python")
    pinned = re.compile(r"^([^\s#]+)==(\S+)", re.MULTILINE)
    locked = dict(pinned.findall((project / "constraints.txt").read_text()))
    installed = dict(pinned.findall(frozen))
    others = {name for name, version in installed.items() if locked.get(name) != version}
    assert others <= {"pip", "setuptools"}, others
    assert "s3fs" in installed and len(installed) > 100

    code = (project / "src" / "compo_pipeline" / "__init__.py").read_text()
    (version,) = re.findall(r'__version__ = "(.*)"', code)
    assert build.run("/opt/venv/bin/compo-pipeline --version").split()[-1] == version
    build.run("/opt/venv/bin/compo-pipeline new photos")
    assert (root / "build" / "photos" / "conf" / "table").is_dir()


def test_only_what_is_copied_is_sent_to_the_build(
    project: Path, stages: dict[str, list[list[str]]]
) -> None:
    copied = {
        source
        for lines in stages.values()
        for name, value in lines
        if name == "COPY" and "--from" not in value
        for source in value.split()[:-1]
    }
    everything, *rules = [
        line
        for line in (project / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert everything == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert rules[len(copied) :] == ["conf/local", "**/credentials*", "**/__pycache__"]


def test_every_image_runs_as_a_user_without_rights(stages: dict[str, list[list[str]]]) -> None:
    assert [value for name, value in stages["runtime"] if name == "USER"] == ["1000"]
    for image in ("serve", "pipelines"):
        assert not [value for name, value in stages[image] if name == "USER"]
