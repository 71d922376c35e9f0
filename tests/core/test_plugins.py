"""Registries: parts are imported when they are used, and installed packages add theirs."""

from collections.abc import Callable
from pathlib import Path

import importlib_metadata  # noqa: F401  # what others import: its entry points are found then
import pytest

from compo_pipeline.benchmarks.loading import enabled_folders
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings

GROUP = "compo_pipeline.benchmarks"


@pytest.fixture
def installed(install: Callable[[str, str, str, str], None], tmp_path: Path) -> Path:
    """An installed package with one benchmark."""
    text = "import pathlib\nBENCHMARK = object()\npathlib.Path(__file__ + '.used').touch()\n"
    install("others_benchmark", text, GROUP, "theirs = others_benchmark:BENCHMARK")
    return tmp_path


def test_an_installed_package_adds_a_part_which_is_imported_when_used(installed: Path) -> None:
    found: Registry[object] = Registry(GROUP, {"own": "math:pi"})
    assert list(found) == ["own", "theirs"] and "theirs" in found
    used = installed / "others_benchmark.py.used"
    assert not used.exists()
    part = found["theirs"]
    assert used.exists() and found["theirs"] is part


def test_a_part_that_is_not_installed_yet_names_the_command(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(installed)
    points = f'[project.entry-points."{GROUP}"]\ntheirs = "a:B"\nmine = "a:C"\n'
    Path("pyproject.toml").write_text(points)
    sets = {"sets": {"mine": {"root": "folder"}}}
    with pytest.raises(SettingsError, match=r"no benchmark 'mine'; .*`pip install -e \.`"):
        enabled_folders(parse(BenchmarksSettings, sets, "benchmarks"))
    with pytest.raises(SettingsError, match=r"got 'mine'.*`pip install -e \.`"):
        parse(CounterfactualSettings, {"caption_editor": "mine"}, "counterfactuals")
    with pytest.raises(SettingsError) as error:
        parse(CounterfactualSettings, {"caption_editor": "theirs"}, "counterfactuals")
    assert "pip" not in str(error.value)


def test_two_parts_of_one_name_are_refused(installed: Path) -> None:
    with pytest.raises(ValueError, match="two are named 'theirs': math:pi and others_benchmark"):
        Registry(GROUP, {"theirs": "math:pi"})
