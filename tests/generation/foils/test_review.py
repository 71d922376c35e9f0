"""What a person's verdicts on items say about all items of a kind."""

import json
from collections import Counter
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DatasetError

from compo_pipeline.benchmarks.settings import BenchmarksSettings, FoilBenchmarkSettings
from compo_pipeline.core.records import Foil
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import PageDataset, ReceivedJsonDataset
from compo_pipeline.generation.foils.review import DRAWN, draw, noise_by_kind, read
from compo_pipeline.pipelines.foils.nodes import write_review_page

REPORT = {"builder": 1, "fingerprint": "f00d"}
KINDS = ("replaced_object", "half_truth")


BENCHMARKS = BenchmarksSettings(foils=FoilBenchmarkSettings("test"))


def foil(number: int, kind: str = KINDS[0], split: str = "test", state: str = "used") -> Foil:
    name = f"{kind}-{number:03}"
    texts = ("a red cup", "a blue cup", "a red cup", ("red", "blue"))
    return Foil(name, kind, split, state, name, name, f"{number}.png", name, *texts, 0.0, name)


ITEMS = [foil(number, KINDS[number % 2]) for number in range(300)]
REVIEW: dict[str, Any] = {**REPORT, "split": "test", "verdicts": {}}


def test_what_is_drawn_is_scored_and_depends_on_the_items_alone() -> None:
    others = [foil(900, split="val"), foil(901, state="few"), foil(902, state="guessable")]
    drawn = draw([*ITEMS, *others], "test", "f00d")
    assert len(drawn) == DRAWN == len({one.item for one in drawn})
    assert {one.item for one in drawn} <= {one.item for one in ITEMS}
    assert draw([*others, *reversed(ITEMS)], "test", "f00d") == drawn
    assert draw(ITEMS, "test", "beef") != drawn
    assert draw(ITEMS[:7], "test", "f00d") != ITEMS[:7] and len(draw(ITEMS[:7], "test", "")) == 7
    assert draw(ITEMS, None, "f00d") == []
    assert set(draw([*ITEMS[:7], *others], "test", "f00d")) == set(ITEMS[:7])
    # Every item is as likely as any other one.
    counts = Counter(one.item for n in range(300) for one in draw(ITEMS, "test", f"{n}"))
    assert all(60 < counts[one.item] < 145 for one in ITEMS)


def test_a_run_without_items_has_no_page_to_review(tmp_path: Path) -> None:
    page = PageDataset(filepath=str(tmp_path / "foils_review"), page="review.html")
    report = {**REPORT, "language": "compo_en"}
    for items in (ITEMS, [foil(901, state="few")]):
        page.save(write_review_page(items, report, {}, BENCHMARKS, tmp_path))
        # DVC wants the folder of a stage's output.
        assert [file.name for file in page.load().iterdir()] == ["review.html"][: len(items) > 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"builder": 2}, "the review is one of other items: builder is 2, expected 1; remove"),
        ({"fingerprint": "beef"}, "one of other items: fingerprint is 'beef', expected 'f00d'"),
        ({"split": "val"}, "one of other items: split is 'val', expected 'test'"),
        ({"verdicts": {"a\nb": "accept"}}, r"the item .a\\nb., which is none of"),
        ({"verdicts": {ITEMS[0].item: "maybe"}}, "foils_review.verdicts.*'accept', 'reject' or"),
        ({"verdict": {}}, "foils_review.verdict: .*did you mean 'verdicts'"),
        ({"verdicts": []}, "foils_review.verdicts: "),
    ],
)
def test_a_review_of_other_items_is_refused_by_one_line(
    change: dict[str, Any], message: str
) -> None:
    drawn = draw(ITEMS, "test", "f00d")
    with pytest.raises(SettingsError, match=message) as error:
        read({**REVIEW, **change}, REPORT, drawn)
    assert "\n" not in error.value.message and error.value.message.startswith("foils_review")


def test_verdicts_are_of_the_drawn_items_alone() -> None:
    drawn = draw(ITEMS, "test", "f00d")
    other = next(one.item for one in ITEMS if one not in drawn)
    with pytest.raises(SettingsError, match=f"the item '{other}', which is none of the 100"):
        read({**REVIEW, "verdicts": {other: "accept"}}, REPORT, drawn)
    assert read({}, REPORT, drawn) == {}


def test_a_file_that_somebody_put_there_may_be_absent(tmp_path: Path) -> None:
    file = tmp_path / "review.json"
    dataset = ReceivedJsonDataset(filepath=str(file))
    assert dataset.exists() and dataset.load() == {}
    file.write_text(json.dumps(REVIEW))
    assert dataset.load() == REVIEW
    for content, message in (
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
    ):
        file.write_text(content)
        with pytest.raises(DatasetError, match=message):
            dataset.load()


def _tail(n: int, k: int, p: float) -> float:
    """Probability of k or more of n."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(
    ("accepted", "rejected", "unsure"), [(14, 0, 0), (12, 3, 0), (0, 5, 0), (10, 2, 3), (0, 0, 4)]
)
def test_the_interval_is_exact_whatever_the_undecided_are(
    accepted: int, rejected: int, unsure: int
) -> None:
    """Its ends are where the binomial tails are 2.5%, found by trying a thousand shares."""
    given = ["accept"] * accepted + ["reject"] * rejected + ["unsure"] * unsure
    drawn = ITEMS[: len(given)]
    drawn = [replace(one, kind="half_truth") for one in drawn]
    found = noise_by_kind(drawn, dict(zip((one.item for one in drawn), given, strict=True)))  # type: ignore[arg-type]
    assert found[""] == found["half_truth"]
    one, n, decided = found[""], len(given), accepted + rejected
    assert one[:4] == (n, rejected, unsure, rejected / decided if decided else None)
    shares = [i / 1000 for i in range(1001)]
    possible = [p for p in shares if _tail(n, rejected, p) >= 0.025]
    assert one.low == pytest.approx(min(possible), abs=0.001)
    possible = [p for p in shares if 1 - _tail(n, rejected + unsure + 1, p) >= 0.025]
    assert one.high == pytest.approx(max(possible), abs=0.001)


def test_an_item_that_was_passed_over_is_undecided() -> None:
    drawn = draw(ITEMS, "test", "f00d")
    found = noise_by_kind(drawn, {drawn[0].item: "accept", drawn[4].item: "reject"})
    assert found[""][:4] == (5, 1, 3, 0.5)
    assert sum(found[kind].judged for kind in KINDS if kind in found) == 5
    assert noise_by_kind(drawn, {}) == {}
