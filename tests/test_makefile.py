"""`make clean` spares what no run can make again; `make install` checks every file's hash."""

import re
import shutil
from pathlib import Path

import pytest
from tests.processes import ran

RESULTS = ("data/01_raw/scenes/a.jpg", "data/03_primary/scenes/captions.parquet")
OWN = ("data/README.md", "data/01_raw/coco/a.jpg", "mlruns/README.md")
STORE = "mlruns/mlflow.db"


def present(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.is_file()}


@pytest.fixture
def used(project: Path, tmp_path: Path) -> Path:
    """A project folder after a run."""
    shutil.copy(project / "Makefile", tmp_path)
    for name in (*RESULTS, *OWN, STORE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_nothing_is_removed_where_nobody_can_be_asked(used: Path) -> None:
    done = ran(["make", "clean"], used)
    assert done.returncode != 0 and "make clean YES=1" in done.stdout
    assert present(used) == {*RESULTS, *OWN, STORE}


def test_own_data_and_the_registry_stay(used: Path) -> None:
    assert ran(["make", "clean", "YES=1"], used).returncode == 0
    assert present(used) == {*OWN, STORE}
    assert ran(["make", "clean", "YES=1", "REGISTRY=1"], used).returncode == 0
    assert present(used) == set(OWN)


def test_hashes_are_of_the_same_versions(project: Path) -> None:
    plain = (project / "constraints.txt").read_text()
    pinned = [line for line in plain.splitlines() if line and line[0] not in " #"]
    hashed = (project / "constraints-hashed.txt").read_text()
    entries = re.findall(r"^([^\s#].*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", hashed, re.M)
    assert [version for version, _ in entries] == pinned


def test_another_torch_backend_leaves_torch_alone_unhashed(project: Path, tmp_path: Path) -> None:
    for name in ("Makefile", "constraints.txt", "constraints-hashed.txt"):
        shutil.copy(project / name, tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").touch()
    target = "venv/constraints-backend.txt"
    assert ran(["make", "VENV=venv", target], tmp_path).returncode == 0
    lines = (tmp_path / target).read_text().splitlines()
    plain = {line.partition("==")[0] for line in lines if "==" in line and not line.endswith("\\")}
    assert {"torch", "torchvision"} <= plain
    assert all(re.match("torch|triton|nvidia-|cuda-", name) for name in plain), plain


@pytest.mark.parametrize(
    ("tag", "unreleased", "said"),
    [
        ("v9.9.9", "", ""),
        ("v9.9.8", "", "TAG is 'v9.9.8'"),
        ("v9.9.9", "- A line.\n", "lines under [Unreleased]"),
    ],
)
def test_a_tag_must_fit_version_and_changelog(project, tmp_path, tag, unreleased, said):
    (tmp_path / "src" / "compo_pipeline").mkdir(parents=True)
    (tmp_path / "src" / "compo_pipeline" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    log = f"# Changelog\n\n## [Unreleased]\n\n{unreleased}\n## [9.9.9]\n\n- Another line.\n"
    (tmp_path / "CHANGELOG.md").write_text(log)
    command = ["make", "-f", str(project / "Makefile"), "release-check", f"TAG={tag}"]
    done = ran(command, tmp_path)
    assert (done.returncode == 0) == (said == "") and said in done.stdout
    (tmp_path / "CHANGELOG.md").write_text(log.replace("[9.9.9]", "[9.9.0]"))
    done = ran(command, tmp_path)
    assert done.returncode != 0
