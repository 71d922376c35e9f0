"""Where the negatives of a view come from: the JSON of `View.provenance`, alike for all methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from compo_pipeline.language.editing import Generated


@dataclass(frozen=True, slots=True)
class Origin:
    """Of one negative.

    Attributes:
        generator: the rule that made it.
        category: what the rule took hold of (a part of speech, an entity, a relation, ...).
        words: what it took out, moved or put in.
    """

    generator: str
    category: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, made: Generated) -> Origin:
        """Of what a generator made."""
        return cls(made.generator, made.category, made.words)


def provenance(language: str, negatives: Sequence[Origin | None]) -> str:
    """JSON of a view's provenance.

    Args:
        language: name and version of the language pipeline.
        negatives: parallel to `View.negatives`, None where a rule found nothing.
    """
    origins = [None if origin is None else asdict(origin) for origin in negatives]
    return json.dumps({"language": language, "negatives": origins}, ensure_ascii=False)
