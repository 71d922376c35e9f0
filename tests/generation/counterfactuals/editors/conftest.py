"""Captions to edit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from spacy.language import Language

from compo_pipeline.core.records import Parse
from compo_pipeline.generation.counterfactuals.contract import EditRequest, Role
from compo_pipeline.language.parsing import parse


@pytest.fixture(scope="session")
def parsed(compo_en: Language) -> Callable[[str], Parse]:
    """The shipped pipeline's parse of a caption."""

    @cache
    def make(text: str) -> Parse:
        (found,) = parse(compo_en, [("id", 0, text)])
        return found

    return make


@pytest.fixture
def bare_request() -> Callable[..., EditRequest]:
    """A request whose parse has a text and nothing else: enough for all that asks a model."""

    def make(caption: str, role: Role = "negative", sample_id: str = "id") -> EditRequest:
        return EditRequest(
            sample_id, 0, role, caption, Parse(sample_id, 0, caption, (), (), (), (), ())
        )

    return make
