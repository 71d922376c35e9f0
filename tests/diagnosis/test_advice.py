"""Advice from what rules would ask."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.diagnosis.advice import MOST_TIMES, TrainingRun, advise
from compo_pipeline.diagnosis.negatives import AskedChanges
from compo_pipeline.diagnosis.options import RuleSetting
from compo_pipeline.diagnosis.weaknesses import KindResult
from compo_pipeline.evaluation.comparison import Estimate
from compo_pipeline.language.changes import Change

ASKED = AskedChanges(100, 80, {"swapped_attributes": 40}, {})
RUN = TrainingRun("plain", 10, lambda: ASKED, frozen=("token_embedding",))


def weak(*kinds: Change, base: float = 70.0) -> list[KindResult]:
    """Kinds of this accuracy of the base, which the model corrects by nothing."""
    found = Estimate(base, base - 5, base + 5)
    return [KindResult(kind, kind, 300, found, found, None, 50.0, kind, 0.0) for kind in kinds]


def asked(
    rules: Mapping[str, Change], captions: int, shown: bool, given: Sequence[str]
) -> AskedChanges:
    """Each rule asks as many captions for its kind."""
    found = {rules[rule]: captions for rule in given}
    return AskedChanges(100, captions * len(given), found, found if shown else {})


def setting(
    method: str, rules: Mapping[str, Change], captions: int, *, shown: bool = False
) -> RuleSetting:
    """A setting with its first rule."""
    names = tuple(rules)
    return RuleSetting(
        method, f"{method}.rules", names[:1], names, partial(asked, rules, captions, shown)
    )


RULES: dict[str, Change] = {
    "swap": "swapped_attributes",
    "relate": "replaced_relation",
    "turn": "swapped_objects",
}


def test_each_weak_kind_has_a_rule_and_the_others_stay() -> None:
    steps = advise(
        weak("replaced_relation", "swapped_objects"), (), RUN, [setting("one", RULES, 20)]
    )
    values = {step.key: step.value for step in steps}
    assert values["method"] == "one"
    assert set(values["one.rules"]) == {"swap", "relate", "turn"}
    # 40 captions of 100 were asked for swapped attributes, 20 are for each of these.
    assert values["training.epochs"] == 20


def test_the_runs_own_method_stays_where_it_asks_as_much() -> None:
    ours = replace(RUN, method="two")
    settings = [setting("one", RULES, 20), setting("two", RULES, 20)]
    assert [step.key for step in advise(weak("replaced_relation"), (), ours, settings)] == [
        "two.rules",
        "training.epochs",
    ]


def test_images_of_negatives_come_before_more_negatives() -> None:
    settings = [setting("many", RULES, 60), setting("shown", RULES, 20, shown=True)]
    steps = advise(weak("replaced_relation"), (), RUN, settings)
    assert steps[0].value == "shown"


def test_without_a_rule_for_a_kind_nothing_is_advised() -> None:
    assert advise(weak("added_attribute"), (), RUN, [setting("one", RULES, 20)]) == ()
    assert advise(weak("replaced_relation"), (), RUN, []) == ()


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 50))
def test_passes_make_up_for_rare_negatives_within_bounds(
    captions: int, most: int, epochs: int
) -> None:
    counted = AskedChanges(100, most, {"replaced_object": most}, {})
    run = TrainingRun("one", epochs, lambda: counted)
    steps = advise(weak("replaced_relation"), (), run, [setting("one", RULES, captions)])
    found = next((step.value for step in steps if step.key == "training.epochs"), epochs)
    assert epochs <= found <= MOST_TIMES * epochs
    if found < MOST_TIMES * epochs:
        assert found * captions >= epochs * most
        assert found == epochs or (found - 1) * captions < epochs * most


@given(st.floats(0.3, 3.0), st.integers(5, 60), st.integers(5, 60))
def test_the_passes_reach_90_per_cent_at_the_rate_of_the_kind_that_was_asked_most(
    gained: float, before: int, after: int
) -> None:
    """Log odds that grow evenly with the captions that are asked, written out: from 0 to log 9."""
    taught = KindResult(
        *("swapped_attributes", "Swapped", 10**6),
        *(Estimate(v, v, v) for v in (50.0, 100 / (1 + math.exp(-gained)))),
        *(None, 50.0, "swapped_attributes", before / 100),
    )
    counted = AskedChanges(100, before, {"swapped_attributes": before}, {})
    run = replace(RUN, method="one", epochs=1000, count=lambda: counted)
    missed = [replace(one, items=10**6) for one in weak("replaced_relation", base=50.0)]
    steps = advise(missed, [taught], run, [setting("one", RULES, after)])
    found = next((step.value for step in steps if step.key == "training.epochs"), 1000)
    an_ask = gained / (1000 * before / 100)
    reached = found * after / 100 * an_ask
    if found == MOST_TIMES * 1000:
        assert reached <= math.log(9) * 1.01
    elif found == 1000:
        assert reached >= math.log(9) * 0.99
    else:
        assert reached == pytest.approx(math.log(9), rel=0.01)


def weights(
    run: TrainingRun, base: float, *, shown: bool = True, method: str = "one"
) -> dict[str, Any]:
    """What is advised besides rules and passes."""
    found = advise(
        weak("replaced_relation", base=base), (), run, [setting(method, RULES, 40, shown=shown)]
    )
    left = {"method", "training.epochs", f"{method}.rules"}
    return {step.key: step.value for step in found if step.key not in left}


def test_what_the_base_guesses_is_learnt_by_both_towers_and_not_mixed_away() -> None:
    mixed = replace(RUN, ratio=0.5, caches_features=True)
    trains = {"one.objective.trains": ["image", "text"]}
    assert weights(mixed, base=52.0) == {
        **trains,
        "training.frozen": ["token_embedding", "visual.trunk"],
        "training.wise_ft.ratio": "auto",
    }
    assert weights(mixed, base=70.0) == {}
    assert weights(replace(RUN, ratio=0.5), base=52.0, shown=False) == {
        "training.wise_ft.ratio": "auto"
    }
    assert weights(RUN, base=52.0) == trains


def test_a_tower_that_trains_already_is_not_advised() -> None:
    assert weights(replace(RUN, method="one"), base=52.0) == {}
    text = replace(RUN, method="one", trains_images=False)
    assert weights(text, base=52.0) == {"one.objective.trains": ["image", "text"]}


def test_rules_need_that_no_table_makes_the_negatives() -> None:
    """The rules that a setting has are not in use beside a table: they are advised as new ones."""
    plain = advise(weak("swapped_attributes"), (), RUN, [setting("plain", RULES, 20)])
    steps = advise(
        weak("swapped_attributes"),
        (),
        replace(RUN, from_table=True),
        [setting("plain", RULES, 20)],
    )
    assert "views.from_table.file" not in {step.key for step in plain}
    values = {step.key: step.value for step in steps}
    assert values["views.from_table.file"] is None and values["plain.rules"] == ["swap"]
