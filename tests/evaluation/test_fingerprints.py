"""The fingerprint of scores changes with everything that they depend on, and with nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.data.images.decoding import Limits
from compo_pipeline.evaluation.evaluate import ScoresFingerprint, scores_fingerprints
from compo_pipeline.evaluation.settings import EvaluationSettings

EVALUATION = EvaluationSettings(device="cpu")


@pytest.fixture
def subtask(tmp_path: Path) -> Subtask:
    """Four random images, each with two right texts and a wrong one."""
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    items = tuple(
        Item(f"{k}", f"{k}.png", (f"cup {k}", f"a cup is {k}"), (f"key {k}",)) for k in range(4)
    )
    return Subtask("sugar_crepe_pp", "swap_att", ("image_to_text",), tmp_path, items)


def test_another_benchmark_changes_no_fingerprint_of_the_first(subtask: Subtask) -> None:
    other = replace(subtask, benchmark="sugar_crepe")
    changed = replace(other, items=other.items[1:])
    one, two = scores_fingerprints([subtask, other], EVALUATION)
    again, anew = scores_fingerprints([subtask, changed], EVALUATION)
    assert one == again and two.differences(anew) == ["items", "images"]


def test_the_fingerprint_changes_with_everything_that_scores_depend_on(subtask: Subtask) -> None:
    def fingerprint(task: Subtask, settings: EvaluationSettings) -> ScoresFingerprint:
        (found,) = scores_fingerprints([task], settings)
        return found

    ours = fingerprint(subtask, EVALUATION)
    assert fingerprint(subtask, replace(EVALUATION, image_batch=7, workers=1)) == ours
    exact = fingerprint(subtask, replace(EVALUATION, precision="bf16"))
    assert ours.differences(exact) == ["settings"]
    reworded = replace(subtask.items[0], negatives=("keys",))
    asked = replace(subtask, items=(reworded, *subtask.items[1:]))
    assert ours.differences(fingerprint(asked, EVALUATION)) == ["items"]
    for readers in ({"deviations": ("ties",)}, {"dropped": {"symmetric": 1}}, {"title": "own"}):
        reported: dict[str, Any] = readers
        assert fingerprint(replace(subtask, **reported), EVALUATION) == ours
    turned = replace(subtask, limits=Limits(exif=False))
    assert ours.differences(fingerprint(turned, EVALUATION)) == ["items"]
    image = subtask.images / "0.png"
    before = image.read_bytes()
    try:
        Image.new("RGB", (32, 32), "grey").save(image)
        assert ours.differences(fingerprint(subtask, EVALUATION)) == ["images"]
        image.unlink()
        assert ours.differences(fingerprint(subtask, EVALUATION)) == ["images"]
    finally:
        image.write_bytes(before)
    assert fingerprint(subtask, EVALUATION) == ours
