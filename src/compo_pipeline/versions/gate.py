"""Gate: whether a challenger may replace a champion, as pure functions of score tables.

Figures are per cent, differences in points, paired on the same items. A figure that cannot be
judged (not scored, too few items, NaN) fails, and so does a subtask whose contamination was not
measured, unless it has no limit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from compo_pipeline.benchmarks.averages import set_of
from compo_pipeline.evaluation.comparison import Row, compare, compare_slices
from compo_pipeline.storage.records import Score
from compo_pipeline.versions.settings import Contamination, Gate, GateRule

if TYPE_CHECKING:
    from compo_pipeline.evaluation.contamination import Overlap
    from compo_pipeline.evaluation.slices import ItemSlices

CHALLENGER, OPPONENT = "challenger", "opponent"


@dataclass(frozen=True, slots=True)
class Numbers:
    """A figure of both models, and the difference with its interval."""

    items: int
    skipped: int
    opponent: float
    challenger: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one rule for one figure, or (without numbers) for the tables as a whole.

    `key` is the YAML key of the limit, empty if there is none; `enough` is the smallest value of
    that limit with which a failed figure would pass, if there is one.
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
    titles: Mapping[str, str] | None = None,
    slices: ItemSlices = MappingProxyType({}),
) -> tuple[Check, ...]:
    """Compare a challenger's scores with its opponent's; it passes if all checks do.

    Args:
        challenger: its scores, of one model.
        opponent: the champion's or the base's, of the same items.
        overlaps: measured contamination of the subtasks by the challenger's training data.
        gate: the rules.
        titles: of benchmarks that are not the official ones.
        slices: of the items, for rules that name some.
    """
    tables = {
        name: [replace(score, model=name) for score in scores]
        for name, scores in ((CHALLENGER, challenger), (OPPONENT, opponent))
    }
    invalid = [check for name, scores in tables.items() for check in _invalid(name, scores)]
    if invalid:
        return tuple(invalid)
    both = [score for scores in tables.values() for score in scores]
    try:
        models = {name: name for name in (OPPONENT, CHALLENGER)}
        pairs = [(CHALLENGER, OPPONENT)]
        rows = compare([both], models, pairs, {}, titles)
        rows += compare_slices([both], models, pairs, slices, 1, titles)
    except ValueError as error:
        return (Check("same items", "scores", False, str(error)),)
    figures = [
        check for name, rule in gate.rules.items() for check in _figures(name, rule, rows, gate)
    ]
    subtasks = {(score.benchmark, set_of(score.subtask)) for score in tables[CHALLENGER]}
    return (*figures, *_contamination(subtasks, overlaps, gate.contamination))


def fingerprint(gate: Gate) -> str:
    """The gate's version and a hash of all settings that affect a decision."""
    content = json.dumps(asdict(gate), sort_keys=True).encode()
    return f"{gate.version}-{hashlib.sha256(content).hexdigest()[:8]}"


def _invalid(name: str, scores: Sequence[Score]) -> Iterator[Check]:
    """Failed checks for scores that no decision can be based on."""
    if not scores:
        yield Check("scores", name, False, "there are none")
    # A model with NaN scores has every item wrong: any other model would look better.
    nan = sum(any(math.isnan(value) for value in score.similarities) for score in scores)
    if nan:
        yield Check("scores", name, False, f"{nan} items have a similarity that is not a number")
    keys = Counter((s.benchmark, s.metric, s.subtask, s.item) for s in scores)
    repeated = sum(count > 1 for count in keys.values())
    if repeated:
        yield Check("scores", name, False, f"{repeated} items occur more than once")


def _figures(name: str, rule: GateRule, rows: Iterable[Row], gate: Gate) -> Iterator[Check]:
    matched = [
        row
        for row in rows
        if fnmatchcase(f"{row.benchmark}/{row.metric}/{row.name}", rule.figure)
        and fnmatchcase(row.slice, rule.slice or "")
    ]
    if not matched:
        missing = "was not scored; switch it on below the key benchmarks"
        if rule.slice:
            missing = (
                f"was not scored in a slice {rule.slice}; name its kind in evaluation.slices, and "
                "the figure below the key benchmarks"
            )
        finding = f"{missing}, or set promotion.gate.rules.{name} to null"
        yield Check(name, rule.figure, False, finding)
    for row in matched:
        yield _figure(name, rule, row, gate)


def _figure(name: str, rule: GateRule, row: Row, gate: Gate) -> Check:
    difference, subject = row.difference, f"{row.label}, {row.slice}" if row.slice else row.label
    numbers = Numbers(
        items=row.items,
        skipped=row.skipped,
        opponent=row.values[OPPONENT].value,
        challenger=row.values[CHALLENGER].value,
        difference=difference.value,
        low=difference.low,
        high=difference.high,
    )
    # Of few images the interval of a mean is only approximate.
    if min(row.items, row.images) < gate.items:
        finding = f"{row.items} items of {row.images} images, {gate.items} of each are needed"
        return Check(name, subject, False, finding, numbers, "promotion.gate.items")
    # The check before excludes a division by zero.
    if row.skipped / (row.items + row.skipped) > gate.skipped:
        finding = f"{row.skipped} items could not be scored, at most {gate.skipped:.2%} may be"
        return Check(name, subject, False, finding, numbers, "promotion.gate.skipped")
    if not all(math.isfinite(value) for value in asdict(numbers).values()):
        return Check(name, subject, False, "a number is missing", numbers)
    enough = None
    if rule.must == "rise":
        passed, wanted = difference.low > rule.by, f"above {rule.by:g}"
    else:
        passed, wanted = difference.low >= -rule.by, f"at least {0 - rule.by:g}"
        enough = math.ceil(-10 * difference.low) / 10
    finding = f"lower end of the interval must be {wanted}"
    key = f"promotion.gate.rules.{name}.by"
    return Check(name, subject, passed, finding, numbers, key, None if passed else enough)


def _contamination(
    subtasks: Set[tuple[str, str]], overlaps: Iterable[Overlap], limits: Contamination
) -> Iterator[Check]:
    """One check per subtask above a limit, one for all those below it, one for those unmeasured."""
    if limits.images is None and limits.captions is None:
        return
    measured = {
        f"{each.benchmark} {each.subtask}": each
        for each in overlaps
        if (each.benchmark, each.subtask) in subtasks
    }
    missing = sorted({" ".join(subtask) for subtask in subtasks} - measured.keys())
    if missing:
        finding = (
            "it was not measured what of these is in the training data; `kedro run "
            "--pipeline=rescore` measures it"
        )
        yield Check("contamination", ", ".join(missing), False, finding)
    below: Counter[tuple[str, float]] = Counter()
    for subject, each in sorted(measured.items()):
        for kind, found, total, limit in (
            ("images", each.known_images, each.images, limits.images),
            ("captions", each.same_caption, each.captions, limits.captions),
        ):
            if limit is None or not total:
                continue
            if found / total <= limit:
                below[kind, limit] += 1
                continue
            finding = f"{found} of {total} are in the training data, at most {limit:.2%} may be"
            key = f"promotion.gate.contamination.{kind}"
            yield Check(f"contamination by {kind}", subject, False, finding, key=key)
    for (kind, limit), count in below.items():
        finding = f"at most {limit:.2%} of each is in the training data"
        yield Check(f"contamination by {kind}", f"{count} subtasks", True, finding)
