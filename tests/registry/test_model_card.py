"""The card says what the run measured, and the hub can read its header."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from tests.registry.asked import embedded

from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.models.loading import load
from compo_pipeline.registry.registration import write_card
from compo_pipeline.registry.settings import RegistrationSettings
from compo_scenes import scenes_base

MANIFEST = {"data_hash": "d" * 64, "count": 1234}
NOTED = {
    "name": "scenes-base",
    "method": "clic",
    "variant": "default",
    "seed": 7,
    "precision": "fp16",
    "checkpoint_sha256": "c" * 64,
    "training": {
        "fingerprint": {"objective": {"positives": 4}, "seed": 7, "code": "x"},
        "steps": 900,
        "planned_steps": 2400,
        "selected": {"rule": "best", "step": 600, "by": "val/loss", "value": 1.23456, "base": 2.5},
        "compute": {"device": "cuda", "hardware": "A100", "precision": "bf16", "threads": 8},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "compo.json").write_text(json.dumps(NOTED))
    return tmp_path


def written(folder: Path, comparison: Comparison, licence: str | None = None) -> str:
    settings = RegistrationSettings(licence=licence)
    return write_card(folder, settings, MANIFEST, (), comparison, "run7").read_text()


def test_numbers_are_the_runs_own(folder: Path, comparison: Comparison) -> None:
    text = written(folder, comparison)
    row = comparison.rows[0]
    ours = row.estimate
    line = f"| {row.label} | 40 | 50.0 | 95.0 [{ours.low:.1f}, {ours.high:.1f}] | +45.0 ["
    assert line in text
    for said in (
        "toy, 1,234 files",
        "d" * 64,
        "c" * 64,
        "`run7`",
        "fp16",
        "bf16 on cuda (A100)",
        "- Steps: 900 of 2400; weights of step 600, the best by `val/loss` (1.235; the base 2.5)",
        "# compo-clip: CLIC",
    ):
        assert said in text
    settings = yaml.safe_load(text.partition("```yaml")[2].partition("```")[0])
    assert settings == {"objective": {"positives": 4}, "seed": 7}


def test_limits_are_what_the_run_showed(folder: Path, comparison: Comparison) -> None:
    limits = written(folder, comparison).partition("## Limits")[2]
    assert "Significantly worse than its base: Retrieval text to image R@1." in limits
    assert "Not significantly better than guessing: Retrieval text to image R@1." in limits
    assert "2 of 40 items have no usable image (missing)" in limits
    assert "Trained on 1 of 40 images and on 3 of 40 captions of Retrieval raw." in limits
    clean = replace(comparison, rows=comparison.rows[:1], audits=(), overlaps=())
    limits = written(folder, clean).partition("## Limits")[2]
    assert "worse" not in limits and "guessing" not in limits and "Trained on" not in limits


def test_header_is_the_hubs(folder: Path, comparison: Comparison) -> None:
    rows = comparison.rows[0], replace(comparison.rows[1], name="split")
    card = ModelCard(written(folder, replace(comparison, rows=rows)))
    assert card.data.license == "other"
    assert card.data.library_name == "open_clip"
    results = card.data.eval_results
    assert [(each.metric_type, each.metric_value) for each in results] == [
        ("i2t_r1", 95.0),
        ("t2i_r1", 50.0),
    ]
    rewritten = ModelCard(str(card)).data.eval_results
    assert [each.dataset_name for each in rewritten] == ["Retrieval raw", "Retrieval split"]


def test_a_licence_is_never_made_up(folder: Path, comparison: Comparison) -> None:
    (folder / "compo.json").write_text(json.dumps({**NOTED, "name": "hf-hub:timm/ViT-B-16"}))
    text = written(folder, comparison)
    card = ModelCard(text)
    assert (card.data.license, card.data.base_model) == ("other", "timm/ViT-B-16")
    assert "those of the base and of the data apply" in text
    assert ModelCard(written(folder, comparison, "mit")).data.license == "mit"


def test_roles_that_were_not_measured_are_limits(folder: Path, comparison: Comparison) -> None:
    rows = (replace(comparison.rows[0], benchmark="sugar_crepe_pp"),)
    measured, settings = replace(comparison, rows=rows), RegistrationSettings()
    card = write_card(folder, settings, MANIFEST, (), measured, "run7", waive=("zero_shot",))
    text = card.read_text()
    assert "- Retrieval was not measured.\n" in text
    zero_shot = "- Zero-shot classification was not measured. The promotion gate waives it"
    assert zero_shot in text and "Composition was not measured" not in text


PROJECT = Path(__file__).parents[2]
# Its image tower drops paths and normalises over batches: in training mode it scores otherwise.
BASE = scenes_base()
DOCUMENTS = (PROJECT / "docs/how-to/export.md", BASE / "README.md")


def example(document: str, image: Path) -> str:
    """The code of the document's example, of the base and an image."""
    blocks = re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)
    (code,) = [block for block in blocks if "open_clip.create_model" in block]
    for pattern, place in ((r'"local-dir:[^"]*"', f"local-dir:{BASE}"),
                           (r'(?<=Image\.open\()"[^"]*"', str(image))):  # fmt: skip
        code, replaced = re.subn(pattern, lambda _, place=place: repr(place), code)
        assert replaced == 1
    return code


def test_the_examples_of_pages_and_card_score_as_the_model(
    folder: Path, comparison: Comparison
) -> None:
    image = folder / "image.png"
    Image.radial_gradient("L").resize((90, 70)).convert("RGB").save(image)
    documents = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    for code in {example(each, image) for each in (*documents, written(folder, comparison))}:
        names: dict[str, Any] = {}
        exec(code, names)
        assert len(names["captions"]) == 2
        u, t = embedded(load(BASE), [Image.open(image)], names["captions"])
        assert names["cosines"] == pytest.approx((u @ t.T)[0].tolist(), abs=1e-5)
