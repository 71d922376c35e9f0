"""Pipelines that several tests of the language room use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spacy.language import Language


@pytest.fixture(scope="session")
def compo_en() -> Language:
    """The shipped pipeline; nothing may be added to it or taken away."""
    from compo_pipeline.language.loading import load

    return load("compo_en")
