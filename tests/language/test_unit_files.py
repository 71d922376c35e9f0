"""Units and foils from files of the authors' form."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.language.unit_files import WrittenUnit, read

RECORD = {
    "image_path": "train2014/1.jpg",
    "original_caption": "A dog on a mat.",
    "entities": ["dog", "mat"],
    "negative_entities": {"dog": [{"negative": "cat", "change_type": "object"}], "mat": []},
    "relations": [
        {
            "subject": "dog",
            "relation_type": "lies_on",
            "object": "mat",
            "negatives": [
                {"change_type": "antonym", "relation_type": "is under"},
                {"change_type": "swap"},
            ],
        }
    ],
    "swap_negatives": [{"negative": "a mat on a dog"}, "a on dog mat"],
}


def written(folder: Path, *files: Any) -> Path:
    for place, records in enumerate(files):
        (folder / f"{place}.json").write_text(json.dumps(records))
    return folder


def test_units_of_a_record(tmp_path: Path) -> None:
    found = read(written(tmp_path, [RECORD]), "key")["a dog on a mat"]
    assert found.units == (
        WrittenUnit("entity", "dog", (("cat",),)),
        WrittenUnit(
            "relation",
            "dog lies on mat",
            (("dog is under mat",), ("mat lies on dog",), ("cat lies on mat",)),
        ),
    )
    assert found.swaps == ("a mat on a dog", "a on dog mat")


def test_a_negative_of_another_change_type_is_not_used(tmp_path: Path) -> None:
    negatives = [*RECORD["relations"][0]["negatives"], {"change_type": "x", "relation_type": "by"}]
    record = {**RECORD, "relations": [{**RECORD["relations"][0], "negatives": negatives}]}
    both = [read(written(tmp_path, [one]), "key")["a dog on a mat"] for one in (RECORD, record)]
    assert both[0] == both[1]


def test_a_negative_of_a_relation_is_drawn_as_often_as_all_foils_of_its_subject(
    tmp_path: Path,
) -> None:
    """As a slow simulation of the authors' `_sample_structured_relation_pair` draws them."""
    foils = [{"negative": name} for name in ("cat", "cow", "fox", "hen", "owl", "pig")]
    record = {**RECORD, "negative_entities": {"dog": foils}}
    unit = read(written(tmp_path, [record]), "key")["a dog on a mat"].units[-1]
    ours, theirs = random.Random(0), random.Random(1)
    drawn = Counter(unit.foil(ours) for _ in range(30_000))
    expected = Counter()
    for _ in range(30_000):
        candidates = ["dog is under mat", "mat lies on dog"]
        candidates.append(f"{theirs.choice(foils)['negative']} lies on mat")
        expected[theirs.choice(candidates)] += 1
    assert drawn.keys() == expected.keys()
    assert all(abs(drawn[text] - expected[text]) < 500 for text in expected)  # 4 deviations


def test_a_caption_without_a_swap_has_an_entity_replaced(tmp_path: Path) -> None:
    foils = {"dog": ["cat", "cow"], "mat": [{"negative": "rug"}], "tree": ["bush"]}
    record = {**RECORD, "swap_negatives": [], "negative_entities": foils}
    record["entities"] = [*foils, "sky"]
    units = read(written(tmp_path, [record]), "key")["a dog on a mat"]
    caption, draws = "A dog on a mat with a dog.", random.Random(0)
    drawn = Counter(units.negative(caption, draws) for _ in range(300))
    expected = {
        (caption.replace(entity, foil, 1), "entity")
        for entity, foil in (("dog", "cat"), ("dog", "cow"), ("mat", "rug"))
    }
    assert drawn.keys() == expected and min(drawn.values()) > 40
    assert units.negative("A cloud.", draws) is None


def test_records_that_cannot_be_read_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [{**RECORD, "entities": 3}, {"entities": []}, {**RECORD, "swap_negatives": [7]}, "text"]
    assert len(read(written(tmp_path, [*bad, {"caption": "A cat"}], RECORD), "key")) == 2
    assert "4 records" in caplog.text and "0.json, record 0" in caplog.text


@pytest.mark.parametrize("files", [[], [[]], [["text"]]])
def test_a_folder_without_records_is_refused(tmp_path: Path, files: list[Any]) -> None:
    with pytest.raises(SettingsError, match=r"cs_clip\.views\.unit_files: no"):
        read(written(tmp_path, *files), "cs_clip.views.unit_files")


def test_a_file_that_is_no_json_is_named_with_the_key(tmp_path: Path) -> None:
    (written(tmp_path, [RECORD]) / "cut.json").write_text("[{")
    with pytest.raises(
        SettingsError, match=r"cs_clip\.views\.unit_files: .*cut\.json is not valid"
    ):
        read(tmp_path, "cs_clip.views.unit_files")
