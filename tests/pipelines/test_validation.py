"""The validation pipeline as Kedro runs it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset

from compo_pipeline.core.records import Caption, Fact
from compo_pipeline.data.catalog import PageDataset, RowsDataset
from compo_pipeline.data.quality.quarantine import TooManyBadRows
from compo_pipeline.pipelines.validation.pipeline import create_pipeline
from compo_pipeline.project.settings import Parameters

ROWS = [
    Caption(f"train-{n}", "i", f"{n}.jpg", 64, 48, ("A dog sits here.",) * 2, "t", "train")
    for n in range(20)
]
FACTS = [
    Fact(n, f"train-{n}", f"{n}.jpg", "train", f"{n}", None, 64, 48, 2, 4, 4, False, False, False)
    for n in range(20)
]


@pytest.fixture
def catalog(shipped: Parameters, tmp_path: Path) -> DataCatalog:
    """What the pipeline reads and writes, with the project's rules; its outputs lie on disk."""
    inputs: dict[str, Any] = {
        "captions": ROWS,
        "unparseable": [],
        "ingest_report": {"captions": 20, "distinct_texts": {}, "forms": {}},
        "params:language.model": "compo_en",
        "params:validation": shipped.validation,
    }
    outputs: dict[str, Any] = {
        "quarantine": RowsDataset(filepath=str(tmp_path / "bad.parquet"), row="Rejected"),
        "valid_captions": RowsDataset(filepath=str(tmp_path / "good.parquet"), row="Caption"),
        "validation_result": JSONDataset(filepath=str(tmp_path / "result.json")),
        "caption_language": JSONDataset(filepath=str(tmp_path / "language.json")),
        "data_docs": PageDataset(filepath=str(tmp_path / "data_docs"), page="index.html"),
    }
    return DataCatalog({name: MemoryDataset(value) for name, value in inputs.items()} | outputs)


def test_too_many_bad_rows_stop_the_run_after_quarantine_is_saved(catalog: DataCatalog) -> None:
    missing = [replace(fact, decode_error="missing: no file") for fact in FACTS[:2]]
    catalog["facts"] = MemoryDataset([*missing, *FACTS[2:]])
    with pytest.raises(TooManyBadRows, match=r"image_present: 2 records, such as .*0\.jpg"):
        SequentialRunner().run(create_pipeline(), catalog)
    assert [entry.row for entry in catalog.load("quarantine")] == [0, 1]
    assert catalog.load("validation_result")["bad"] == 2
