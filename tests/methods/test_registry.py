"""The registry of methods: names, labels and classes, and methods of other packages."""

from collections.abc import Callable

import pytest

from compo_pipeline.core.plugins import Registry
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


def test_a_method_of_an_installed_package(
    install: Callable[[str, str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("other_package", MODULE, registry.GROUP, "doubled = other_package:ENTRY")
    monkeypatch.setattr(registry, "METHODS", Registry(registry.GROUP, {}))
    method = registry.build("doubled", {}, {"trains": ["image"]})
    assert (method.name, method.trains) == ("doubled", {"image"})
    assert label("doubled") == "Doubled CLIP"
    with pytest.raises(SettingsError, match=r"doubled\.objective\.train: unknown key"):
        registry.build("doubled", {}, {"train": []})


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
