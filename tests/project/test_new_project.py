"""A project that the installed package writes has what a run needs, and its own method is found."""

import os
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from tests.processes import ran

from compo_pipeline.__main__ import main
from compo_pipeline.cli import cli
from compo_pipeline.core import settings
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.pipeline_registry import descriptions
from compo_pipeline.project import commands, creation

ROOT = Path(__file__).parents[2]


def wheel_of(project: Path, place: Path) -> Path:
    """The wheel of a project's package."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    assert ran(command, project).returncode == 0
    (wheel,) = place.iterdir()
    return wheel


def tracked(*paths: str) -> set[str]:
    """What git tracks of this project."""
    return set(ran(["git", "ls-files", *paths], ROOT).stdout.split())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    done = ran([sys.executable, "-m", "compo_pipeline", "new", "My-photos"], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (
        "Written: My-photos. Next:\n\n  cd My-photos\n  kedro run --pipeline=train_eval\n"
    )
    return folder / "My-photos"


def test_it_has_every_environment_but_this_machine_s_own(project: Path) -> None:
    ours = {name for name in tracked("conf") if not name.startswith("conf/local")}
    theirs = {str(path.relative_to(project)) for path in (project / "conf").rglob("*.yml")}
    assert ours and ours <= theirs


def test_its_stages_depend_on_its_own_code_and_the_version_of_the_package(project: Path) -> None:
    files = [yaml.safe_load((project / each).read_text()) for each in creation.STAGES[:2]]
    for stage in (each for content in files for each in content["stages"].values()):
        deps = stage.get("do", stage)["deps"]
        assert {"requirements.txt", "src"} <= set(deps)
        assert not any("compo_" in each for each in deps)
    assert (project / "requirements.txt").read_text() == (
        f"compo-pipeline=={version('compo-pipeline')}\n"
    )


@pytest.mark.slow
def test_its_own_method_trains(project: Path, tmp_path: Path) -> None:
    """Its package is installed: Python imports from a wheel as it is."""
    path = os.pathsep.join([str(wheel_of(project, tmp_path)), os.environ.get("PYTHONPATH", "")])
    params = "method=cyclip,training.max_steps=2,evaluation.control=false"
    chain = "ingest,validation,foils,counterfactuals,views,training"
    command = [sys.executable, "-m", "compo_pipeline", "run", "--env=smoke"]
    given = [f"--pipelines={chain}", f"--params={params}"]
    done = ran([*command, *given], project, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((project / "data/06_models/smoke/cyclip").rglob("open_clip_model.safetensors"))


def test_the_commands_of_its_readme_are_known(project: Path) -> None:
    text = (project / "README.md").read_text()
    pipelines = set(re.findall(r"--pipeline=(\w+)", text))
    assert pipelines and pipelines <= {*descriptions()}
    commands_ = set(re.findall(r"^compo-pipeline (\w+)", text, re.MULTILINE))
    assert commands_ - {"doctor"} <= {*cli.commands}


def test_the_wheel_of_this_package_has_what_git_tracks(tmp_path: Path) -> None:
    names = set(ZipFile(wheel_of(ROOT, tmp_path)).namelist())
    place = "compo_pipeline/resources/project/"
    files = tracked("conf", *creation.STAGES, "src")
    ours = {name for name in files if not name.endswith(".gitkeep")}
    code = {name.removeprefix("src/") for name in ours if name.startswith("src/")}
    configured = {f"{place}{name}" for name in ours if not name.startswith("src/")}
    assert code and configured and code | configured <= names
    assert {name for name in names if name.startswith(f"{place}conf/local")} <= {
        f"{place}conf/local/.gitkeep"
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [("9photos", "cannot be a package's name"), ("full", "exists already"), ("a b", "cannot be")],
)
def test_a_folder_that_cannot_be_a_project_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(SettingsError, match=message):
        creation.create(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_outside_of_a_project_other_commands_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["params"])
    assert ended.value.code == 2
    assert "`compo-pipeline new <folder>`" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split()[-1] == version("compo-pipeline")


def test_outside_of_a_checkout_an_extra_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (ROOT / shlex.split(settings.pip_install("ui"))[3]).is_file()
    monkeypatch.setattr(settings, "_CONSTRAINTS", tmp_path / "constraints.txt")
    *command, package = shlex.split(settings.pip_install("ui"))
    assert command == ["pip", "install"]
    needed = Requirement(package)
    assert (needed.name, needed.extras) == ("compo-pipeline", {"ui"})


def test_the_doctor_says_what_is_here_and_which_extras_lack_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = commands.version

    def without(name: str) -> str:
        if name in ("onnx", "gradio"):
            raise commands.PackageNotFoundError(name)
        return "0.1" if name == "nltk" else installed(name)

    monkeypatch.setattr(commands, "version", without)
    found = dict(commands.findings(None))
    assert f"torch {version('torch')}" in found["libraries"]
    assert found["project"].startswith("none here")
    assert dict(commands.findings(tmp_path))["project"] == str(tmp_path)
    for extra, package in (("onnx", "onnx"), ("ui", "gradio"), ("wordnet", "nltk")):
        assert found[f"extra {extra}"].startswith(f"needs {package}: pip install")
