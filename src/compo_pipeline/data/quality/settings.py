"""Settings of the YAML keys `ingest` and `validation`."""

from __future__ import annotations

import re
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt

from compo_pipeline.core.records import Fact
from compo_pipeline.core.settings import Open, Share, nearest, settings
from compo_pipeline.data.images.decoding import PILLOW_LIMIT, Limits


@settings
class SentenceSettings:
    """Settings of splitting captions into sentences, and of the sentences' allowed lengths."""

    least_words: NonNegativeInt = 4
    """Least number of words. Shorter sentences are dropped."""
    most_words: NonNegativeInt = 34
    """Largest number of words. Longer sentences are dropped."""
    whole: bool = False
    """Whether a caption counts as one sentence. Otherwise its opening phrase is removed and it is
    split into sentences. In both cases, HTML entities become characters and zero-width characters
    are removed."""


@settings
class IngestSettings:
    """Settings of ingest: cleaning of captions and measurement of images."""

    sentences: SentenceSettings = field(default_factory=SentenceSettings)
    """Rules for the sentences of a caption."""
    max_pixels: Annotated[int, Field(ge=1, le=PILLOW_LIMIT)] = 50_000_000
    """Images with more pixels are not decoded. The maximum is Pillow's own limit."""
    follow_symlinks: bool = False
    """Whether images may be links to files outside the data's root."""
    journal: Path | None = None
    """SQLite file with the measurements, so that an interrupted run resumes and unchanged images
    are not measured again. Null stores none."""

    @property
    def limits(self) -> Limits:
        """Limits for images to be decoded: pixels, and links out of the root."""
        return Limits(self.max_pixels, self.follow_symlinks)


@settings
class RowRule:
    """Validation rule for one column of the measurements (`Fact`): bounds, values or pattern."""

    column: str
    """Field of `Fact` that the rule checks. `decode_error` is an empty text if there is no
    error."""
    least: int | None = None
    """Lower bound, inclusive. Null sets none."""
    most: int | None = None
    """Upper bound, inclusive. Null sets none."""
    values: tuple[bool | int | str, ...] = ()
    """Values that are allowed."""
    pattern: str = ""
    """Regular expression that must not match anywhere in the value."""
    means: str = ""
    """Description of the fault, for quarantine and Data Docs."""

    def __post_init__(self) -> None:
        """Refuse unknown columns, wrong patterns, and missing or superfluous bounds."""
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"pattern: {self.pattern!r} is no regular expression ({error})"
            ) from None
        columns = [column.name for column in fields(Fact)]
        if self.column not in columns:
            raise ValueError(
                f"unknown column '{self.column[:100]}'{nearest(self.column, columns)} "
                f"(known: {', '.join(columns)})"
            )
        bounds = self.least is not None or self.most is not None
        if bounds + bool(self.values) + bool(self.pattern) != 1:
            raise ValueError("expected least or most, or values, or a pattern, and no two of these")

    @property
    def expected(self) -> str:
        """The rule's expected values as text, such as "at least 1"."""
        if self.values:
            return " or ".join(str(value) or "nothing" for value in self.values)
        if self.pattern:
            return f"nothing like {self.pattern}"
        bounds = [f"at least {self.least}"] if self.least is not None else []
        bounds += [f"at most {self.most}"] if self.most is not None else []
        return ", ".join(bounds)


@settings
class DataValidationSettings:
    """Settings of data validation: the rules, and the tolerated share of bad records."""

    tolerated_share: Share
    """The run fails if more than this share of the records is bad, or if all of them are."""
    rules: Open[RowRule]
    """Rules by name. Quarantine lists a row under the first rule that it breaks."""
    known_words: Share | None = 0.7
    """The run fails if the language pipeline knows less than this share of the captions' words,
    because they are in another language. Null never fails."""

    def __post_init__(self) -> None:
        """Refuse two names of one rule: Great Expectations would silently drop one."""
        named: dict[RowRule, str] = {}
        for name, rule in self.rules.items():
            first = named.setdefault(replace(rule, means=""), name)
            if first != name:
                raise ValueError(f"rules.{first} and rules.{name} are the same: remove one")
