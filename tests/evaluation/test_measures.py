from compo_pipeline.evaluation.measures import AVERAGES, measures

SEVEN = (
    "add_att",
    "add_obj",
    "replace_att",
    "replace_obj",
    "replace_rel",
    "swap_att",
    "swap_obj",
)


def test_averages_are_those_of_the_papers() -> None:
    found = {m.name: m for m in measures(("sugar_crepe", "accuracy", name) for name in SEVEN)}
    assert set(found) == {*SEVEN, "add", "replace", "swap", "average"}
    assert set(found["replace"].parts) == {"replace_obj", "replace_att", "replace_rel"}
    assert set(found["average"].parts) == set(SEVEN)
    assert len(AVERAGES["sugar_crepe_pp", "tot"]["average"]) == 5
    assert found["swap"].averaged and not found["swap_obj"].averaged


def test_an_average_needs_all_its_subtasks() -> None:
    keys = [("sugar_crepe", "accuracy", name) for name in SEVEN if name != "swap_obj"]
    assert {m.name for m in measures(keys)} == {*SEVEN, "add", "replace"} - {"swap_obj"}


def test_mean_per_class_is_over_the_classes_of_a_set() -> None:
    keys = [("zero_shot", "per_class", f"{part}") for part in ("a/x", "a/y", "b/x")]
    assert {m.name: m.parts for m in measures(keys)} == {"a": ("a/x", "a/y"), "b": ("b/x",)}


def test_labels_read_well() -> None:
    keys = [
        ("sugar_crepe", "accuracy", "swap_obj"),
        ("sugar_crepe_pp", "itt", "swap_obj"),
        ("zero_shot", "top1", "colours"),
        ("retrieval", "t2i_r5", "clic"),
    ]
    assert [m.label for m in measures(keys)] == [
        "SugarCrepe swap obj",
        "SugarCrepe++ ITT swap obj",
        "Zero-shot colours top-1",
        "Retrieval text to image R@5",
    ]
