"""The models of a list are diagnosed by foils that they have not seen."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from PIL import Image

from compo_pipeline.benchmarks.settings import FoilBenchmarkSettings
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Caption, Foil, View
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.data.catalog import FolderDataset, JsonDataset
from compo_pipeline.evaluation.settings import ListedModel
from compo_pipeline.methods.views import from_table, single_view
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.project.settings import Parameters

THINGS = ("cup", "box", "ball", "vase", "lamp")
COLOURS = ("red", "blue", "green", "black")
TEXTS = [
    f"A {one} {first} is {place} a {other} {second}."
    for one, other in pairwise(COLOURS)
    for first, second in pairwise(THINGS)
    for place in ("left of", "above", "below")
]


def foil(number: int, text: str, wrong: str) -> Foil:
    """An item of replaced relations."""
    kind, image = "replaced_relation", f"{number % 4}.png"
    return Foil(
        *(f"{kind}-{number}", kind, "test", "used", f"s{number}", image, image, image),
        *(text, wrong, "", ("left", "right"), 0.0, ""),
    )


@pytest.fixture
def catalog(
    tmp_path: Path, shipped: Parameters, tiny_model: Callable[..., Path], project: Path
) -> Callable[..., DataCatalog]:
    """What the pipeline reads: two untrained models, and views that ask for other objects alone."""
    for number in range(4):
        noise = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    captions = [
        Caption(f"s{n}", f"{n}", f"{n}.png", 32, 32, (text,), "x", "train")
        for n, text in enumerate(TEXTS)
    ]
    foils = [
        foil(n, text, text.replace(" is left of ", " is right of "))
        for n, text in enumerate(text for text in TEXTS if "left of" in text)
    ]
    asked = [
        single_view(row, row.sentences, (from_table(("A red key.", "no")),), "") for row in captions
    ]
    asked[0] = single_view(captions[0], ("A red cup.",), (from_table(("A red key.", "no")),), "")
    write_rows(tmp_path / "views" / "epoch=00.parquet", asked, View)
    models = {name: ListedModel(f"local-dir:{tiny_model(k)}") for k, name in enumerate("ab")}
    benchmarks = replace(shipped.benchmarks, foils=FoilBenchmarkSettings("test"))

    def build(**changes: Any) -> DataCatalog:
        inputs: dict[str, Any] = {
            "valid_captions": captions,
            "foils": foils,
            "foils_report": {"splits": {}},
            "params:foils": shipped.foils,
            "views": tmp_path / "views",
            "params:models": "two",
            "params:model_lists": {"two": models},
            "params:registration": shipped.registration,
            "params:evaluation": replace(shipped.evaluation, device="cpu", workers=1),
            "params:benchmarks": benchmarks,
            "params:data.root": tmp_path,
            "params:paths.embeddings": str(tmp_path / "embeddings"),
            "params:paths.counterfactuals_state": str(tmp_path / "state"),
            "params:views": shipped.views,
            "params:language.model": "compo_en",
            "params:method": "negclip",
            "params:method_settings": {"views": {}, "objective": {}},
            "params:training": shipped.training,
            "params:counterfactuals": replace(
                shipped.counterfactuals, caption_editor="rules", image_generator=None
            ),
            "params:generator_settings": {},
            "params:data": shipped.data,
            "params:dataset": "toy",
            "params:site": Site(),
            **changes,
        }
        held = {name: MemoryDataset(value, copy_mode="assign") for name, value in inputs.items()}
        written = {
            "diagnoses": JsonDataset(filepath=str(tmp_path / "diagnoses.json")),
            "diagnosis_report": FolderDataset(filepath=str(tmp_path / "report")),
        }
        return DataCatalog({**held, **written})

    return build


def test_untrained_models_miss_what_no_negative_asks_for(
    catalog: Callable[..., DataCatalog], monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.chdir(project)
    read = catalog()
    SequentialRunner().run(register_pipelines()["diagnosis"], read)
    diagnoses = read.load("diagnoses")
    assert diagnoses.keys() == {"a", "b"}
    for name, found in diagnoses.items():
        (kind,) = found["kinds"]
        assert kind["items"] == len(TEXTS) // 3 and kind["asked"] == 0
        assert (kind["gain"] is None) == (name == "a")
    assert diagnoses["a"]["weak"] == ["replaced_relation"]
    report = read.load("diagnosis_report")
    html = (report / "diagnosis.html").read_text()
    assert re.search("replaced relation\\b[^/]*weakness", html)
    # The recipe of generated data is an environment that is there.
    recipe = diagnoses["a"]["recipe"]["env"]
    assert f"--env={recipe}" in html and (project / "conf" / recipe).is_dir()
