"""Advice from what rules would ask."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from compo_pipeline.evaluation.comparison import Estimate
from compo_pipeline.evaluation.diagnosis.diagnose import KindResult, TrainingRun, advise
from compo_pipeline.evaluation.diagnosis.negatives import AskedChanges, RuleSetting
from compo_pipeline.language.changes import Change

ASKED = AskedChanges(100, 80, {"swapped_attributes": 40}, {})
RUN = TrainingRun("plain", lambda: ASKED)


def weak(*kinds: Change, base: float = 70.0) -> list[KindResult]:
    """Kinds of this accuracy of the base, which the model corrects by nothing."""
    found = Estimate(base, base - 5, base + 5)
    return [KindResult(kind, 300, found, found, None, kind, 0.0) for kind in kinds]


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
    steps = advise(weak("replaced_relation", "swapped_objects"), RUN, [setting("one", RULES, 20)])
    values = {step.key: step.value for step in steps}
    assert values["method"] == "one"
    assert set(values["one.rules"]) == {"swap", "relate", "turn"}


def test_the_runs_own_method_stays_where_it_asks_as_much() -> None:
    ours = replace(RUN, method="two")
    settings = [setting("one", RULES, 20), setting("two", RULES, 20)]
    assert [step.key for step in advise(weak("replaced_relation"), ours, settings)] == ["two.rules"]


def test_images_of_negatives_come_before_more_negatives() -> None:
    settings = [setting("many", RULES, 60), setting("shown", RULES, 20, shown=True)]
    steps = advise(weak("replaced_relation"), RUN, settings)
    assert steps[0].value == "shown"


def test_without_a_rule_for_a_kind_nothing_is_advised() -> None:
    assert advise(weak("added_attribute"), RUN, [setting("one", RULES, 20)]) == ()
    assert advise(weak("replaced_relation"), RUN, []) == ()


def test_rules_need_that_no_table_makes_the_negatives() -> None:
    """The rules that a setting has are not in use beside a table: they are advised as new ones."""
    plain = advise(weak("swapped_attributes"), RUN, [setting("plain", RULES, 20)])
    steps = advise(
        weak("swapped_attributes"),
        replace(RUN, from_table=True),
        [setting("plain", RULES, 20)],
    )
    assert "views.from_table.file" not in {step.key for step in plain}
    values = {step.key: step.value for step in steps}
    assert values["views.from_table.file"] is None and values["plain.rules"] == ["swap"]
