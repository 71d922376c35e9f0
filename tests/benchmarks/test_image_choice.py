"""A text and several images, and NegBench: official files, and the scores of hand-made vectors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.benchmarks.conftest import load

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.metrics import metric_values, reported_metrics
from compo_pipeline.evaluation.scoring import score_model

Build = Callable[..., Embedded]


def written(root: Path, name: str, files: Mapping[str, str], **settings: str) -> list[Subtask]:
    """Subtasks of files that are written before."""
    for file, content in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
    return load(name, root, **settings)


def values(
    subtasks: list[Subtask],
    embedded: Build,
    images: Mapping[str, list[float]],
    texts: Mapping[str, list[float]],
) -> dict[str, float]:
    paths = {path for task in subtasks for item in task.items for path in task.paths(item)}
    root = f"{subtasks[0].images}/"
    model = embedded({path: images[path.removeprefix(root)] for path in paths}, texts)
    return metric_values(score_model(subtasks, model, "m").rows)


def test_svo_probes_by_the_word_that_differs(tmp_path: Path, embedded: Build) -> None:
    rows = [
        "sentence,pos_image_id,neg_image_id,subj_neg,verb_neg,obj_neg",
        "x,1,2,True,False,False",
        "x,2,1,True,False,False",
        "x,1,2,False,True,False",
        "x,1,3,False,False,True",  # a tie
        "x,1,2,True,True,False",
        "x,1,2,False,False,False",
    ]
    subtasks = written(tmp_path, "svo_probes", {"svo_probes.csv": "\n".join(rows)})
    assert [sum(task.dropped.values()) for task in subtasks] == [2, 0, 0]
    assert {task.name: len(task.items) for task in subtasks} == {"subj": 2, "verb": 1, "obj": 1}
    images = {"1.jpg": [1.0, 0.0], "2.jpg": [0.0, 1.0], "3.jpg": [1.0, 0.0]}
    found = values(subtasks, embedded, images, {"x": [1, 0.1]})
    assert [found[f"svo_probes/t2i/{name}"] for name in ("subj", "verb", "obj")] == [50, 100, 0]
    assert found["svo_probes/t2i/average"] == 50
    (label, *_) = (m.label for m in reported_metrics({("svo_probes", "t2i", "subj"): 1}))
    assert label == "SVO-Probes subj"


def test_imagecode_orders_frames_by_their_number(tmp_path: Path, embedded: Build) -> None:
    frames = [3 * k for k in range(10)]
    (tmp_path / "images" / "video-1").mkdir(parents=True)
    for frame in frames:
        (tmp_path / "images" / "video-1" / f"img{frame}.jpg").touch()
    sets = {"video-1": {"1": " x", "9": "y", "4": "y"}, "open-images-2": {"0": "x"}}
    video, static = written(tmp_path, "imagecode", {"valid_data.json": json.dumps(sets)})
    assert (video.name, static.name) == ("video", "static")
    first, last, _ = video.items
    assert (first.item, first.image, last.image) == (
        "video-1/1",
        "video-1/img3.jpg",
        "video-1/img27.jpg",
    )
    assert first.positives == ("x",)
    assert first.other_images == tuple(f"video-1/img{k}.jpg" for k in frames if k != 3)
    # A set without its folder has names all the same, so that it is counted as missing.
    assert static.items[0].image == "open-images-2/img0.jpg"
    images: dict[str, list[float]] = {}
    for name, numbers in (("video-1", frames), ("open-images-2", range(10))):
        images |= {f"{name}/img{k}.jpg": [0.0, 0.0, 1.0] for k in numbers}
    images |= {"video-1/img3.jpg": [1, 0, 0], "video-1/img27.jpg": [0, 1, 0]}
    found = values([video, static], embedded, images, {"x": [1, 0, 0], "y": [0, 1, 0]})
    assert found["imagecode/t2i/video"] == pytest.approx(200 / 3)
    assert found["imagecode/t2i/static"] == 0  # ten equal images
    assert found["imagecode/t2i/average"] == 50


def test_official_imagecode_file(shared: Path) -> None:
    benchmark = BENCHMARKS["imagecode"]
    assert benchmark.load is not None
    subtasks = benchmark.load(shared / "benchmarks" / "imagecode", Path("i"))
    items = {item.item: item for task in subtasks for item in task.items}
    first = items["open-images-1815_f91d6f546e63f20d/5"]
    assert first.image.endswith("/img5.jpg") and len(first.other_images) == 9
    assert {task.name for task in subtasks} == {"static", "video"}


def test_spec_both_ways(tmp_path: Path, embedded: Build) -> None:
    names = "absolute_size relative_size absolute_spatial relative_spatial existence count"
    subsets = names.split()
    files = {}
    for subset in subsets:
        label = int(subset != "count")  # right but in one subset
        files |= {
            f"{subset}/image2text.json": json.dumps(
                [{"query": "a.jpg", "keys": ["y", "x", "z"], "label": label}]
            ),
            f"{subset}/text2image.json": json.dumps(
                [{"query": "x", "keys": ["b.jpg", "a.jpg"], "label": label}]
            ),
        }
    subtasks = written(tmp_path, "spec", files)
    images = {f"{subset}/a.jpg": [1.0, 0.0] for subset in subsets}
    images |= {f"{subset}/b.jpg": [0.0, 1.0] for subset in subsets}
    found = values(subtasks, embedded, images, {"x": [1, 0], "y": [0, 1], "z": [0.5, 1]})
    assert found["spec/accuracy/image2text"] == pytest.approx(500 / 6)
    assert found["spec/t2i/text2image"] == pytest.approx(500 / 6)
    assert found["spec/accuracy/image2text_count"] == 0


FIELDS = "image_path,caption_0,caption_1,caption_2,caption_3,correct_answer,correct_answer_template"
CHOICES = f"""{FIELDS}
/far/coco/val2017/a.jpg,x,y,z,y,0,positive
/far/coco/val2017/a.jpg,x,y,z,y,0,positive
/far/coco/val2017/b.jpg,x,y,z,y,0,negative
/far/coco/val2017/b.jpg,y,"y ",z,x,0,hybrid
"""


@pytest.mark.parametrize(("ties", "hybrid"), [("strict", 0), ("official", 100)])
def test_negbench_multiple_choice(
    tmp_path: Path, embedded: Build, ties: str, hybrid: float
) -> None:
    name = "COCO_val_mcq_llama3.1_rephrased"
    (tmp_path / "images" / "val2017").mkdir(parents=True)
    for image in "ab":
        (tmp_path / "images" / "val2017" / f"{image}.jpg").touch()
    subtasks = written(tmp_path, "negbench", {f"{name}.csv": CHOICES}, ties=ties)
    images = {"val2017/a.jpg": [1.0, 0.0], "val2017/b.jpg": [0.0, 1.0]}
    texts = {"x": [1, 0], "y": [0, 1], "y ": [0, 1], "z": [0.5, 1]}
    found = values(subtasks, embedded, images, texts)
    scores = [found[f"negbench/accuracy/{name}_{kind}"] for kind in ("positive", "negative")]
    assert scores == [100, 0]
    assert all(bool(task.deviations) == (ties == "strict") for task in subtasks)
    assert found[f"negbench/accuracy/{name}_hybrid"] == hybrid
    assert found[f"negbench/accuracy/{name}"] == pytest.approx((200 + hybrid) / 4)


def test_negbench_retrieval_and_two_choices(tmp_path: Path, embedded: Build) -> None:
    files = {
        "COCO_val_retrieval.csv": (
            'filepath,captions\n/far/a.jpg,"[\'x\', ""no y\'s""]"\n/far/b.jpg,[\'y\']\n'
        ),
        "binary.csv": "image_path,caption_0,caption_1,correct_answer\na.jpg,y,x,1\na.jpg,x,y,0\n",
    }
    retrieval, binary = written(tmp_path, "negbench", files, ties="official")
    assert (binary.items[0].positives, binary.items[0].negatives) == (("x",), ("y",))
    assert not binary.ties_right  # the right answer is not always the first
    assert retrieval.items[0].positives == ("x", "no y's")
    assert (retrieval.items[0].image, binary.name) == ("a.jpg", "binary")
    texts = {"x": [1, 0], "y": [0, 1], "no y's": [0.4, 1]}
    images = {"a.jpg": [1.0, 0.0], "b.jpg": [0.0, 1.0]}
    found = values([retrieval, binary], embedded, images, texts)
    assert found["negbench/t2i_r1/COCO_val_retrieval"] == pytest.approx(200 / 3)
    assert found["negbench/accuracy/binary"] == 100
