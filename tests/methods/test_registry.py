"""The methods by name."""

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.method_names import LABELS
from compo_pipeline.method_names import METHODS as OFFERED
from compo_pipeline.methods import METHODS, method_type


def test_a_name_gives_its_method() -> None:
    assert {name: method_type(name).name for name in METHODS} == {name: name for name in METHODS}


def test_an_unknown_method_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"'klic' is unknown; did you mean 'clic'\?"):
        method_type("klic")


def test_every_method_is_written_as_its_paper_writes_it() -> None:
    assert set(LABELS) == set(METHODS)


def test_pipelines_offer_every_method() -> None:
    """They list the names themselves: importing the methods would import torch."""
    assert tuple(METHODS) == OFFERED
