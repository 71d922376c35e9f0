"""The registry of methods: names, labels and classes, and methods of other packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.methods import registry
from compo_pipeline.methods.registry import METHODS, MethodEntry, label, method_type


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"method: 'clik' is unknown; did you mean 'clip'"):
        method_type("clik")
    assert label("clik") == "clik" and label("clic") == "CLIC"


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


CODE = """
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


def test_a_method_of_an_installed_package(tmp_path: Path) -> None:
    (tmp_path / "other_package.py").write_text(MODULE)
    metadata = tmp_path / "other_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: other-package\nVersion: 1.0\n")
    points = f"[{registry.GROUP}]\ndoubled = other_package:ENTRY\n"
    (metadata / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found, refused = done.stdout.splitlines()
    assert found == "doubled image Doubled CLIP"
    assert "doubled.objective.train: unknown key" in refused


def test_an_entry_point_has_the_name_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "other", METHODS["clip"])
    with pytest.raises(SettingsError, match="entry point 'other' .* names a method 'clip'"):
        method_type("other")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_trains_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="trains"):
        method_type(name).objective_type(trains=())


def test_two_methods_of_one_name_are_refused() -> None:
    registry.register(METHODS["clip"])
    with pytest.raises(ValueError, match=r"named 'clip': compo_pipeline\.methods\.clip:Clip and"):
        registry.register(MethodEntry("clip", "CLIP", "other_package:Doubled"))
