"""Several sources in one training: exact shares, passes over each source, views of one source."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.core import table_files
from compo_pipeline.core.records import Caption, Counterfactual, Parse, View
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.table_files import PrepareSettings
from compo_pipeline.core.tables import Table
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import Method, NoViewSettings, ViewContext
from compo_pipeline.methods.sparcl import Sparcl, SparclObjective
from compo_pipeline.methods.views import EpochViews, Mixture, apportion, write

CLIC = Clic(ClicViews(), ClicObjective())
CLIP = Clip(NoViewSettings(), ClipObjective())
RED, BLUE = "A/DET red/ADJ cat/NOUN", "The/DET blue/ADJ dog/NOUN"
WEIGHTS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.floats(1e-3, 1e3) | st.integers(1, 9),
    min_size=1,
    max_size=6,
)


def largest_remainders(total: int, weights: dict[str, float]) -> dict[str, int]:
    """Row by row to the source that is furthest below its rounded-up share, without a quotient."""
    whole = sum(map(Fraction, weights.values()))
    quota = {name: Fraction(weight) * total / whole for name, weight in weights.items()}
    found = {name: math.floor(share) for name, share in quota.items()}
    while sum(found.values()) < total:
        below = {
            name: quota[name] - math.floor(quota[name])
            for name in weights
            if found[name] == math.floor(quota[name])
        }
        found[max(below, key=lambda name: below[name])] += 1
    return found


@given(st.integers(0, 10_000), WEIGHTS)
def test_shares_are_exact_to_one_row(total: int, weights: dict[str, float]) -> None:
    found = apportion(total, weights)
    assert found == largest_remainders(total, weights)
    assert sum(found.values()) == total
    whole = sum(map(Fraction, weights.values()))
    for name, weight in weights.items():
        assert abs(found[name] - Fraction(weight) * total / whole) < 1


@given(st.integers(1, 30), st.integers(1, 70), st.integers(1, 6), st.integers(0, 9))
def test_a_source_is_passed_through_again_and_again(
    rows: int, share: int, epochs: int, seed: int
) -> None:
    mixture = Mixture({"a": 1.0}, share, seed)
    drawn: list[tuple[int, int]] = []
    for epoch in range(epochs):
        taken = mixture.taken("a", rows, share, epoch)
        own = [(number, row) for number, found in taken for row in found.tolist()]
        assert len(own) == share and own == sorted(own)
        drawn += own
    # Every pass but the last one has every row once.
    assert len(set(drawn)) == len(drawn) == epochs * share
    counts = Counter(number for number, _ in drawn)
    last = max(counts)
    assert counts == {
        number: rows if number < last else epochs * share - last * rows for number in counts
    }
    assert {row for _, row in drawn} <= set(range(rows))


def test_passes_have_orders_of_their_own() -> None:
    def first_half(seed: int, source: str, number: int) -> list[int]:
        ((_, rows),) = Mixture({}, None, seed).taken(source, 100, 50, 2 * number)
        return rows.tolist()

    found = [first_half(*each) for each in itertools.product((0, 1), "ab", (0, 1))]
    assert len({tuple(each) for each in found}) == len(found)


@pytest.fixture
def rows(caption: Callable[..., Caption]) -> list[Caption]:
    """Six wide and two tall images of one source, two wide and a tall one of another."""
    found = []
    for number in range(11):
        source, tall = ("many", number in (6, 7)) if number < 8 else ("few", number == 10)
        row = caption(f"{source}/{number}", (RED, BLUE)[number % 2], tall=tall)
        found.append(replace(row, source=source))
    return found


@pytest.fixture
def context(rows: list[Caption], parse: Callable[[str, str], Parse]) -> ViewContext:
    tagged = {row.sample_id: (RED, BLUE)[number % 2] for number, row in enumerate(rows)}
    parses = {name: parse(name, text) for name, text in tagged.items()}
    return ViewContext(parses, "hand", 3, 0, {}, {})


def drawn(
    folder: Path,
    method: Method,
    rows: Sequence[Caption],
    context: ViewContext,
    mixture: Mixture,
    epochs: int = 3,
    engine: PrepareSettings | None = None,
) -> list[list[View]]:
    """The views of each epoch."""
    write(
        *(method, Table.of(rows, Caption), context, epochs, folder),
        fingerprint="of a test",
        engine=engine or PrepareSettings(workers=1),
        mixture=mixture,
    )
    tables = EpochViews(folder)
    return [list(tables.epoch(epoch)) for epoch in range(epochs)]


def source_of(view: View) -> str:
    return view.sample_id.partition("/")[0]


def test_an_epoch_has_the_shares_and_each_view_is_of_one_source(
    rows: list[Caption], context: ViewContext, tmp_path: Path
) -> None:
    """Of weights 3 and 1 and an epoch of 13; the tall row of `few` has no partner there."""
    mixture = Mixture({"many": 3.0, "few": 1.0}, 13, 3)
    epochs = drawn(tmp_path / "views", CLIC, rows, context, mixture)
    for views in epochs:
        assert Counter(map(source_of, views)) == {"many": 10, "few": 3}
        for view in views:
            assert {name.partition("/")[0] for name in view.sample_ids} == {source_of(view)}
        assert "few/10" not in {view.sample_id for view in views}
    # 30 rows of the larger source's 8 are three passes and six rows; 9 of 2 are four and one.
    counts = Counter(view.sample_id for views in epochs for view in views)
    assert {counts[row.sample_id] for row in rows[:8]} == {3, 4}
    assert sorted(counts[row.sample_id] for row in rows[8:10]) == [4, 5]


def test_a_row_that_comes_again_in_an_epoch_has_another_view(
    rows: list[Caption], context: ViewContext, tmp_path: Path
) -> None:
    mixture = Mixture({"many": 1.0, "few": 1.0}, 100, 3)
    (views,) = drawn(tmp_path / "views", CLIC, rows, context, mixture, epochs=1)
    of_row = [view for view in views if view.sample_id == "many/0"]
    alone = {
        view
        for epoch in range(len(of_row))
        for view in CLIC.views(rows[:8], context._replace(epoch=epoch))
        if view.sample_id == "many/0"
    }
    assert len(of_row) >= 6 and set(of_row) <= alone and len(set(of_row)) > 2


def test_whole_captions_come_in_each_source(
    rows: list[Caption], context: ViewContext, tmp_path: Path
) -> None:
    """Of half of the views, drawn by pass: a row that comes again may be whole or not."""
    mixture = Mixture({"many": 1.0, "few": 1.0}, 100, 3)
    table = Table.of(rows, Caption)
    write(CLIC, table, context, 1, tmp_path / "views", long_share=0.5, mixture=mixture)
    views = list(EpochViews(tmp_path / "views").epoch(0))
    assert Counter(map(source_of, views)) == {"many": 50, "few": 50}
    for row in rows[:10]:
        kinds = {view.kind for view in views if view.sample_id == row.sample_id}
        assert kinds == {"long", "composite"}


def test_the_largest_source_gives_the_rows_of_an_epoch(
    rows: list[Caption], context: ViewContext, tmp_path: Path
) -> None:
    mixture = Mixture({"many": 1.0, "few": 1.0}, None, 3)
    (views,) = drawn(tmp_path / "views", CLIP, rows, context, mixture, epochs=1)
    assert Counter(map(source_of, views)) == {"many": 4, "few": 4}


def test_one_source_of_all_rows_is_drawn_as_one_source_alone(
    rows: list[Caption], context: ViewContext, tmp_path: Path
) -> None:
    mixture = Mixture({"many": 2.5}, None, 3)
    epochs = drawn(tmp_path / "views", CLIC, rows[:8], context, mixture)
    for epoch, views in enumerate(epochs):
        assert views == list(CLIC.views(rows[:8], context._replace(epoch=epoch)))


def test_a_drawing_that_was_interrupted_goes_on(
    rows: list[Caption],
    context: ViewContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixture, calls = Mixture({"many": 3.0, "few": 1.0}, 50, 3), Counter[str]()
    whole = drawn(tmp_path / "whole", CLIC, rows, context, mixture)
    monkeypatch.setattr(table_files, "PART", 7)
    composite = Clic._composite_view

    def interrupted(self: Clic, *arguments: object) -> View:
        calls["views"] += 1
        if calls["views"] == 75:
            raise KeyboardInterrupt
        return composite(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Clic, "_composite_view", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drawn(tmp_path / "views", CLIC, rows, context, mixture)
    assert drawn(tmp_path / "views", CLIC, rows, context, mixture) == whole
    assert calls["views"] < 150 + 7 + 1  # an epoch and three parts of seven were there


@pytest.mark.parametrize(
    "method",
    [
        CLIC,
        Clic(ClicViews(images="single", swap="within"), ClicObjective()),
        Clic(ClicViews(partners="shared_noun"), ClicObjective()),
        CLIP,
        Sparcl(Sparcl.views_type(), SparclObjective()),
    ],
    ids=["composites", "single images", "shared nouns", "CLIP", "SPARCL"],
)
def test_a_method_knows_which_rows_have_a_view(
    rows: list[Caption], context: ViewContext, method: Method
) -> None:
    """One image in two rows, alone of its orientation."""
    tall = [row for row in rows if row.height > row.width]
    shown = [*rows[:2], tall[0], replace(rows[3], image_id=tall[0].image_id, width=30, height=40)]
    edit = Counterfactual(
        *("many/0", 0, shown[0].sentences[0], "negative", "No.", ""),
        *("rules", "", "0", "edited", "replaced"),
    )
    context = context._replace(counterfactuals={"many/0": [edit]})
    sampler = method.sampler(shown, context)
    has_view = [sampler(row) is not None for row in shown]
    assert method.anchors(Table.of(shown, Caption)).tolist() == has_view


@pytest.mark.parametrize(
    ("weights", "epoch_rows", "message"),
    [
        ({"many": 1.0, "other": 1.0}, None, "data.sources.other: none of its rows trains"),
        ({"many": 1.0, "few": 1.0}, None, None),
        ({"many": 1.0, "few": 1e-6}, 40, "data.sources.few.weight: 1e-06 is less than a row"),
        ({"many": 1.0, "tall": 1.0}, None, "data.sources.tall: none of its 1 rows has a view"),
    ],
)
def test_a_source_that_cannot_train_is_refused(
    rows: list[Caption], weights: dict[str, float], epoch_rows: int | None, message: str | None
) -> None:
    found = Table.of([*rows, replace(rows[10], source="tall")], Caption)
    mixture = Mixture(weights, epoch_rows, 0)
    if message is None:
        assert np.array([each.share for each in mixture.sources(found, CLIC).values()]).sum() == 8
        return
    with pytest.raises(SettingsError) as refused:
        mixture.sources(found, CLIC)
    assert refused.value.message.startswith(message)
    assert "\n" not in refused.value.message
