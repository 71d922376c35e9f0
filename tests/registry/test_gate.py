"""The gate on small tables: what passes, each reason to refuse, and what must hold for any."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.registry.gate import Check, fingerprint, judge
from compo_pipeline.registry.settings import Contamination, Gate, GateRule

RISE = GateRule("rise", figure="sugar_crepe_pp/itt/swap_att")
HOLD = GateRule("hold", figure="retrieval/*/raw", by=10)
GATE = Gate(version=1, rules={"itt": RISE, "retrieval": HOLD}, items=20)
ITEMS = 40
ANY = {"rules": {"x": {"figure": "a", "must": "rise"}}}


def scores(
    itt: Sequence[bool | None], retrieval: Sequence[bool | None] = (True,) * ITEMS
) -> list[Score]:
    found = []
    for benchmark, metric, subtask, verdicts in (
        ("sugar_crepe_pp", "itt", "swap_att", itt),
        ("retrieval", "i2t_r5", "raw", retrieval),
    ):
        for item, right in enumerate(verdicts):
            reason = "missing" if right is None else None
            values = () if right is None else (0.5, 0.1)
            where = (benchmark, subtask, metric, str(item), f"{item}.png")
            found.append(Score("m", *where, values, right, reason))
    return found


def right(count: int) -> list[bool]:
    return [item < count for item in range(ITEMS)]


def failed(checks: Iterable[Check]) -> dict[str, str]:
    return {check.rule: check.finding for check in checks if not check.passed}


# Nothing of the items is in the training data.
CLEAN = (
    Overlap("sugar_crepe_pp", "swap_att", 40, 0, 0, 40, 0),
    Overlap("retrieval", "raw", 40, 0, 0, 40, 0),
)


def judged(
    challenger: list[Score], opponent: list[Score], overlaps: Sequence[Overlap] = CLEAN, **gate: Any
) -> dict[str, str]:
    return failed(judge(challenger, opponent, overlaps, replace(GATE, **gate)))


def test_a_better_challenger_passes_with_its_numbers() -> None:
    checks = judge(scores(right(36)), scores(right(20)), CLEAN, GATE)
    assert failed(checks) == {}
    itt = next(check.numbers for check in checks if check.rule == "itt")
    assert (itt.items, itt.opponent, itt.challenger, itt.difference) == (40, 50, 90, 40)
    assert 0 < itt.low <= 40 <= itt.high


def test_no_rise_that_could_be_chance() -> None:
    assert set(judged(scores(right(21)), scores(right(20)))) == {"itt"}
    assert set(judged(scores(right(20)), scores(right(20)))) == {"itt"}


def test_a_fall_beyond_the_tolerance() -> None:
    fallen = scores(right(36), right(30))
    assert set(judged(fallen, scores(right(20)))) == {"retrieval"}
    # The value alone falls by 5, the interval reaches further.
    assert set(judged(scores(right(36), right(38)), scores(right(20)))) == {"retrieval"}
    loose = {"itt": RISE, "retrieval": replace(HOLD, by=50)}
    assert judged(fallen, scores(right(20)), rules=loose) == {}


def test_the_limits_themselves() -> None:
    """A rise is above its limit, a fall may be its limit; a check says the limit that it passes."""

    def rise_and_fall(rise: float, fall: float) -> list[Check]:
        rules = {"itt": replace(RISE, by=rise), "retrieval": replace(HOLD, by=fall)}
        challenger, opponent = scores(right(36), right(30)), scores(right(20))
        checks = judge(challenger, opponent, CLEAN, replace(GATE, rules=rules))
        return [check for check in checks if check.numbers]

    risen, fallen = (check.numbers for check in rise_and_fall(0, 50))
    assert risen is not None and fallen is not None and risen.low > 0 > fallen.low
    assert [check.passed for check in rise_and_fall(risen.low, -fallen.low)] == [False, True]
    enough = [check.enough for check in rise_and_fall(0, 1)]
    assert enough[0] is None and enough[1] is not None
    assert enough[1] == pytest.approx(-fallen.low, abs=0.1)
    assert rise_and_fall(0, enough[1])[1].passed


def test_a_figure_that_was_not_scored() -> None:
    rules = {**GATE.rules, "zero-shot": GateRule("hold", figure="zero_shot/top1/*", by=3)}
    found = judged(scores(right(36)), scores(right(20)), rules=rules)
    assert "was not scored" in found["zero-shot"] and len(found) == 1


def test_too_few_items_and_skipped_ones_are_none() -> None:
    most = [None] * 30 + [True] * 10
    less = [None] * 30 + [False] * 10
    assert judged(scores(most), scores(less))["itt"].startswith("10 items of 10 images, 20 of")


def test_many_items_of_few_images_are_few() -> None:
    few = [
        [replace(score, group=f"{int(score.item) % 10}.png") for score in scores(right(count))]
        for count in (36, 20)
    ]
    assert "40 items of 10 images" in judged(*few)["itt"]


def test_skipped_items_refuse_beyond_a_limit() -> None:
    most, less = [None, *right(36)[1:]], [None, *right(20)[1:]]
    assert "1 items could not be scored" in judged(scores(most), scores(less))["itt"]
    assert judged(scores(most), scores(less), skipped=1 / ITEMS) == {}


def test_tables_of_other_items() -> None:
    shorter = scores(right(36)[:-1])
    assert "39" in judged(shorter, scores(right(20)))["same items"]
    assert set(judged(scores(right(36)), scores(right(20), ()))) == {"same items"}


def test_nan_scores_of_either_model_refuse() -> None:
    good, bad = scores(right(36)), scores(right(20))
    spoilt = [replace(bad[0], similarities=(float("nan"), 0.1)), *bad[1:]]
    assert "1 items" in judged(good, spoilt)["scores"]
    assert "1 items" in judged(spoilt, bad)["scores"]
    # Minus infinity is a valid similarity.
    assert judged([replace(good[0], similarities=(0.5, float("-inf"))), *good[1:]], bad) == {}


def test_no_scores_or_scores_twice() -> None:
    good, bad = scores(right(36)), scores(right(20))
    assert judged(good, []) == {"scores": "there are none"}
    assert judged([], bad) == {"scores": "there are none"}
    assert "1 items" in judged([*good, good[0]], bad)["scores"]


def test_measured_contamination_is_judged() -> None:
    found = Overlap("sugar_crepe_pp", "swap_att", 40, 1, 0, 80, 8)
    good, bad = scores(right(36)), scores(right(20))
    assert judged(good, bad) == {}
    assert set(judged(good, bad, [found, CLEAN[1]])) == {"contamination by images"}
    captions = Contamination(images=0.025, captions=0.09)
    assert set(judged(good, bad, [found, CLEAN[1]], contamination=captions)) == {
        "contamination by captions"
    }
    assert judged(good, bad, [found, CLEAN[1]], contamination=Contamination(0.025, 0.1)) == {}
    # A share that is the limit: 0.29 * 100 is less than 29.
    third = replace(found, images=100, same_bytes=29)
    assert judged(good, bad, [third, CLEAN[1]], contamination=Contamination(0.29)) == {}
    # Of a subtask that was not scored.
    assert judged(good, bad, [replace(found, subtask="swap_obj"), *CLEAN]) == {}


@pytest.mark.parametrize("measured", [(), CLEAN[1:]])
def test_contamination_that_was_not_measured_refuses(measured: Sequence[Overlap]) -> None:
    good, bad = scores(right(36)), scores(right(20))
    checks = judge(good, bad, measured, GATE)
    (failure,) = [check for check in checks if not check.passed]
    assert failure.rule == "contamination" and "sugar_crepe_pp swap_att" in failure.subject
    assert ("retrieval raw" in failure.subject) == (not measured)
    assert "kedro run --pipeline=rescore" in failure.finding
    # Of captions alone, it is needed too.
    captions = Contamination(images=None, captions=0.1)
    assert set(judged(good, bad, measured, contamination=captions)) == {"contamination"}
    assert judged(good, bad, measured, contamination=Contamination(None, None)) == {}


def test_parts_of_a_set_need_no_contamination_check_of_their_own() -> None:
    """Scores of a class are those of its set's own images, once more."""
    classes = [
        replace(score, benchmark="zero_shot", subtask="things/cup", metric="per_class")
        for score in scores(right(36))[:ITEMS]
    ]
    tables = [[*scores(right(count)), *classes] for count in (36, 20)]
    looked = [
        Overlap(*place, 40, 0, 0, 80, 0)
        for place in (("retrieval", "raw"), ("sugar_crepe_pp", "swap_att"), ("zero_shot", "things"))
    ]
    rules = [check.rule for check in judge(*tables, looked, GATE)]
    assert "contamination by images" in rules and "contamination" not in rules


def test_an_edited_gate_is_another_one() -> None:
    edited = replace(GATE, rules={**GATE.rules, "retrieval": replace(HOLD, by=11)})
    known = fingerprint(GATE)
    assert known.startswith("1-")
    assert fingerprint(edited) != known == fingerprint(replace(GATE))


HOLDS = {"figure": "a", "must": "hold"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rules": {}}, r"gate\.rules: "),
        ({"rules": {"x": {**HOLDS, "by": -1}}}, r"rules\.x\.by: .*-1"),
        ({"rules": {"x": {**HOLDS, "by": float("nan")}}}, r"rules\.x\.by: .*nan"),
        ({"rules": {"x": {"must": "rise"}}}, r"x\.role: expected one of role and figure, got none"),
        ({"rules": {"x": {**HOLDS, "role": "retrieval"}}}, "got both"),
        (
            {"rules": {"x": {"must": "hold", "role": "retrieval", "slice": "length=*"}}},
            "slice: expected null",
        ),
        ({**ANY, "items": 0}, r"gate\.items: .*0"),
        ({**ANY, "contamination": {"images": 5}}, r"contamination\.images: .*5"),
    ],
)
def test_mistaken_gates_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(Gate, {"version": 1, **values}, "promotion.gate")


verdicts = st.lists(st.booleans(), min_size=ITEMS, max_size=ITEMS)


@settings(max_examples=15)
@given(verdicts, verdicts, st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(ours: list[bool], theirs: list[bool], draw: Any) -> None:
    tables = scores(ours), scores(theirs)
    shuffled = [draw.sample(table, len(table)) for table in tables]
    assert judge(*tables, CLEAN, GATE) == judge(*shuffled, CLEAN, GATE)


@settings(max_examples=15)
@given(verdicts, verdicts, st.integers(0, ITEMS - 1))
def test_one_more_right_item_never_fails_a_challenger(
    ours: list[bool], theirs: list[bool], item: int
) -> None:
    better = [*ours[:item], True, *ours[item + 1 :]]
    before = judged(scores(ours), scores(theirs))
    assert set(judged(scores(better), scores(theirs))) <= set(before)


@settings(max_examples=15)
@given(verdicts, verdicts)
def test_never_both_ways(ours: list[bool], theirs: list[bool]) -> None:
    assert judged(scores(ours), scores(theirs)) or judged(scores(theirs), scores(ours))


@settings(max_examples=15)
@given(verdicts)
def test_no_model_rises_above_itself(ours: list[bool]) -> None:
    assert set(judged(scores(ours), scores(ours))) == {"itt"}


def test_a_rule_of_slices_judges_each_slice_and_no_other_rule_does() -> None:
    tables = scores(right(36)), scores([item >= 20 for item in range(ITEMS)])
    slices = {
        ("sugar_crepe_pp", "swap_att", str(item)): ("length=low" if item < 20 else "length=high",)
        for item in range(ITEMS)
    }
    held = GateRule("hold", figure="sugar_crepe_pp/itt/swap_att", by=5, slice="length=*")
    gate = replace(GATE, rules={"slices": held, "itt": replace(RISE, must="hold", by=90)})
    checks = [check for check in judge(*tables, CLEAN, gate, slices=slices) if check.numbers]
    assert [(check.rule, check.passed) for check in checks] == [
        ("slices", False),
        ("slices", True),
        ("itt", True),
    ]
    assert "length=high" in checks[0].subject
    # Without the slices the rule has nothing to judge, which fails it.
    assert "length=*" in failed(judge(*tables, CLEAN, gate))["slices"]
