"""What a version is made from is listed in the formats' own terms, and nothing is left unsaid."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.recaption.settings import RecaptionSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.language.parsing import load_once
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import WEIGHTS_FILE, read_record
from compo_pipeline.pipelines.registration.nodes import list_base_and_data, list_preparation
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.table_files import write_rows
from compo_pipeline.storage.tables import Table
from compo_pipeline.versions.layout import BOM_FILE, CARD, CROISSANT_FILE
from compo_pipeline.versions.registration import export_with_card
from compo_pipeline.versions.settings import Licences, RegistrationSettings

ROWS = [
    Caption(f"r{k}", f"i{k}", f"photos/{k}.jpg", 4, 3, (f"a cat {k}", "it sleeps"), "", split)
    for k, split in enumerate(("train", "train", "test"))
]
BASE = ModelSettings()
ENDPOINT = {"url": "http://localhost:1/v1", "model": "qwen 7b"}
LICENCES = Licences(base="MIT", images="Flickr Terms of Use", captions="CC-BY-4.0")


@pytest.fixture
def exported(tiny_clip: Path, comparison: Comparison, tmp_path: Path) -> Callable[..., Path]:
    """Exports a checkpoint that is registered with these settings; returns the folder."""
    table, folder = tmp_path / "captions.parquet", tmp_path / "export"
    write_rows(table, ROWS, Caption)
    fingerprint = load(tiny_clip).fingerprint
    tuned = replace(comparison.models["fine_tuned"], fingerprint=fingerprint)
    scored = replace(comparison, models={**comparison.models, "fine_tuned": tuned})
    data = DataSettings(root=tmp_path, splits={}, format="table")
    manifest = {"data_hash": "d" * 64, "count": 4, "files": {"my captions.csv": "e" * 64}}

    def export(
        licences: Licences,
        method: str = "sparcl",
        data: DataSettings = data,
        model: ModelSettings = BASE,
    ) -> Path:
        made = list_preparation(
            list_base_and_data(model, "my photos", data, manifest, Table.open(table, Caption)),
            method,
            "compo_en",
            RecaptionSettings(captioner="endpoint", endpoint=ENDPOINT),
            CounterfactualSettings(image_generator="diffusion", diffusion={"model": "sd/turbo"}),
        )
        run = {"method": method, "variant": "default", "seed": 0, "run_id": "run"}
        settings = RegistrationSettings(licences=licences)
        return export_with_card(tiny_clip, folder, run, made, scored, settings)

    return export


def components(folder: Path) -> dict[str, dict[str, Any]]:
    bom = json.loads((folder / BOM_FILE).read_text())
    return {one["bom-ref"].partition("/")[0]: one for one in bom["components"]}


def test_the_bill_of_materials_is_valid_cyclonedx(exported: Callable[..., Path]) -> None:
    text = (exported(LICENCES) / BOM_FILE).read_text()
    validate = JsonStrictValidator(SchemaVersion.V1_6).validate_str
    assert validate(text) is None
    # The validator sees a wrong one.
    assert validate(text.replace('"machine-learning-model"', '"machine"')) is not None


def test_its_subject_is_the_model_by_the_hash_of_its_weights(exported: Callable[..., Path]) -> None:
    folder = exported(LICENCES)
    model = json.loads((folder / BOM_FILE).read_text())["metadata"]["component"]
    weights = sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    assert model["hashes"] == [{"alg": "SHA-256", "content": weights}]
    assert model["type"] == "machine-learning-model"
    assert model["version"] == read_record(folder)["fingerprint"][:16]


def test_what_is_named_is_said_and_the_rest_is_unknown(exported: Callable[..., Path]) -> None:
    folder = exported(LICENCES)
    found = {name: one["licenses"] for name, one in components(folder).items()}
    assert found["base"] == [{"expression": "MIT"}]
    assert found["images"] == [{"license": {"name": "Flickr Terms of Use"}}]
    assert found["captions"] == [{"expression": "CC-BY-4.0"}]
    assert found["image_generator"] == [{"license": {"name": "unknown"}}]
    meta = load_once("compo_en").meta
    assert found["parser"] == [{"license": {"name": meta["license"]}}]
    card = (folder / CARD).read_text()
    for line in (
        "| captions | my photos | CC-BY-4.0 |",
        "| images (3) | my photos | Flickr Terms of Use |",
        "| captions by a model | qwen 7b | unknown |",
        "| images of edits | sd/turbo | unknown |",
        f"| parser | compo_en {meta['version']} | {meta['license']} |",
    ):
        assert line in card


def test_each_part_has_a_setting_of_its_licence(exported: Callable[..., Path]) -> None:
    parts = [each.name for each in fields(Licences)]
    found = components(exported(Licences(**{part: f"of the {part}" for part in parts})))
    assert {part: found[part]["licenses"][0]["license"]["name"] for part in parts} == {
        part: f"of the {part}" for part in parts
    }


def test_a_method_without_counterfactuals_was_made_from_none(exported: Callable[..., Path]) -> None:
    assert not {"caption_editor", "image_generator"} & set(components(exported(LICENCES, "clic")))


def test_files_of_captions_are_listed_with_their_hashes(exported: Callable[..., Path]) -> None:
    (file,) = components(exported(LICENCES))["captions"]["components"]
    assert file["name"] == "my captions.csv"
    assert file["hashes"] == [{"alg": "SHA-256", "content": "e" * 64}]


def test_generated_data_have_the_licence_of_their_package(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    scenes = DataSettings(root=tmp_path, splits={}, format="scenes")
    own = metadata("compo-pipeline")["License-Expression"]
    found = components(exported(Licences(), data=scenes))
    assert found["images"]["licenses"] == [{"expression": own}]


def test_downloaded_weights_have_the_licence_of_their_tag(exported: Callable[..., Path]) -> None:
    siglip = ModelSettings("ViT-B-16-SigLIP", "webli")
    found = components(exported(Licences(), model=siglip))["base"]
    assert (found["name"], found["version"]) == ("ViT-B-16-SigLIP", "webli")
    assert found["licenses"] == [{"expression": "Apache-2.0"}]
    own = ModelSettings("ViT-B-32", "mine.safetensors")
    found = components(exported(Licences(), model=own))["base"]
    assert found["licenses"] == [{"license": {"name": "unknown"}}]


def test_packages_have_the_versions_that_are_installed(exported: Callable[..., Path]) -> None:
    bom = json.loads((exported(LICENCES) / BOM_FILE).read_text())
    found = {one["name"]: one["version"] for one in bom["components"] if "purl" in one}
    # Needed by this package, by one of its needs, and by an extra alone.
    assert found["torch"] == version("torch") and found["sympy"] == version("sympy")
    assert "pytest" not in found
    assert all(found[name] == version(name) for name in found)


def test_the_same_version_has_the_same_files(exported: Callable[..., Path]) -> None:
    first = [(exported(LICENCES) / name).read_bytes() for name in (BOM_FILE, CROISSANT_FILE)]
    assert [
        (exported(LICENCES) / name).read_bytes() for name in (BOM_FILE, CROISSANT_FILE)
    ] == first


# In a process of its own: the library's handler of logs closes pytest's standard error.
READ = """
import json, sys
import mlcroissant
read = mlcroissant.Dataset(jsonld=sys.argv[1])
assert not read.metadata.ctx.issues.errors
rows = [
    (row["captions/sample_id"].decode(), row["captions/width"]) for row in read.records("captions")
]
print(json.dumps([read.metadata.license, rows]))
"""


def test_croissant_reads_the_captions_by_the_metadata(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    # Beside the table, as its paths are below the data's root.
    beside = tmp_path / "metadata.json"
    beside.write_text((exported(LICENCES) / CROISSANT_FILE).read_text())
    (tmp_path / "my captions.csv").write_text("")
    command = [sys.executable, "-c", READ, str(beside)]
    read = subprocess.run(command, check=True, capture_output=True, text=True)
    licences, rows = json.loads(read.stdout)
    assert sorted(licences) == ["CC-BY-4.0", "Flickr Terms of Use"]
    assert rows == [[row.sample_id, row.width] for row in ROWS]
