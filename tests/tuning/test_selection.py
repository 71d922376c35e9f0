"""Items that select weights or settings."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import (
    BenchmarkSet,
    BenchmarksSettings,
    FoilBenchmarkSettings,
    RetrievalSettings,
)
from compo_pipeline.core.records import Caption, Foil
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.training.settings import ValidationSettings
from compo_pipeline.tuning.selection import FOILS_FIGURE, held_out, study_items
from compo_pipeline.tuning.settings import GuardedFigures, ObjectiveSettings

NONE = RetrievalSettings(None)
VALIDATION = BenchmarksSettings(retrieval=NONE, foils=FoilBenchmarkSettings("val"))
REPORTED = BenchmarksSettings(
    retrieval=RetrievalSettings("test"), foils=FoilBenchmarkSettings("test")
)


@pytest.fixture
def captions(tmp_path: Path) -> list[Caption]:
    """Twelve images, a third of each split."""
    found = []
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        split = ("train", "val", "test")[number // 4]
        row = f"s{number}", f"{number}", f"{number}.png", 16, 16, (f"a cup {number}",), "x", split
        found.append(Caption(*row))
    return found


@pytest.fixture
def foils(captions: list[Caption], tmp_path: Path) -> list[Foil]:
    """Of each held-out image one of each of three kinds, of which one is used."""
    states = {"replaced_object": "used", "half_truth": "guessable", "swapped_objects": "few"}
    found = []
    for row in captions[4:]:
        content = hashlib.sha256((tmp_path / row.image).read_bytes()).hexdigest()
        for kind, state in states.items():
            place = row.sample_id, row.image_id, row.image, content
            texts = row.sentences[0], f"a {kind}", row.sentences[0], ("cup", kind)
            name = f"{kind}-{row.sample_id}"
            found.append(Foil(name, kind, row.split, state, *place, *texts, 0.0, name))
    return found


def _names(tasks: list[Subtask]) -> set[tuple[str, str]]:
    return {(task.name, item.item) for task in tasks for item in task.items}


def test_used_kinds_of_the_set_judge_trials(
    captions: list[Caption], foils: list[Foil], tmp_path: Path
) -> None:
    found = study_items(VALIDATION, REPORTED, captions, tmp_path, 1, foils)
    used = {("replaced_object", f"replaced_object-s{number}") for number in range(4, 8)}
    assert _names(found) == used and {task.benchmark for task in found} == {"foils"}


def test_a_set_without_a_used_kind_judges_nothing(
    captions: list[Caption], foils: list[Foil], tmp_path: Path
) -> None:
    unused = [foil for foil in foils if foil.state != "used"]
    with pytest.raises(
        SettingsError, match=r"tuning\.benchmarks.* nothing is scored; name a split"
    ):
        study_items(VALIDATION, REPORTED, captions, tmp_path, 1, unused)
    settings = ValidationSettings(1, figure=FOILS_FIGURE)
    with pytest.raises(SettingsError, match=r"validation\.figure: .* of which no kind is used"):
        held_out(settings, captions, tmp_path, "train", REPORTED, VALIDATION, unused)


def test_foils_of_reported_items_judge_nothing(
    captions: list[Caption], foils: list[Foil], tmp_path: Path
) -> None:
    """One that a file about its image asks about too is left out; retrieval ranks other texts."""
    (tmp_path / "files" / "sugar_crepe").mkdir(parents=True)
    item = {"filename": "5.png", "caption": "a mug", "negative_caption": "a key"}
    (tmp_path / "files" / "sugar_crepe" / "swap_obj.json").write_text(json.dumps({"0": item}))
    sets = {"sugar_crepe": BenchmarkSet()}
    reported = BenchmarksSettings(str(tmp_path / "files"), str(tmp_path), sets, retrieval=NONE)
    with pytest.raises(SettingsError, match=r"^tuning\.benchmarks: the files of sugar_crepe below"):
        study_items(reported, VALIDATION, captions, tmp_path, 1, foils)
    found = study_items(VALIDATION, reported, captions, tmp_path, 1, foils)
    assert {name for _, name in _names(found)} == {f"replaced_object-s{n}" for n in (4, 6, 7)}
    ranked = BenchmarksSettings(retrieval=RetrievalSettings("val"))
    found = study_items(VALIDATION, ranked, captions, tmp_path, 1, foils)
    assert len(_names(found)) == 4
    both = replace(VALIDATION, retrieval=RetrievalSettings("val"))
    with pytest.raises(SettingsError, match="4 of 4 items of retrieval"):
        study_items(both, ranked, captions, tmp_path, 1, foils)
    with pytest.raises(SettingsError, match="4 of 4 items of foils"):
        study_items(
            VALIDATION, replace(ranked, foils=VALIDATION.foils), captions, tmp_path, 1, foils
        )


def test_foils_measure_a_training(
    captions: list[Caption],
    foils: list[Foil],
    tmp_path: Path,
    tiny_model: Callable[..., Path],
) -> None:
    """By the figure that settings name: the share of items of whose texts the caption is closer."""
    import torch

    from compo_pipeline.models.loading import load

    settings = ValidationSettings(1, figure=FOILS_FIGURE)
    measure = held_out(settings, captions, tmp_path, "train", REPORTED, VALIDATION, foils).measure
    model = load(tiny_model(seed=3))
    assert measure is not None
    right = 0
    with torch.no_grad():
        for foil in foils:
            if (foil.split, foil.state) == ("val", "used"):
                pixels = model.preprocess(Image.open(tmp_path / foil.image).convert("RGB"))
                seen = model.model.encode_image(pixels[None], normalize=True)
                texts = model.tokenize([foil.caption, foil.foil])
                one, other = (seen @ model.model.encode_text(texts, normalize=True).T)[0].tolist()
                right += one > other
    assert measure(model)[FOILS_FIGURE] == pytest.approx(100 * right / 4)


OBJECTIVE = ObjectiveSettings(
    ("foils/accuracy/average",),
    retrieval=GuardedFigures(("retrieval/i2t_r1/raw", "retrieval/t2i_r1/raw")),
    without_foils=("retrieval/i2t_r1/raw",),
)


def test_a_study_without_a_used_kind_says_what_it_maximises(caplog: Any) -> None:
    assert OBJECTIVE.of_items({"foils", "retrieval"}) is OBJECTIVE
    assert not caplog.records
    found = OBJECTIVE.of_items({"retrieval"})
    assert found.maximise == ("retrieval/i2t_r1/raw",)
    assert found.retrieval.figures == ("retrieval/t2i_r1/raw",)
    assert "No kind of foils is used: the study maximises retrieval/i2t_r1/raw" in caplog.text
