"""Whether a challenger may take a champion's place: pure functions of score tables.

Figures are per cent, differences in points, paired on the same items. A figure that cannot be
judged (not scored, too few items, numbers that are none) counts as failed; contamination is judged
where somebody has looked, and the others are named.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, Row, compare
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.records import PER_CLASS, Score

CHALLENGER, OPPONENT = "challenger", "opponent"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a figure must do; every figure that the pattern matches must do it.

    Attributes:
        figure: `benchmark/metric/name`, as MLflow names it below `test/`; `*` stands for any text.
        must: `rise` asks that the 95% interval of the difference lies above `by`, `hold` that it
            does not reach below `-by`.
        by: points.
    """

    figure: str
    must: Literal["rise", "hold"]
    by: float = 0.0

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if not (math.isfinite(self.by) and self.by >= 0):
            raise ValueError(f"by: expected points of at least 0, got {self.by}")


@dataclass(frozen=True, slots=True)
class Contamination:
    """The largest share of a subtask's images and captions that training may have held.

    Attributes:
        images: with the same bytes, or alike where perceptual hashes were compared; null: any.
        captions: with the same words; null: any.
    """

    images: float | None = 0.0
    captions: float | None = None

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        for name, value in asdict(self).items():
            _share(name, value)


@dataclass(frozen=True, slots=True)
class Gate:
    """The YAML key `promotion.gate`.

    Attributes:
        version: a number of your own for these rules.
        rules: by name.
        items: the least number of scored items, and of their images, behind a judged figure.
        skipped: the largest share of a figure's items that could not be scored.
        contamination: limits, judged where the check has run.
    """

    version: int
    rules: Mapping[str, Rule]
    items: int = 100
    skipped: float = 0.0
    contamination: Contamination = field(default_factory=Contamination)

    def __post_init__(self) -> None:
        """A gate without rules would let anything through."""
        if not self.rules:
            raise ValueError("rules: expected at least one rule, got none")
        if self.items < 1:
            raise ValueError(f"items: expected at least 1, got {self.items}")
        _share("skipped", self.skipped)

    def identity(self, bootstrap: Bootstrap) -> str:
        """The version and a digest of all that decides, so that no edit goes unseen."""
        asked = json.dumps([asdict(self), asdict(bootstrap)], sort_keys=True).encode()
        return f"{self.version}-{hashlib.sha256(asked).hexdigest()[:8]}"


def _share(name: str, value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a share between 0 and 1, got {value}")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A figure under both models, and the difference with its interval."""

    items: int
    skipped: int
    opponent: float
    challenger: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Check:
    """What one rule made of one figure (or of the tables as a whole, then without numbers).

    `key` is the YAML key of the limit that decided, empty where none did; `enough` is the value of
    it that would let a failed figure pass, where there is one.
    """

    rule: str
    subject: str
    passed: bool
    finding: str
    numbers: Numbers | None = None
    key: str = ""
    enough: float | None = None


def judge(
    challenger: Iterable[Score],
    opponent: Iterable[Score],
    overlaps: Sequence[Overlap],
    gate: Gate,
    bootstrap: Bootstrap,
    titles: Mapping[str, str] | None = None,
) -> tuple[Check, ...]:
    """Hold a challenger's scores against its opponent's; it passes where all checks do.

    Args:
        challenger: its scores, of one model.
        opponent: the champion's or the base's, of the same items.
        overlaps: what the challenger's training shares with the subtasks, as far as somebody has
            looked.
        gate: what is asked.
        bootstrap: of the intervals.
        titles: of benchmarks that are not the official ones.
    """
    tables = {
        name: [replace(score, model=name) for score in scores]
        for name, scores in ((CHALLENGER, challenger), (OPPONENT, opponent))
    }
    unsound = [check for name, scores in tables.items() for check in _unsound(name, scores)]
    if unsound:
        return tuple(unsound)
    both = [score for scores in tables.values() for score in scores]
    try:
        rows = compare([both], {BASE: OPPONENT, FINE_TUNED: CHALLENGER}, bootstrap, {}, titles)
    except ValueError as error:
        return (Check("same items", "scores", False, str(error)),)
    checks = [
        check for name, rule in gate.rules.items() for check in _figures(name, rule, rows, gate)
    ]
    asked = {
        (score.benchmark, score.subtask)
        for score in tables[CHALLENGER]
        if score.metric != PER_CLASS
    }
    return (*checks, *_contamination(asked, overlaps, gate.contamination))


def _place(score: Score) -> tuple[str, str, str, str]:
    return score.benchmark, score.metric, score.subtask, score.item


def _unsound(name: str, scores: Sequence[Score]) -> Iterator[Check]:
    """Why a table is no basis for a decision."""
    if not scores:
        yield Check("scores", name, False, "there are none")
    # A model without numbers has every item wrong: anything would look better beside it.
    nan = sum(any(math.isnan(value) for value in score.similarities) for score in scores)
    if nan:
        yield Check("scores", name, False, f"{nan} items have a similarity that is not a number")
    twice = sum(count > 1 for count in Counter(map(_place, scores)).values())
    if twice:
        yield Check("scores", name, False, f"{twice} items stand there more than once")


def _figures(name: str, rule: Rule, rows: Iterable[Row], gate: Gate) -> Iterator[Check]:
    matched = [
        row for row in rows if fnmatchcase(f"{row.benchmark}/{row.metric}/{row.name}", rule.figure)
    ]
    if not matched:
        finding = (
            "was not scored; switch it on below the key benchmarks, or set "
            f"promotion.gate.rules.{name} to null"
        )
        yield Check(name, rule.figure, False, finding)
    for row in matched:
        yield _figure(name, rule, row, gate)


def _figure(name: str, rule: Rule, row: Row, gate: Gate) -> Check:
    difference = row.vs_base
    numbers = Numbers(
        items=row.items,
        skipped=row.skipped,
        opponent=row.base.value,
        challenger=row.fine_tuned.value,
        difference=difference.value,
        low=difference.low,
        high=difference.high,
    )
    # Intervals are drawn over images: many items of few images would look certain.
    if min(row.items, row.images) < gate.items:
        finding = f"{row.items} items of {row.images} images, {gate.items} of each are needed"
        return Check(name, row.label, False, finding, numbers, "promotion.gate.items")
    # Items are there: the check before has seen to it.
    if row.skipped / (row.items + row.skipped) > gate.skipped:
        finding = f"{row.skipped} items could not be scored, at most {gate.skipped:.2%} may be"
        return Check(name, row.label, False, finding, numbers, "promotion.gate.skipped")
    if not all(math.isfinite(value) for value in asdict(numbers).values()):
        return Check(name, row.label, False, "a number is missing", numbers)
    enough = None
    if rule.must == "rise":
        passed, wanted = difference.low > rule.by, f"above {rule.by:g}"
    else:
        passed, wanted = difference.low >= -rule.by, f"at least {0 - rule.by:g}"
        enough = math.ceil(-10 * difference.low) / 10
    finding = f"lower end {wanted} is asked"
    key = f"promotion.gate.rules.{name}.by"
    return Check(name, row.label, passed, finding, numbers, key, None if passed else enough)


def _contamination(
    asked: Set[tuple[str, str]], overlaps: Iterable[Overlap], limits: Contamination
) -> Iterator[Check]:
    """A check for each subtask above a limit, and one for all those that are not."""
    known = {
        f"{each.benchmark} {each.subtask}": each
        for each in overlaps
        if (each.benchmark, each.subtask) in asked
    }
    unseen = sorted({" ".join(place) for place in asked} - known.keys())
    if unseen:
        finding = "nobody has looked whether these were trained on"
        yield Check("contamination", ", ".join(unseen), True, finding)
    clean: Counter[tuple[str, float]] = Counter()
    for subject, each in sorted(known.items()):
        for what, found, of, limit in (
            ("images", each.known_images, each.images, limits.images),
            ("captions", each.same_caption, each.captions, limits.captions),
        ):
            if limit is None or not of:
                continue
            if found / of <= limit:
                clean[what, limit] += 1
                continue
            finding = f"{found} of {of} were trained on, at most {limit:.2%} may be"
            key = f"promotion.gate.contamination.{what}"
            yield Check(f"contamination by {what}", subject, False, finding, key=key)
    for (what, limit), count in clean.items():
        finding = f"of none more than {limit:.2%} was trained on"
        yield Check(f"contamination by {what}", f"{count} subtasks", True, finding)
