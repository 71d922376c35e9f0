"""Settings of ingest and validation (parameters_ingest.yml, parameters_validation.yml)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from compo_pipeline.configuration import nearest
from compo_pipeline.images.decoding import PILLOW_LIMIT, Limits
from compo_pipeline.records import Fact


@dataclass(frozen=True)
class SentenceSettings:
    """What becomes a sentence, and which sentences are kept.

    Args:
        least_words: shorter sentences are dropped.
        most_words: longer ones too.
        whole: a caption stays as it was written and counts as one sentence; else its opening
            phrase goes and it is split.
    """

    least_words: int = 4
    most_words: int = 34
    whole: bool = False


@dataclass(frozen=True)
class IngestSettings:
    """How captions are prepared and images measured.

    Args:
        sentences: which sentences are kept.
        max_pixels: images of more pixels are not decoded; Pillow's own limit is the highest.
        follow_symlinks: whether images may be links that lead out of the data's root.
        pool: threads, or processes where decoding must not share an interpreter.
        workers: how many; 0 for one per core that the process may use.
        journal: file that keeps what was measured, so that a run that was cut short goes on and
            unchanged images are not measured again; null for none.
        shown: examples of cleaned captions in the report.
    """

    sentences: SentenceSettings = field(default_factory=SentenceSettings)
    max_pixels: int = 50_000_000
    follow_symlinks: bool = False
    pool: Literal["threads", "processes"] = "threads"
    workers: int = 0
    journal: Path | None = None
    shown: int = 20

    def __post_init__(self) -> None:
        """Refuse a limit that cannot be kept."""
        if not 0 < self.max_pixels <= PILLOW_LIMIT:
            raise ValueError(f"max_pixels: expected 1 to {PILLOW_LIMIT}, got {self.max_pixels}")

    @property
    def limits(self) -> Limits:
        """What is accepted as an image."""
        return Limits(self.max_pixels, self.follow_symlinks)


@dataclass(frozen=True)
class Rule:
    """What a column of `facts` must hold.

    Args:
        column: a field of `Fact`; `decode_error` is read as an empty text where there is none.
        expectation: between (least, most), one_of (values), or lacks (pattern, a regular
            expression that must not be found).
        least: lower bound, included; null for none.
        most: upper bound, included; null for none.
        values: the values allowed.
        pattern: what must not be found.
        means: what a row that breaks the rule suffers from, for the people who read quarantine.
    """

    column: str
    expectation: Literal["between", "one_of", "lacks"]
    least: int | None = None
    most: int | None = None
    values: tuple[bool | int | str, ...] = ()
    pattern: str = ""
    means: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown column, missing bounds, and bounds of another expectation."""
        columns = [column.name for column in fields(Fact)]
        if self.column not in columns:
            raise ValueError(
                f"unknown column '{self.column}'{nearest(self.column, columns)} "
                f"(known: {', '.join(columns)})"
            )
        given = {
            "between": self.least is not None or self.most is not None,
            "one_of": bool(self.values),
            "lacks": bool(self.pattern),
        }
        if [name for name, present in given.items() if present] != [self.expectation]:
            raise ValueError(
                f"{self.expectation} needs its own bounds and no others: between least or most, "
                "one_of values, lacks pattern"
            )

    @property
    def expected(self) -> str:
        """The expectation in words."""
        if self.expectation == "one_of":
            return " or ".join(str(value) or "nothing" for value in self.values)
        if self.expectation == "lacks":
            return f"nothing like {self.pattern}"
        bounds = [f"at least {self.least}"] if self.least is not None else []
        bounds += [f"at most {self.most}"] if self.most is not None else []
        return ", ".join(bounds)


@dataclass(frozen=True)
class ValidationSettings:
    """The rules, and when a run fails.

    Args:
        tolerated_share: the run fails when more than this share of the records is bad, and always
            when all are.
        rules: by name; of several that a row breaks, quarantine names the first.
        shown: bad rows named per rule in results and errors.
    """

    tolerated_share: float
    rules: dict[str, Rule]
    shown: int = 20

    def __post_init__(self) -> None:
        """Refuse a share that is none, and two names of one rule."""
        if not 0 <= self.tolerated_share <= 1:
            raise ValueError(f"tolerated_share: expected 0 to 1, got {self.tolerated_share}")
        named: dict[Rule, str] = {}
        for name, rule in self.rules.items():
            first = named.setdefault(replace(rule, means=""), name)
            if first != name:
                raise ValueError(f"rules.{first} and rules.{name} are the same: take one away")
