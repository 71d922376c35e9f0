"""COCO, Flickr30k, DOCCI, IIW and Urban-1k: which captions of which images are queries."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.settings import SettingsError
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


def test_flickr8k_is_its_test_split(tmp_path: Path) -> None:
    records = [karpathy("1.jpg", "test", "A Dog.", "Dogs"), karpathy("2.jpg", "train", "A cat.")]
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"images": records}))
    (raw,) = load("flickr8k", tmp_path)
    assert (raw.name, captions(raw)) == ("karpathy", {"1.jpg": ("A Dog.", "Dogs")})


def test_long_captions_are_split_into_sentences(tmp_path: Path) -> None:
    text = "A dog sits at 3 p.m. on a mat.  It sleeps.\nIt sleeps."
    rows = [
        {"example_id": "t_0", "split": "test", "image_file": "t_0.jpg", "description": text},
        {"example_id": "q_0", "split": "qual_dev", "image_file": "q.jpg", "description": text},
    ]
    lines = "\n".join(map(json.dumps, rows))
    (tmp_path / "docci_descriptions.jsonlines").write_text(lines)
    sentences, whole = load("docci", tmp_path)
    assert (sentences.name, whole.name) == ("test", "test_whole")
    assert captions(sentences) == {"t_0.jpg": ("A dog sits at 3 p.m. on a mat.", "It sleeps.")}
    assert captions(whole) == {"t_0.jpg": ("A dog sits at 3 p.m. on a mat. It sleeps. It sleeps.",)}
    assert sentences.protocols == whole.protocols == ("retrieval",)


def test_urban1k_has_a_text_file_for_each_image(tmp_path: Path) -> None:
    for folder in ("caption", "image", "images"):
        (tmp_path / folder).mkdir()
    for name, text in {
        "0": "A long street. A bus.\n",
        "1": "A square. Two dogs.\nNotes.\n",
    }.items():
        (tmp_path / "caption" / f"{name}.txt").write_text(text)
        (tmp_path / "image" / f"{name}.jpg").touch()
    sentences, whole = load("urban1k", tmp_path)
    assert captions(sentences)["0.jpg"] == ("A long street.", "A bus.")
    # Of the official evaluation: readlines()[0].
    assert captions(whole) == {
        "0.jpg": ("A long street. A bus.",),
        "1.jpg": ("A square. Two dogs.",),
    }
    assert all(whole.path(item).is_file() for item in whole.items)
    (tmp_path / "image").rename(tmp_path / "elsewhere")
    assert {task.images for task in load("urban1k", tmp_path)} == {tmp_path / "images"}


def test_urban1k_without_captions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no caption/\*\.txt in"):
        load("urban1k", tmp_path)
    (tmp_path / "caption").mkdir()
    for content in (b"", b" \n", "é".encode("latin-1")):
        (tmp_path / "caption" / "7.txt").write_bytes(content)
        with pytest.raises(SettingsError, match=r"caption/7\.txt"):
            load("urban1k", tmp_path)


def test_iiw_finds_the_endings_of_its_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").touch()
    rows = [{"image/key": key, "IIW": "A dog."} for key in ("a", "b")]
    (tmp_path / "iiw_400.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for subtask in load("iiw", tmp_path):
        assert list(captions(subtask)) == ["a.png", "b.jpg"]


# The five files of the release and their fields, by the READMEs beside them.
IIW_RELEASE = {
    "IIW-400": {"image/key": "aar_test_04600", "IIW": "A dog.", "IIW-P5B": "A cat."},
    "DCI_Test": {"image": "sa_1545038.jpg", "ex_id": "113029-data.json", "IIW": "A dog."},
    "DOCCI_Test": {"image": "test_00731", "DOCCI": "A cat.", "IIW": "A dog."},
    "CM_3600": {"image/key": "5fc4c61f4f8956ff", "image/source": "5fc4", "IIW-P5B": "A dog."},
    "LocNar_Eval": {"image/key": "08c26653adb55dd0", "image/source": "08c_79", "IIW-P5B": "A dog."},
}


def test_all_files_of_the_release_of_iiw(tmp_path: Path) -> None:
    for name, row in IIW_RELEASE.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.jsonl").write_text(json.dumps(row))
        (tmp_path / name / "README.md").touch()
    (tmp_path / "images" / "dci").mkdir(parents=True)
    for image in ("dci/sa_1545038.jpg", "dci/test_00731.jpeg", "test_00731.png", "5fc4.jpg"):
        (tmp_path / "images" / image).touch()
    found = {task.name: captions(task) for task in load("iiw", tmp_path)}
    for name in tuple(found):
        if not name.endswith("_whole"):
            assert found.pop(f"{name}_whole") == found[name]  # captions of one sentence
    assert found == {
        "iiw_400": {"aar_test_04600.jpg": ("A dog.",)},
        "dci_test": {"dci/sa_1545038.jpg": ("A dog.",)},
        "docci_test": {"test_00731.png": ("A dog.",)},
        "cm_3600": {"5fc4c61f4f8956ff.jpg": ("A dog.",)},
        "locnar_eval": {"08c26653adb55dd0.jpg": ("A dog.",)},
    }
    (tmp_path / "dci_test.jsonl").write_text(json.dumps(IIW_RELEASE["DCI_Test"]))
    with pytest.raises(SettingsError, match="two files are of the set dci_test"):
        load("iiw", tmp_path)


def test_official_iiw_file(shared: Path) -> None:
    subtask, whole = load("iiw", shared / "benchmarks" / "iiw")
    assert (subtask.name, len(subtask.items)) == ("iiw_400", 40)
    assert (whole.name, len(whole.items)) == ("iiw_400_whole", 40)
    for item, long in zip(subtask.items, whole.items, strict=True):
        assert all(sentence in long.positives[0] for sentence in item.positives)
    assert all(len(item.positives) > 1 for item in subtask.items)
    assert subtask.items[0].positives[-1].startswith("But the bloom high above")


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
