"""Each paper's recipe takes two steps on images and captions in its own format."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kedro.framework.session import KedroSession
from PIL import Image
from safetensors.torch import load_file

from compo_pipeline.models.weights import WEIGHTS_FILE

COLOURS = ("red", "blue", "green", "black", "white", "yellow")
THINGS = ("dog", "cat", "horse", "boat", "chair", "umbrella")
IMAGES = 12


def captions(number: int) -> tuple[str, str]:
    """Two captions of one image."""
    one, two = (THINGS[(number + step) % 6] for step in (0, 1 + number // 6))
    first, second = (COLOURS[(number + step) % 6] for step in (0, 3))
    return (
        f"A {first} {one} next to a {second} {two}.",
        f"There is a {second} {two} behind the large {first} {one} on the grass.",
    )


def write_image(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def coco(root: Path) -> int:
    """COCO's own layout, two captions an image."""
    for split, numbers in (("train2017", range(IMAGES)), ("val2017", range(90, 92))):
        annotations = [
            {"id": 10 * n + place, "image_id": n, "caption": text}
            for n in numbers
            for place, text in enumerate(captions(n))
        ]
        images = [{"id": n, "file_name": f"{n:012}.jpg"} for n in numbers]
        for image in images:
            write_image(root / split / image["file_name"], image["id"])
        (root / "annotations").mkdir(exist_ok=True)
        content = {"images": images, "annotations": annotations}
        (root / "annotations" / f"captions_{split}.json").write_text(json.dumps(content))
    return 2 * IMAGES


def coco_2014(root: Path) -> int:
    """The same, under the names of COCO's first release."""
    rows = coco(root)
    (root / "train2017").rename(root / "train2014")
    annotations = root / "annotations"
    (annotations / "captions_train2017.json").rename(annotations / "captions_train2014.json")
    return rows


def neg_clip(root: Path) -> int:
    """NegCLIP's files, two captions an image."""
    for name, numbers in (("train", range(IMAGES)), ("valid", range(90, 100))):
        with (root / f"{name}_neg_clip.tsv").open("w", newline="") as file:
            rows = csv.writer(file, delimiter="\t")
            rows.writerow(["", "title", "filepath", "neg_caption", "neg_image"])
            for number in numbers:
                image = f"coco/{name}2014/{number:012}.jpg"
                write_image(root / image, number)
                for text in captions(number):
                    rows.writerow([number, text, image, [text[::-1]], [1, 2, 3]])
    return 2 * IMAGES


def img2dataset(root: Path) -> int:
    """A shard of img2dataset's in which one link was dead, one caption an image."""
    rows = []
    for number in range(IMAGES):
        caption, by_coca = captions(number)
        row = {"key": f"{number:09}", "status": "success", "error_message": None}
        rows.append({**row, "caption": caption, "coca_captions": by_coca})
        write_image(root / "00000" / f"{row['key']}.jpg", number)
    dead = {"key": "000000099", "status": "failed_to_download", "error_message": "404"}
    rows.append({**dead, "caption": "A dog.", "coca_captions": ""})
    pq.write_table(pa.Table.from_pylist(rows), root / "00000.parquet")
    return IMAGES


def dreamlip(root: Path) -> int:
    """DreamLIP's file, and a shard of what img2dataset fetched of it: one link was dead."""
    shard = []
    with (root / "cc3m_3long_3short_1raw_captions_url.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Image Path", "raw_caption", "shortLLA_captions", "longLLA_captions"])
        for number in [*range(IMAGES), 99]:
            address, key = f"https://example.org/{number}.jpg", f"{number:09}"
            short, long = captions(number % IMAGES)
            rows.writerow([address, "sofa", short, long])
            status = "failed_to_download" if number == 99 else "success"
            shard.append({"url": address, "key": key, "status": status, "error_message": None})
            if status == "success":
                write_image(root / "00000" / f"{key}.jpg", number)
    pq.write_table(pa.Table.from_pylist(shard), root / "00000.parquet")
    return IMAGES


def pixelprose(root: Path) -> int:
    """A file of each subset of PixelProse's, and the images that img2dataset fetched."""
    rows = []
    for number in range(IMAGES):
        key = f"{number:09}"
        text = f"This image displays {captions(number)[0]} {captions(number)[1]}"
        rows.append({"uid": f"u{number}", "key": key, "vlm_caption": text, "status": "success"})
        write_image(root / "00000" / f"{key}.jpg", number)
    for name in ("redcaps", "cc12m"):
        pq.write_table(pa.Table.from_pylist(rows), root / f"vlm_captions_{name}_00.parquet")
    return IMAGES


def cogvlm_laion(root: Path) -> int:
    """The authors' CSV without a header, and the images under the names of their addresses."""
    with (root / "laion_00.csv").open("w", newline="") as file:
        for number in range(IMAGES):
            text = " ".join(captions(number))
            csv.writer(file).writerow([f"https://example.org/{number}.jpg", text])
            write_image(root / "images" / f"{number}.jpg", number)
    return IMAGES


# By environment: the data's format and its dead link, the base, the method, and the towers that
# it trains.
RECIPES = {
    "coco": (coco, None, "tiny_clip", "clic", {"text"}),
    "redcaps": (pixelprose, None, "tiny_clip", "clic", {"text"}),
    "cc12m": (pixelprose, None, "tiny_clip", "clic", {"text"}),
    "laion": (cogvlm_laion, None, "tiny_clip", "clic", {"text"}),
    "fsc_coco": (neg_clip, None, "tiny_clip", "fsc_clip", {"image", "text"}),
    "fsc_cc3m": (img2dataset, "train-000000099", "tiny_clip", "fsc_clip", {"image", "text"}),
    "fsc_laion_coco": (img2dataset, "train-000000099", "tiny_clip", "fsc_clip", {"image", "text"}),
    "siglip_cc3m": (dreamlip, "train-12", "tiny_siglip", "c2lip", {"image", "text"}),
    "sparcl_coco": (coco_2014, None, "tiny_clip", "sparcl", {"image", "text"}),
}


STAGES = ("raw", "ingest", "validation", "foils", "counterfactuals", "views", "training")


def two_steps(root: Path, base: Path) -> dict[str, Any]:
    """`--params` of a training of two steps on a small base."""
    return {
        "data": {"root": str(root)},
        "model": {"name": f"local-dir:{base}", "pretrained": None},
        "training": {
            "max_steps": 2,
            "optimizer": {"warmup_steps": 1},
            "batch_size": 5,  # of 12 images one may be carved
            "contrast_group": None,
            "workers": 0,
            "log_every": 1,
            "device": "cpu",
        },
        "benchmarks": {"root": None},
        # Images of counterfactuals take a diffusion model.
        "counterfactuals": {"image_generator": None},
        # FSC-CLIP's take WordNet.
        "fsc_clip": {"views": {"replacements": "lexicon"}},
    }


@pytest.mark.slow
@pytest.mark.usefixtures("bootstrapped")
@pytest.mark.parametrize("env", RECIPES)
def test_two_steps_on_data_in_the_recipes_own_format(
    workspace, request, tmp_path, monkeypatch, env
):
    """Data to a checkpoint by Kedro's own session; only the sizes are not the recipe's."""
    monkeypatch.chdir(workspace)
    written, dead, base, method, trains = RECIPES[env]
    tiny = request.getfixturevalue(base)
    rows = written(tmp_path)
    runtime = two_steps(tmp_path, tiny)
    with KedroSession.create(workspace, env=env, runtime_params=runtime) as session:
        session.run(pipeline_names=STAGES)
        catalog = session.load_context().catalog
    captions = catalog.load("valid_captions")
    train = [row for row in captions if row.split in ("train", "carved")]
    assert ("carved" in {row.split for row in captions}) == (env != "fsc_coco")
    assert len(train) == rows, catalog.load("quarantine")
    quarantined = [row.sample_id for row in catalog.load("quarantine")]
    assert quarantined == ([dead] if dead else [])
    curves = catalog.load("training_curves")
    assert list(curves["step"]) == [1, 2]
    assert np.isfinite(curves["loss"]).all()
    assert catalog.load("run")["method"] == method
    checkpoint = catalog.load("checkpoint")
    assert moved_towers(tiny / WEIGHTS_FILE, checkpoint / WEIGHTS_FILE) == trains
    last = max(catalog.load("views").glob("epoch=*.parquet"))
    views = pd.read_parquet(last)
    drawn = 1 if env in ("redcaps", "cc12m", "laion", "siglip_cc3m") else 5
    assert last.name == f"epoch={drawn - 1:02}.parquet"
    if method == "c2lip":
        assert all(len(phrases) >= 2 for phrases in views["phrases"])
    else:
        negatives = [text for row in views["negatives"] for text in row]
        assert sum(text is not None for text in negatives) > 0.7 * len(negatives)


def moved_towers(before: Path, after: Path) -> set[str]:
    """The towers in which a weight changed."""
    old, new = load_file(before), load_file(after)
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    return {"image" if name.startswith("visual.") else "text" for name in moved}


@pytest.mark.slow
@pytest.mark.usefixtures("bootstrapped")
def test_siglip_s_token_embedding_stays_where_the_recipe_freezes_it(
    workspace, tiny_siglip, tmp_path, monkeypatch
):
    """By the name that it has in CLIP, which the demo's recipe freezes."""
    monkeypatch.chdir(workspace)
    dreamlip(tmp_path)
    runtime = {**two_steps(tmp_path, tiny_siglip), "variant": "frozen"}
    runtime["training"]["frozen"] = ["token_embedding"]
    with KedroSession.create(workspace, env="siglip_cc3m", runtime_params=runtime) as session:
        session.run(pipeline_names=STAGES)
        checkpoint = session.load_context().catalog.load("checkpoint")
    old, new = (load_file(each / WEIGHTS_FILE) for each in (tiny_siglip, checkpoint))
    kept = {name for name in old if torch.equal(old[name], new[name])}
    assert "text.token_embedding.weight" in kept
    assert "text.positional_embedding" not in kept
