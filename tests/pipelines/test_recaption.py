"""Recaptions between the source and ingest: rows, counts, samples, dry runs."""

import base64
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.core.files import write_files
from compo_pipeline.core.records import Recaption
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.core.tables import Table
from compo_pipeline.data.readers import locate
from compo_pipeline.data.settings import DataSettings, SampleSettings, SourceSettings
from compo_pipeline.generation.recaption.settings import RecaptionSettings
from compo_pipeline.pipelines.ingest.nodes import ingest_captions, recaption_images
from compo_pipeline.pipelines.validation.nodes import validate_facts
from compo_pipeline.project.settings import Parameters

IMAGES = 6
NEW = "The image shows a dog on a red sofa. It sleeps in the warm sun."


@pytest.fixture
def coco(tmp_path: Path) -> DataSettings:
    """Images in COCO's layout with two captions each; the last one is damaged."""
    root = tmp_path / "coco"
    (root / "annotations").mkdir(parents=True)
    (root / "train2017").mkdir()
    images, annotations = [], []
    for number in range(IMAGES):
        name = f"{number}.png"
        Image.new("RGB", (48, 32), (40 * number, 90, 30)).save(root / "train2017" / name)
        images.append({"id": number, "file_name": name})
        for other in range(2):
            text = f"Caption {other} of the image {number}."
            entry = {"id": 10 * number + other, "image_id": number, "caption": text}
            annotations.append(entry)
    (root / "train2017" / f"{IMAGES - 1}.png").write_bytes(b"no image")
    content = {"images": images, "annotations": annotations}
    (root / "annotations" / "captions_train2017.json").write_text(json.dumps(content))
    return DataSettings(root, "coco_captions", {"train": "train2017"})


@pytest.fixture
def chain(chat: Any, shipped: Parameters, tmp_path: Path) -> Callable[..., Any]:
    """Recaptions and captions of a source: results of both, by name."""

    def run(data: DataSettings, carve: int = 0, **changes: Any) -> dict[str, Any]:
        endpoint = {"url": chat.url, "model": "fake", "timeout": 60.0}
        given = {"captioner": "endpoint", "endpoint": endpoint, **changes}
        settings = parse(RecaptionSettings, given, "recaption")
        ingest, source = replace(shipped.ingest, journal=None), locate(data)
        made, refused, counts, shown = recaption_images(
            source, data, ingest, settings, "compo_en", shipped.prepare, carve,
            str(tmp_path / "state"), "a dataset",
        )  # fmt: skip
        page = tmp_path / "page"
        write_files(shown, page)
        write_rows(tmp_path / "recaptions.parquet", made, Recaption)
        stored = Table.open(tmp_path / "recaptions.parquet", Recaption)
        results = ingest_captions(
            source, data, ingest, shipped.prepare, carve, settings, stored, list(refused)
        )
        names = ("captions", "facts", "unparseable", "report", "manifest")
        return {
            **dict(zip(names, results, strict=True)),
            "made": made,
            "counts": counts,
            "page": page,
        }

    return run


def test_one_row_an_image(chat: Any, coco: DataSettings, chain: Any, shipped: Parameters) -> None:
    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        _, _, content = body["messages"][0]["content"][0]["image_url"]["url"].partition(",")
        red, _, _ = Image.open(io.BytesIO(base64.b64decode(content))).getpixel((5, 5))
        turn.say("I'm sorry, I can't help with that." if red < 20 else NEW)

    chat.script = script
    found = chain(coco)
    captions = list(found["captions"])
    recaptioned = [row for row in captions if row.image != f"train2017/{IMAGES - 1}.png"]
    assert len(chat.seen) == IMAGES - 1
    assert [row.sample_id for row in recaptioned] == [f"train-{10 * n}" for n in range(1, 5)]
    for row in recaptioned:
        assert row.sentences == ("a dog on a red sofa.", "It sleeps in the warm sun.")
    # Of the damaged image both rows go on, and are found by the rules of images.
    assert len(captions) - len(recaptioned) == 2
    (rejected,) = found["unparseable"]
    assert (rejected.rule, rejected.image) == ("recaption", "train2017/0.png")
    assert rejected.detail.startswith("refusal: ")
    counts = found["report"]["recaptions"]
    assert counts == {"recaptioned": 4, "merged": 5, "rejected": 1, "unreadable": 2}
    assert sum(counts.values()) == 2 * IMAGES
    measured = found["facts"], found["unparseable"], found["report"]
    quarantine, result, _ = validate_facts(*measured, shipped.validation)
    assert {entry.rule for entry in quarantine} == {"recaption", "image_decodes"}
    assert result["records"] == len(captions) + 1
    html = (found["page"] / "recaptions.html").read_text()
    assert html.count('<article class="card">') == 4 + 2
    assert html.count('<p class="problem">') == 2


def test_a_first_sentence_that_captions_share_is_a_warning(
    chat: Any, coco: DataSettings, chain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chat.script = lambda turn, number, body: turn.say(f"A photo. It shows {number} dogs on a sofa.")
    assert chain(coco)["counts"]["shared_first_sentences"] == {"A photo.": IMAGES - 1}
    assert f"{IMAGES - 1} of {IMAGES - 1} captions begin with 'A photo.'" in caplog.text
    chat.script = lambda turn, number, body: turn.say(f"A photo of {number} dogs. It is new.")
    other = chain(coco, prompt="What do you see?")["counts"]
    assert other["captions"] == IMAGES - 1 and other["shared_first_sentences"] == {}


def test_originals_stay(chat: Any, coco: DataSettings, chain: Any) -> None:
    chat.script = lambda turn, number, body: turn.say(NEW)
    first, *_ = chain(coco, keep_original=True)["captions"]
    assert first.sentences[2:] == ("Caption 0 of the image 0.", "Caption 1 of the image 0.")


def test_without_a_captioner_nothing_is_asked(chat: Any, coco: DataSettings, chain: Any) -> None:
    found = chain(coco, captioner=None)
    assert chat.seen == []
    assert len(found["captions"]) == 2 * IMAGES and found["report"]["recaptions"] is None
    assert not (found["page"] / "recaptions.html").exists()
    chat.script = lambda turn, number, body: turn.say(NEW)
    other = chain(coco)
    assert other["manifest"]["data_hash"] != found["manifest"]["data_hash"]
    assert other["manifest"]["count"] == found["manifest"]["count"]
    assert (found["page"] / "recaptions.html").exists()


@pytest.mark.parametrize("carve", [0, 2])
def test_only_images_of_the_sample_are_asked_about(
    chat: Any, coco: DataSettings, chain: Any, carve: int
) -> None:
    """And those that the sample leaves, where some are held out."""
    chat.script = lambda turn, number, body: turn.say(NEW)
    found = chain(replace(coco, sample=SampleSettings(rows=2)), carve)
    rows = found["captions"]
    assert len(chat.seen) == len({row.image for row in rows if row.width})
    assert len({row.split for row in rows}) == 1 + (carve > 0)
    assert len({row.image for row in rows}) <= 2 + carve


def test_splits_that_keep_their_captions(chat: Any, coco: DataSettings, chain: Any) -> None:
    shutil.copytree(coco.root / "train2017", coco.root / "val2017")
    annotations = coco.root / "annotations" / "captions_train2017.json"
    shutil.copy(annotations, annotations.with_name("captions_val2017.json"))
    both = replace(coco, splits={"train": "train2017", "test": "val2017"})
    chat.script = lambda turn, number, body: turn.say(NEW)
    found = chain(both, splits=["train"])
    held_out = [row for row in found["captions"] if row.split == "test"]
    assert len(held_out) == 2 * IMAGES
    assert held_out[0].sentences == ("Caption 0 of the image 0.", "Caption 1 of the image 0.")
    assert {row.image.partition("/")[0] for row in found["made"]} == {"train2017"}


def test_images_of_several_sources(chat: Any, coco: DataSettings, chain: Any) -> None:
    """Images with the same bytes have one answer."""
    for name in ("one", "other"):
        shutil.copytree(coco.root, coco.root.with_name("all") / name)
    sources = {"one": SourceSettings(), "other": SourceSettings(weight=2.0)}
    chat.script = lambda turn, number, body: turn.say(NEW)
    found = chain(replace(coco, root=coco.root.with_name("all"), sources=sources))
    rows = [row for row in found["captions"] if row.width]
    assert Counter(row.source for row in rows) == dict.fromkeys(sources, IMAGES - 1)
    assert len(chat.seen) == IMAGES - 1
    alone = chain(coco)["captions"]
    assert {row.sentences for row in rows} == {row.sentences for row in alone if row.width}
    assert found["report"]["recaptions"]["recaptioned"] == 2 * (IMAGES - 1)


def test_a_dry_run_asks_about_a_few_images(chat: Any, coco: DataSettings, chain: Any) -> None:
    chat.script = lambda turn, number, body: turn.say(NEW)
    with pytest.raises(SettingsError):  # of ingest, which has no caption of the others
        chain(coco, dry_run=2)
    assert len(chat.seen) == 2
