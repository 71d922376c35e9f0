"""The registry of methods: names, labels and classes, and methods of other packages."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.methods import registry
from compo_pipeline.methods.registry import METHODS, MethodEntry, build, label, method_type


def test_every_class_has_its_name_and_its_settings(project: Path) -> None:
    for name, entry in METHODS.items():
        assert entry.name == method_type(name).name == name
        assert (project / "conf" / "base" / "parameters_methods" / f"{name}.yml").is_file()


def test_the_registry_loads_no_torch() -> None:
    code = "import sys, compo_pipeline.methods.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


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


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """An installed package with a method, as its metadata names it."""
    (tmp_path / "other_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "METHODS", dict(METHODS))
    return EntryPoint("doubled", "other_package:ENTRY", registry.ENTRY_POINTS)


def test_a_method_of_another_package(other_package: EntryPoint) -> None:
    registry.register(other_package.load())
    method = build("doubled", {}, {"trains": ["image"]})
    assert (method.name, method.trains, label("doubled")) == ("doubled", {"image"}, "Doubled CLIP")
    with pytest.raises(SettingsError, match=r"doubled\.objective\.train: unknown key"):
        build("doubled", {}, {"train": []})


def test_two_methods_of_one_name_are_refused(other_package: EntryPoint) -> None:
    registry.register(METHODS["clip"])
    with pytest.raises(ValueError, match=r"named 'clip': compo_pipeline\.methods\.clip:Clip and"):
        registry.register(MethodEntry("clip", "CLIP", "other_package:Doubled"))
