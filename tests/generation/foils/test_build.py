"""Items of photographs' captions: how many, of which images, and what their texts tell."""

import hashlib
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compo_pipeline.benchmarks.loading import gather
from compo_pipeline.benchmarks.settings import (
    BenchmarkSet,
    BenchmarksSettings,
    FoilBenchmarkSettings,
    RetrievalSettings,
)
from compo_pipeline.core.records import Caption, Fact, Foil
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError, parse, plain
from compo_pipeline.core.tables import Splits
from compo_pipeline.generation.foils.build import Image, Texts, build, shortage
from compo_pipeline.generation.foils.settings import KINDS, FoilSettings
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.pipelines.foils.nodes import build_foils

from .conftest import Photographs

PARSER = partial(parses_of, "compo_en")


def content(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def caption(name: str, number: int, texts: Sequence[str], split: str) -> Caption:
    return Caption(f"{name}-{number}", name, name, 9, 9, tuple(texts), "x", split)


def fact(row: Caption, image_hash: str) -> Fact:
    return Fact(
        0, row.sample_id, row.image, row.split, image_hash, None, 9, 9, 1, 1, 1, False, False, False
    )


def rows_of(photographs: Photographs, count: int) -> tuple[list[Caption], list[Fact]]:
    """A row for each caption of some photographs, the first third of which trains."""
    rows, facts = [], []
    for place, (name, texts) in enumerate(list(photographs.items())[:count]):
        split = "train" if place < count // 3 else "test"
        for number, text in enumerate(texts):
            rows.append(caption(name, number, [text], split))
        facts.append(fact(rows[-1], content(name)))
    return rows, facts


NO_BENCHMARKS = BenchmarksSettings()


def build_node(
    rows: list[Caption],
    facts: list[Fact],
    settings: FoilSettings,
    benchmarks: BenchmarksSettings = NO_BENCHMARKS,
    trains: Splits = "train",
) -> tuple[list[Foil], dict[str, object]]:
    return build_foils(rows, facts, settings, benchmarks, trains, "compo_en", 1)


def official_files(folder: Path, *contents: str) -> BenchmarksSettings:
    """A benchmark with an image of each of these contents."""
    (folder / "images").mkdir(parents=True)
    for number, text in enumerate(contents):
        (folder / "images" / f"{number}.png").write_bytes(text.encode())
    items = {
        str(each): {"filename": f"{each}.png", "caption": "a", "negative_caption": "b"}
        for each in range(len(contents))
    }
    (folder / "sugar_crepe").mkdir()
    (folder / "sugar_crepe" / "replace_obj.json").write_text(json.dumps(items))
    return BenchmarksSettings(root=str(folder), sets={"sugar_crepe": BenchmarkSet()})


SETTINGS = FoilSettings(
    splits={"val": "test", "test": "test"}, kinds=("replaced_object", "swapped_objects"), least=10
)


def test_what_a_run_without_usable_foils_advises_is_enough(photographs: Photographs) -> None:
    rows, facts = rows_of(photographs, 240)
    strict = replace(SETTINGS, least=1000)
    items, report = build_node(rows, facts, strict)
    assert {item.state for item in items} == {"few"}
    told = shortage(report, "test", strict)
    assert "about 2,000 photos in the split 'test'" in told
    advised = {key: json.loads(value) for key, value in re.findall(r"foils\.(\w+)=([\d.]+)", told)}
    changed = parse(FoilSettings, plain(strict) | advised, "foils")
    items, _ = build_node(rows, facts, changed)
    assert "used" in {item.state for item in items if item.split == "test"}
    assert "foils.splits.other=" in shortage(report, "other", strict)


def test_fewer_items_than_can_be_judged_are_refused_by_their_key() -> None:
    with pytest.raises(SettingsError, match=r"foils\.least: .*10 \(got 2\)"):
        parse(FoilSettings, {"least": 2}, "foils")


def test_of_a_benchmark_only_the_images_in_the_data_count(
    photographs: Photographs, tmp_path: Path
) -> None:
    rows, facts = rows_of(photographs, 6)
    official = rows[-1].image
    known = official_files(tmp_path / "files", official)
    others = official_files(tmp_path / "others", official, "an image of others")
    found = [
        build_node(rows, facts, SETTINGS, files)[1]["fingerprint"]
        for files in (known, others, NO_BENCHMARKS)
    ]
    assert found[0] == found[1] != found[2]


def test_items_are_of_held_out_images_whatever_the_order_of_rows(
    photographs: Photographs, tmp_path: Path
) -> None:
    rows, facts = rows_of(photographs, 180)
    held = [row for row in rows if row.split == "test"]
    # A copy of a training image, and an image of an official benchmark.
    copied, official = held[0].image, held[-1].image
    training = next(each for each in facts if each.split == "train").image_hash
    facts = [
        fact(next(row for row in rows if row.image == copied), training)
        if each.image == copied
        else each
        for each in facts
    ]
    known = official_files(tmp_path / "files", official)
    items, report = build_node(rows, facts, SETTINGS, known)
    of_image = {name: set(texts) for name, texts in photographs.items()}
    splits: dict[str, set[str]] = {"val": set(), "test": set()}
    for item in items:
        assert item.source in of_image[item.image_id] and item.foil not in of_image[item.image_id]
        assert item.image in {row.image for row in held} - {copied, official}
        splits[item.split].add(item.image)
    assert splits["val"] and splits["test"] and not splits["val"] & splits["test"]
    assert json.loads(json.dumps(report)) == report
    left_out = Counter[str]()
    for each in report["splits"].values():  # type: ignore[attr-defined]
        left_out.update(each["left_out"])
    assert left_out == {"a training row has it": 1, "an official benchmark has it": 1}
    by_name = {item.item: item for item in items}
    assert len(by_name) == len(items)
    for item in items:
        partner = by_name[item.partner]
        assert by_name[partner.partner] == item and partner.image != item.image
        if item.kind.startswith("replaced"):
            assert partner.words == item.words[::-1]
    # The same rows in another order.
    training_rows = [row for row in rows if row.split == "train"]
    random.Random(0).shuffle(held)
    texts = {name: photographs[name] for name in photographs}
    again, _ = build_node(
        [
            *training_rows,
            *sorted(held, key=lambda row: texts[row.image_id].index(row.sentences[0])),
        ],
        facts[::-1],
        SETTINGS,
        known,
    )
    assert {(item.item, item.caption, item.foil) for item in again} == {
        (item.item, item.caption, item.foil) for item in items
    }
    kinds = report["splits"]["test"]["kinds"]  # type: ignore[index]
    assert kinds["replaced_object"]["dropped"]["another caption names it"]


def test_carved_rows_become_items_unless_they_train(photographs: Photographs) -> None:
    rows, facts = rows_of(photographs, 90)
    rows = [replace(row, split="carved") if row.split == "test" else row for row in rows]
    carved = {row.image for row in rows if row.split == "carved"}
    settings = replace(SETTINGS, carve=len(carved), splits={"test": "held_out"})
    items, _ = build_node(rows, facts, settings)
    assert items and {item.image for item in items} <= carved
    assert build_node(rows, facts, settings, trains=("train", "carved"))[0] == []


def test_without_sets_there_are_no_foils(photographs: Photographs) -> None:
    rows, facts = rows_of(photographs, 6)
    items, report = build_node(rows, facts, FoilSettings())
    assert items == [] and report["splits"] == {}


def test_the_benchmark_has_the_kinds_that_measure_something(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def foil(kind: str, split: str, state: str, number: int) -> Foil:
        name = f"{kind}-{number}"
        texts = (f"a caption {number}", f"a foil {number}", "a source")
        ids = ("s", "i", f"{number}.jpg", "hash")
        return Foil(name, kind, split, state, *ids, *texts, ("a", "b"), 0.5, "partner")

    rows = [
        *(foil("replaced_object", "test", "used", number) for number in range(3)),
        foil("replaced_object", "val", "used", 9),
        foil("half_truth", "test", "guessable", 4),
        foil("added_attribute", "test", "few", 5),
    ]
    settings = BenchmarksSettings(
        retrieval=RetrievalSettings(None), foils=FoilBenchmarkSettings("test")
    )
    (task,) = gather(settings, [], Path("photos"), rows)
    assert (task.benchmark, task.name, task.protocols) == (
        "foils",
        "replaced_object",
        ("image_to_text",),
    )
    assert [item.image for item in task.items] == ["0.jpg", "1.jpg", "2.jpg"]
    assert [(item.positives, item.negatives) for item in task.items] == [
        ((f"a caption {number}",), (f"a foil {number}",)) for number in range(3)
    ]
    assert "half_truth (guessable) 1, added_attribute (few) 1" in caplog.text


@pytest.mark.slow
def test_photographs_give_enough_items_and_text_tells_nothing_of_those_that_are_used(
    photographs: Photographs, record_property: Callable[[str, object], None]
) -> None:
    names = sorted(photographs, key=lambda name: digest("order", name))
    learnt, held = names[: len(names) * 3 // 10], names[len(names) * 3 // 10 :]
    settings = FoilSettings(splits={"test": "test"})
    texts = Texts([photographs[name] for name in learnt], settings, PARSER)
    images = [
        Image(
            caption(name, 0, photographs[name], "test"),
            content(name),
            tuple(photographs[name]),
        )
        for name in held
    ]
    _, reports = build(images, "test", texts, settings, PARSER)
    scale = 5000 / sum(len(image.captions) for image in images)
    for kind in KINDS:
        found = reports[kind]
        sys.stdout.write(
            f"{kind}: {found.items} items, {found.items * scale:.0f} of 5,000 captions; "
            f"{found.text_accuracy} by text, at most {found.text_accuracy_limit}; {found.state}\n"
        )
        record_property(kind, found.items * scale)
        # An item needs an image of its own, and one more draft that balances it.
        if found.images * scale >= 600:
            assert found.items * scale >= 300
        assert found.text_accuracy_limit is not None
        assert (found.state == "used") <= (found.text_accuracy_limit <= 0.55)
    assert {kind for kind in KINDS if reports[kind].state == "used"} >= {
        "replaced_object",
        "replaced_attribute",
        "half_truth",
    }
