"""The registry of methods: names, labels and classes, and methods of other packages."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.methods import registry
from compo_pipeline.methods.registry import METHODS, MethodEntry, label, method_type


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"method: 'clik' is unknown; did you mean 'clip'"):
        method_type("clik")
    assert label("clik") == "clik" and label("clic") == "CLIC"


Run = subprocess.CompletedProcess[str]
MODULE = """
from compo_pipeline.methods.clip import Clip
from compo_pipeline.methods.contract import Term
from compo_pipeline.methods.registry import MethodEntry


class Doubled(Clip):
    name = "doubled"

    def loss(self, encoder, batch):
        (own,) = super().loss(encoder, batch).values()
        return {"doubled": Term(2 * own.value, own.weight)}


ENTRY = MethodEntry("doubled", "Doubled CLIP", "other_package:Doubled")
"""


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[str], Run]:
    """Runs code where a package with a method is installed, under a name of its entry point."""

    def run(code: str, name: str = "doubled") -> Run:
        (tmp_path / "other_package.py").write_text(MODULE)
        metadata = tmp_path / "other_package-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text("Name: other-package\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(
            f"[{registry.GROUP}]\n{name} = other_package:ENTRY\n"
        )
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_method_of_an_installed_package(installed: Callable[[str], Run]) -> None:
    done = installed(
        """
import other_package
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.methods.registry import build, label
method = build("doubled", {}, {"trains": ["image"]})
print(method.name, *method.trains, label("doubled"))
try:
    build("doubled", {}, {"train": []})
except SettingsError as error:
    print(error)
"""
    )
    assert done.returncode == 0, done.stderr
    found, refused = done.stdout.splitlines()
    assert found == "doubled image Doubled CLIP"
    assert "doubled.objective.train: unknown key" in refused


def test_an_entry_point_has_the_name_of_its_method(installed: Callable[..., Run]) -> None:
    done = installed(
        "from compo_pipeline.methods.registry import build; build('other', {})", "other"
    )
    assert "method: the entry point 'other'" in done.stderr
    assert "names a method 'doubled'" in done.stderr


def test_two_methods_of_one_name_are_refused() -> None:
    registry.register(METHODS["clip"])
    with pytest.raises(ValueError, match=r"named 'clip': compo_pipeline\.methods\.clip:Clip and"):
        registry.register(MethodEntry("clip", "CLIP", "other_package:Doubled"))
