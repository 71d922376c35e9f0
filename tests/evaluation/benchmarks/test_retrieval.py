"""COCO, Flickr30k, DOCCI and IIW: which captions of which images are queries."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.evaluation.benchmarks import BENCHMARKS, Subtask
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.scoring import score


def load(name: str, root: Path) -> list[Subtask]:
    read = BENCHMARKS[name].load
    assert read is not None
    return read(root, root / "images")


def captions(subtask: Subtask) -> dict[str, tuple[str, ...]]:
    return {item.image: item.positives for item in subtask.items}


def karpathy(name: str, split: str, *texts: str, **more: str) -> dict[str, object]:
    sentences = [{"raw": text} for text in texts]
    return {"filename": name, "split": split, "sentences": sentences, **more}


def test_coco_has_a_subtask_for_each_protocol(tmp_path: Path) -> None:
    annotations = [
        {"image_id": 2, "caption": 'A "dog".'},
        {"image_id": 1, "caption": "Cats!"},
        {"image_id": 2, "caption": "..."},
    ]
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]
    content = {"info": {}, "images": images, "annotations": annotations}
    (tmp_path / "captions_val2017.json").write_text(json.dumps(content))
    records = [
        karpathy("c.jpg", "test", "A dog.", "One dog.", filepath="val2014"),
        karpathy("d.jpg", "restval", "A cat.", filepath="val2014"),
    ]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": records}))
    val, test = load("coco", tmp_path)
    assert (val.name, test.name) == ("clic", "karpathy")
    assert val.protocols == test.protocols == ("retrieval",)
    assert captions(val) == {"val2017/a.jpg": ("cats",), "val2017/b.jpg": ("a dog", "...")}
    assert captions(test) == {"val2014/c.jpg": ("A dog.", "One dog.")}


def test_flickr30k_is_its_test_split_under_both_protocols(tmp_path: Path) -> None:
    records = [karpathy("1.jpg", "test", "A Dog."), karpathy("2.jpg", "val", "A cat.")]
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps({"images": records}))
    raw, clic = load("flickr30k", tmp_path)
    assert (raw.name, captions(raw)) == ("karpathy", {"1.jpg": ("A Dog.",)})
    assert (clic.name, captions(clic)) == ("clic", {"1.jpg": ("a dog",)})


def test_long_captions_are_split_into_sentences(tmp_path: Path) -> None:
    text = "A dog sits at 3 p.m. on a mat.  It sleeps.\nIt sleeps."
    rows = [
        {"example_id": "t_0", "split": "test", "image_file": "t_0.jpg", "description": text},
        {"example_id": "q_0", "split": "qual_dev", "image_file": "q.jpg", "description": text},
    ]
    lines = "\n".join(map(json.dumps, rows))
    (tmp_path / "docci_descriptions.jsonlines").write_text(lines)
    (subtask,) = load("docci", tmp_path)
    assert captions(subtask) == {"t_0.jpg": ("A dog sits at 3 p.m. on a mat.", "It sleeps.")}


def test_iiw_finds_the_endings_of_its_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").touch()
    rows = [{"image/key": key, "IIW": "A dog."} for key in ("a", "b")]
    (tmp_path / "iiw_400.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (subtask,) = load("iiw", tmp_path)
    assert list(captions(subtask)) == ["a.png", "b.jpg"]


def test_official_iiw_file(shared: Path) -> None:
    (subtask,) = load("iiw", shared / "benchmarks" / "iiw")
    assert (subtask.name, len(subtask.items)) == ("iiw_400", 40)
    assert all(len(item.positives) > 1 for item in subtask.items)
    assert subtask.items[0].positives[-1].startswith("But the bloom high above")


def test_official_coco_captions(shared: Path) -> None:
    files = list(shared.glob("coco_mini/**/captions_val2017.json"))
    if not files:
        pytest.skip("no captions of COCO's val2017 in the development data")
    (subtask,) = load("coco", files[0].parent)
    assert all(item.image.startswith("val2017/") for item in subtask.items)


def test_a_query_is_right_when_any_of_its_matches_ranks_first(
    tmp_path: Path, embedded: Callable[..., Embedded]
) -> None:
    records = [karpathy("1.jpg", "test", "a", "b"), karpathy("2.jpg", "test", "c")]
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps({"images": records}))
    subtask, _ = load("flickr30k", tmp_path)
    found = embedded(
        images={
            str(tmp_path / "images" / "1.jpg"): [1.0, 0.0],
            str(tmp_path / "images" / "2.jpg"): [0.0, 1.0],
        },
        texts={"a": [1.0, 0.1], "b": [0.1, 1.0], "c": [0.0, 1.0]},
    )
    verdicts = {
        each.key[1]: [row.correct for row in each.rows] for each in score("m", subtask, found)
    }
    assert verdicts["i2t_r1"] == [True, True]
    assert verdicts["t2i_r1"] == [True, False, True]
