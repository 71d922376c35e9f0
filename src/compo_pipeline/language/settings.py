"""Settings of the spaCy pipeline that parses captions."""

from __future__ import annotations

from compo_pipeline.core.settings import settings


@settings
class LanguageSettings:
    """Settings of the spaCy pipeline that parses captions."""

    model: str = "compo_en"
    """compo_en (shipped), an installed spaCy package such as en_core_web_sm, or a folder."""
