"""Gate: whether a challenger may replace a champion, as pure functions of score tables.

Figures are per cent, differences in points, paired on the same items. A figure that cannot be
judged (not scored, too few items, NaN) fails, and so does a role without a scored set, unless it is
waived, and a subtask whose contamination was not measured, unless it has no limit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from compo_pipeline.benchmarks.items import Role, set_of
from compo_pipeline.core.records import Score
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import LEVEL, Row, compare, compare_slices, renamed
from compo_pipeline.evaluation.metrics import KEY
from compo_pipeline.evaluation.roles import (
    ROLE_LABELS,
    ROLES,
    RoleRows,
    benchmark_names,
    compare_roles,
)
from compo_pipeline.registry.settings import Contamination, Gate, GateRule

if TYPE_CHECKING:
    from compo_pipeline.evaluation.contamination import Overlap
    from compo_pipeline.evaluation.slices import ItemSlices

CHALLENGER, OPPONENT = "challenger", "opponent"
ITEMS = "promotion.gate.items"
"""Key of the least number of items of a metric."""


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """A metric of challenger and opponent, and their difference with its confidence interval."""

    items: int
    skipped: int
    opponent: float
    challenger: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one gate rule for one metric or, without numbers, for the score tables as a whole.

    `key` is the YAML key of the limit, empty if there is none; `enough` is the value of that limit
    nearest to it with which a failed figure would pass (of `ITEMS`: would be judged), if there is
    one. `absent` is a role of which
    nothing was scored; if the check passed, it is waived.
    """

    rule: str
    subject: str
    passed: bool
    finding: str
    numbers: ComparedMetric | None = None
    key: str = ""
    enough: float | None = None
    absent: Role | None = None

    @property
    def waived(self) -> Role | None:
        """The benchmark role (such as retrieval) that is missing but waived, or None if none is."""
        return self.absent if self.passed else None


def judge(
    challenger: Iterable[Score],
    opponent: Iterable[Score],
    overlaps: Sequence[Overlap],
    gate: Gate,
    titles: Mapping[str, str] | None = None,
    slices: ItemSlices = MappingProxyType({}),
    waive: Collection[Role] = (),
) -> tuple[Check, ...]:
    """Check a challenger's scores against its opponent's by the gate's rules.

    Returns every check.

    Args:
        challenger: scores of the challenger.
        opponent: the champion's or the base's, of the same items.
        overlaps: measured contamination of the subtasks by the challenger's training data.
        gate: the rules.
        titles: titles of benchmarks whose files are not the official ones.
        slices: slices of the items, for rules that name some.
        waive: roles that need not be scored.
    """
    tables = {
        name: renamed(scores, name)
        for name, scores in ((CHALLENGER, challenger), (OPPONENT, opponent))
    }
    invalid = [check for name, scores in tables.items() for check in _invalid_scores(name, scores)]
    if invalid:
        return tuple(invalid)
    both = Table.joined([*tables.values()])
    try:
        models = {name: name for name in (OPPONENT, CHALLENGER)}
        pairs = [(CHALLENGER, OPPONENT)]
        rows = compare([both], models, pairs, {}, titles)
        rows += compare_slices([both], models, pairs, slices, 1, titles)
        roles = compare_roles([both], models, pairs, titles)
    except ValueError as error:
        return (Check("same items", "scores", False, str(error)),)
    absent = {rule.role for rule in gate.rules.values() if rule.role is not None} - roles.keys()
    figures: list[Check] = []
    for name, rule in gate.rules.items():
        if rule.role is None:
            figures += _metric_checks(name, rule, rows, gate)
        elif rule.role in roles:
            figures += _role_checks(name, rule, roles[rule.role], gate)
        else:
            figures.append(_absent_role_check(name, rule.role, waive, absent))
    scored = tables[CHALLENGER].to_arrow().group_by(["benchmark", "subtask"]).aggregate([])
    subtasks = {(row["benchmark"], set_of(row["subtask"])) for row in scored.to_pylist()}
    return (*figures, *_contamination_checks(subtasks, overlaps, gate.contamination))


def fingerprint(gate: Gate, waive: Collection[Role] = ()) -> str:
    """The gate's version number and a hash of all settings that affect its decision."""
    content = json.dumps({**asdict(gate), "waive": sorted(waive)}, sort_keys=True).encode()
    return f"{gate.version}-{hashlib.sha256(content).hexdigest()[:8]}"


def _invalid_scores(name: str, scores: Table[Score]) -> Iterator[Check]:
    """Yield a failed check for score rows that are missing, repeated or NaN."""
    if not scores:
        yield Check("scores", name, False, "there are none")
    # A model with NaN scores has every item wrong: any other model would look better.
    rows = scores.to_arrow().combine_chunks()
    owners = pc.list_parent_indices(rows["similarities"])
    nan = pc.count_distinct(owners.filter(pc.is_nan(pc.list_flatten(rows["similarities"])))).as_py()
    if nan:
        yield Check("scores", name, False, f"{nan} items have a similarity that is not a number")
    counts = rows.group_by([*KEY, "item"]).aggregate([([], "count_all")])["count_all"]
    repeated = pc.sum(pc.greater(counts, 1)).as_py()
    if repeated:
        yield Check("scores", name, False, f"{repeated} items occur more than once")


def _role_checks(name: str, rule: GateRule, found: RoleRows, gate: Gate) -> Iterator[Check]:
    """Yield the checks of a rule about a benchmark role (such as retrieval), by set or by mean."""
    for label in found.unscored:
        yield Check(name, label, False, "a part of it has no item that could be scored")
    if rule.must == "hold":
        for row in found.sets:
            yield _metric_check(name, rule, row, gate)
    elif len(found.sets) == 1 and not found.unscored:
        yield _metric_check(name, rule, found.sets[0], gate)
    else:
        if found.mean is not None:
            label = f"{found.mean.label}, mean of {len(found.sets)} sets"
            yield _metric_check(name, rule, replace(found.mean, label=label), gate)
        for row in found.sets:
            yield _no_fall_check(name, row, len(found.sets), gate)


def _absent_role_check(name: str, role: Role, waive: Collection[Role], absent: Set[Role]) -> Check:
    """The check of a rule whose benchmark role has no scores.

    It passes only if waived.
    """
    subject = ROLE_LABELS[role]
    if role in waive:
        finding = "no set of it was scored, which promotion.waive allows"
        return Check(name, subject, True, finding, absent=role)
    roles = ", ".join(each for each in ROLES if each in {*waive, *absent})
    finding = (
        f"no set of it was scored; these would do: {', '.join(benchmark_names(role))}. "
        "`compo-pipeline benchmarks` lists the downloads; the key "
        f"`promotion.waive: [{roles}]` waives what is absent"
    )
    return Check(name, subject, False, finding, absent=role)


def _metric_checks(name: str, rule: GateRule, rows: Iterable[Row], gate: Gate) -> Iterator[Check]:
    """Yield the checks of a rule whose pattern matches metrics.

    Matching none is a failed check.
    """
    assert rule.figure is not None
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
        yield _metric_check(name, rule, row, gate)


def _metric_check(name: str, rule: GateRule, row: Row, gate: Gate) -> Check:
    """The check whether the difference of a metric between two models satisfies a gate rule."""
    if (unfit := _unfit_check(name, row, gate)) is not None:
        return unfit
    difference, enough = row.difference, None
    if rule.must == "rise":
        passed, wanted = difference.low > rule.by, f"above {rule.by:g}"
    else:
        passed, wanted = difference.low >= -rule.by, f"at least {0 - rule.by:g}"
        enough = math.ceil(-10 * difference.low) / 10
    finding = f"lower end of the interval must be {wanted}"
    key = f"promotion.gate.rules.{name}.by"
    numbers, enough = _compared_metric(row), None if passed else enough
    return Check(name, _metric_label(row), passed, finding, numbers, key, enough)


def _no_fall_check(name: str, row: Row, sets: int, gate: Gate) -> Check:
    """The check that a benchmark set does not fall significantly, by Bonferroni's limit.

    Bonferroni's limit: of a model that is worse in no set, at most 5% are refused.
    """
    if (unfit := _unfit_check(name, row, gate)) is not None:
        return unfit
    limit = LEVEL / sets
    passed = row.difference.value >= 0 or row.difference.p >= limit
    finding = f"p of a fall must be at least {limit:.2g} (5% over {sets} sets)"
    if not passed:
        finding += f" and is {row.difference.p:.2g}"
    return Check(name, _metric_label(row), passed, finding, _compared_metric(row))


def _unfit_check(name: str, row: Row, gate: Gate) -> Check | None:
    """The failed check of a metric with too few items, too many skipped or NaN, or None."""
    subject, numbers = _metric_label(row), _compared_metric(row)
    # Of few images the interval of a mean is only approximate.
    if min(row.items, row.images) < gate.items:
        finding = f"{row.items} items of {row.images} images, {gate.items} of each are needed"
        fewest = min(row.items, row.images)
        return Check(name, subject, False, finding, numbers, ITEMS, fewest)
    # The check before excludes a division by zero.
    if row.skipped / (row.items + row.skipped) > gate.skipped:
        finding = f"{row.skipped} items could not be scored, at most {gate.skipped:.2%} may be"
        return Check(name, subject, False, finding, numbers, "promotion.gate.skipped")
    if not all(math.isfinite(value) for value in asdict(numbers).values()):
        return Check(name, subject, False, "a number is missing", numbers)
    return None


def _metric_label(row: Row) -> str:
    """Label of a metric with its slice, as the gate's checks show it."""
    return f"{row.label}, {row.slice}" if row.slice else row.label


def _compared_metric(row: Row) -> ComparedMetric:
    """Item counts, both models' values and their difference with interval, of a comparison row."""
    return ComparedMetric(
        items=row.items,
        skipped=row.skipped,
        opponent=row.values[OPPONENT].value,
        challenger=row.values[CHALLENGER].value,
        difference=row.difference.value,
        low=row.difference.low,
        high=row.difference.high,
    )


def _contamination_checks(
    subtasks: Set[tuple[str, str]], overlaps: Iterable[Overlap], limits: Contamination
) -> Iterator[Check]:
    """Yield the checks of the subtasks' overlap with the training data against the limits."""
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
            ("images", each.same_bytes, each.images, limits.images),
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
