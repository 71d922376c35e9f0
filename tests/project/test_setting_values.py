"""Values of every settings key: those that no run can use are refused by the key's name."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compo_pipeline.core.settings import (
    SettingsError,
    all_settings,
    classes_in,
    leaves,
    parse,
    plain,
    value_at,
)
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.generation.recaption.settings import RecaptionSettings
from compo_pipeline.project.settings import Parameters, all_values, loader_of, with_methods

# The settings class of each key that has one.
CLASSES = {
    each.key: kind
    for each in all_settings(with_methods())
    for prefix, kind in classes_in(each.hint)
    if not prefix and "<name>" not in each.key
}
LONG = "x" * 300


@pytest.fixture(scope="module")
def defaults(bootstrapped: Path) -> Mapping[str, Any]:
    """Values of conf/base with all defaults, and of keys that must be set before they are used."""
    values = all_values(loader_of(bootstrapped / "conf", "base", {}))
    server = {"url": "http://localhost/v1", "model": "m"}
    given = {"endpoint": server, "diffusion": {"model": "models/theirs"}}
    edits = parse(CounterfactualSettings, values["counterfactuals"] | given)
    own = {"endpoint": server, "transformers": {"folder": "models/mine"}}
    captions = parse(RecaptionSettings, values["recaption"] | own)
    return values | {"counterfactuals": plain(edits), "recaption": plain(captions)}


def changed(defaults: Mapping[str, Any], root: str, path: str, value: Any) -> Any:
    """Settings of the class at `root` with one value replaced below it."""
    values = deepcopy(value_at(defaults, root))
    *parents, last = path.split(".")
    inner = values
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return parse(CLASSES[root], values, root)


NOT_FINITE = [float("nan"), float("inf"), float("-inf"), "nan", "inf"]
TITLES = ["", LONG]
NAMES = [*TITLES, "a/b", "../a", "a:b", "a'b", 'a"b', ".hidden", "a b", "a\n"]
ALIASES = [*NAMES[:8], "a.b", "latest", "Latest", "v1", "V12"]


@pytest.mark.parametrize(
    ("root", "path", "values", "allowed"),
    [
        ("training", "optimizer.lr", [*NOT_FINITE, -1e-6, True], 1e-6),
        ("training", "optimizer.betas", [[0.9, 1.0], [-0.1, 0.9], [0.9, float("nan")]], [0, 0.9]),
        ("training", "optimizer.eps", [*NOT_FINITE, 0, -1e-8], 1e-8),
        ("training", "optimizer.clip_norm", [*NOT_FINITE, 0, -1], None),
        ("training", "epochs", [0, -1, True, 1.5], 1),
        ("training", "validation.rows", [1, True], None),
        ("clic.objective", "weights.unimodal", [*NOT_FINITE, -1, True], 0),
        ("sparcl.objective", "bias", NOT_FINITE, -10.0),
        ("counterfactuals.endpoint", "timeout", [*NOT_FINITE, 0, -1], 0.5),
        ("recaption.transformers", "dtype", ["float33", "complex64"], "bfloat16"),
        ("data", "shares", [{"train": float("inf")}, {"train": 0}, {"train": True}], {"train": 1}),
        ("promotion", "gate.version", [True, "one"], 2),
        ("registration", "alias", [*ALIASES, "champion", "previous"], None),
        ("registration", "name", NAMES, "compo-clip.2"),
        ("tracking", "experiment", TITLES, "/Users/me/compo"),
        ("tuning", "study.name", TITLES, "clic: weights"),
        ("validation", "rules", [{"a": {"column": "text", "pattern": "("}}], {}),
    ],
)
def test_a_value_that_no_run_can_use_is_refused_by_its_key(
    defaults: Mapping[str, Any], root: str, path: str, values: list[Any], allowed: Any
) -> None:
    changed(defaults, root, path, allowed)
    for value in values:
        with pytest.raises(SettingsError, match=rf"^{root}\.{path}"):
            changed(defaults, root, path, value)


@pytest.mark.parametrize("key", ["dataset", "variant"])
@pytest.mark.parametrize("name", ["", "../a", ".hidden", "a b", "a\n"])
def test_a_name_that_no_folder_can_have_is_refused(
    context: Callable[..., Any], key: str, name: str
) -> None:
    params = {each.name: context().params[each.name] for each in fields(Parameters)}
    assert getattr(parse(Parameters, {**params, key: "a.b-c_2"}, ""), key) == "a.b-c_2"
    assert getattr(parse(Parameters, {**params, key: 2}, ""), key) == "2"
    with pytest.raises(SettingsError, match=f"^{key}: "):
        parse(Parameters, {**params, key: name}, "")


def test_a_message_prints_as_one_line(defaults: Mapping[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"unknown column 'a\\x1e\\x1b\[2J\\u202e'") as error:
        changed(defaults, "validation", "rules.longest_sentence.column", "a\x1e\x1b[2J\u202e")
    assert error.value.message.isprintable()


def test_a_message_stays_short(defaults: Mapping[str, Any]) -> None:
    for value in (["x" * 5000] * 9, {"x" * 5000: 1}):
        with pytest.raises(SettingsError) as error:
            changed(defaults, "model", "name", value)
        assert len(error.value.message) < 2000


ODD = [None, True, "", "null", "1e-6", "\0", "x" * 1_000_000, -(2**70), 0]
ODD += [float("nan"), float("inf"), b"bytes", {1: 2}, {None: 1}, {"_": {}}]
SCALARS = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=9))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_any_value_of_any_key_gives_settings_or_an_error_with_the_key(
    defaults: Mapping[str, Any], count_case: Callable[[], int], cases: int
) -> None:
    keys = sorted(
        {
            (root, path)
            for root in CLASSES
            for leaf, _ in leaves(value_at(defaults, root))
            for path in prefixes(leaf)
        }
    )

    @settings(max_examples=cases, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(keys), VALUES)
    def check(key: tuple[str, str], value: Any) -> None:
        count_case()
        root, path = key
        try:
            changed(defaults, root, path, value)
        except SettingsError as error:
            assert all(line.startswith(root) for line in error.message.splitlines()), error.message
            assert len(error.message) < 10_000
            error.message.encode()

    check()
