"""Settings of the parser of captions, a spaCy pipeline."""

from __future__ import annotations

from compo_pipeline.core.settings import settings


@settings
class LanguageSettings:
    """Settings of the parser of captions, a spaCy pipeline."""

    model: str = "compo_en"
    """compo_en (shipped), an installed spaCy package such as en_core_web_sm, or a folder."""
