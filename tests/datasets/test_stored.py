"""Entries of the catalog on object storage: written there, read from there on another machine."""

from contextlib import chdir
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kedro.io import DatasetError

from compo_pipeline.datasets.catalog import (
    FolderDataset,
    FrameDataset,
    JsonDataset,
    PageDataset,
    RowsDataset,
)
from compo_pipeline.storage.files import write_json
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.remote import RemoteError

ROWS = [Rejected(1, "a", "a.jpg", "rule", "why")]


def catalog(store: str | None) -> dict[str, Any]:
    return {
        "json": JsonDataset(filepath="data/a.json", store=store),
        "csv": FrameDataset(filepath="data/a.csv", store=store),
        "rows": RowsDataset(filepath="data/a.parquet", row="Rejected", store=store),
        "folder": FolderDataset(filepath="data/views", store=store),
        "page": PageDataset(filepath="data/report", page="report.html", store=store),
    }


def save(entries: dict[str, Any]) -> None:
    entries["json"].save({"a": 1})
    entries["csv"].save(pd.DataFrame({"a": [1, 2]}))
    entries["rows"].save(ROWS)
    entries["folder"].save({"epoch=00.parquet": "x", "deep/er": "y"})
    entries["page"].save({"report.html": "<p>"})


def test_what_one_machine_saves_another_one_loads(bucket: Any, tmp_path: Path) -> None:
    store = f"s3://{bucket.name}/runs"
    for machine in ("one", "two"):
        (tmp_path / machine).mkdir()
    with chdir(tmp_path / "one"):
        entries = catalog(store)
        assert not any(entry.exists() for entry in entries.values())
        save(entries)
        local = {name: Path(name).read_bytes() for name in ("data/a.parquet", "data/views/deep/er")}
    assert {name: bucket.content("runs")[name] for name in local} == local
    with chdir(tmp_path / "two"):
        entries = catalog(store)
        assert all(entry.exists() for entry in entries.values()) and not Path("data").exists()
        assert entries["json"].load() == {"a": 1}
        assert entries["csv"].load()["a"].tolist() == [1, 2]
        assert list(entries["rows"].load()) == ROWS
        assert (entries["folder"].load() / "deep" / "er").read_text() == "y"
        assert entries["page"].preview() == "<p>"
        assert not list(Path("data").rglob(".stored.json"))


def test_the_stored_version_counts_and_is_downloaded_once(bucket: Any, tmp_path: Path) -> None:
    store = f"s3://{bucket.name}/runs"
    with chdir(tmp_path):
        entries = catalog(store)
        save(entries)
        stamp = Path("data/a.json").stat().st_mtime_ns
        assert entries["json"].load() == {"a": 1}
        assert Path("data/a.json").stat().st_mtime_ns == stamp
        write_json(tmp_path / "other.json", {"a": 2})  # by another machine
        bucket.put({"runs/data/a.json": (tmp_path / "other.json").read_bytes()})
        assert entries["json"].load() == {"a": 2}
        Path("data/a.json").write_text('{"a": 3}')  # by a run without a store
        assert entries["json"].load() == {"a": 2}
        # A folder is what was saved last: what is not in it any more is not stored either.
        (Path("data/views/deep/er")).unlink()
        entries["folder"].save({"epoch=00.parquet": "z"})
        assert set(bucket.content("runs/data/views")) == {"epoch=00.parquet", ".stored.json"}
        Path("data/views/stale").write_text("x")
        assert [path.name for path in entries["folder"].load().iterdir()] == ["epoch=00.parquet"]


def test_half_an_upload_counts_as_absent(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chdir(tmp_path):
        entry = FolderDataset(filepath="data/views", store=f"s3://{bucket.name}/runs")
        entry.save({"a": "x"})
        with monkeypatch.context() as broken:
            broken.setattr(bucket.files, "put", refuse)
            with pytest.raises(DatasetError, match="views: connection lost") as caught:
                entry.save({"a": "y"})
        assert isinstance(caught.value.__cause__, RemoteError)
        assert not entry.exists() and Path("data/views/a").read_text() == "y"
        entry.save({"a": "y"})
        assert entry.exists()


@pytest.mark.parametrize("content", [b"", b'{"a": "\xff"}', b"[1]", b'{"a": 1}'])
def test_a_damaged_manifest_is_one_line(bucket: Any, tmp_path: Path, content: bytes) -> None:
    with chdir(tmp_path):
        entry = FolderDataset(filepath="data/views", store=f"s3://{bucket.name}/runs")
        entry.save({"a": "x"})
        bucket.put({"runs/data/views/.stored.json": content})
        for action in (entry.load, lambda: entry.save({"a": "x"})):
            with pytest.raises(
                DatasetError, match=r"\.stored\.json is damaged.*delete it"
            ) as caught:
                action()
            assert isinstance(caught.value.__cause__, RemoteError)
            assert "\n" not in str(caught.value.__cause__)


def test_a_url_in_the_place_of_a_path_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"filepath must be local, got s3://.*remote\.store"):
        JsonDataset(filepath="s3://bucket/a.json")


def refuse(*_: Any, **__: Any) -> None:
    raise OSError("connection lost")


def test_damaged_objects_are_refused(bucket: Any, tmp_path: Path) -> None:
    store = f"s3://{bucket.name}/runs"
    with chdir(tmp_path):
        entries = catalog(store)
        save(entries)
        bucket.put({"runs/data/report/report.html": b"?", "runs/data/a.parquet": b"?"})
        Path("data/report/report.html").unlink()
        with pytest.raises(DatasetError, match="do not fit its manifest"):
            entries["page"].load()
        with pytest.raises(DatasetError, match="damaged"):
            entries["rows"].load()
        bucket.put({"runs/data/report/.stored.json": b'{"../../up": "0"}'})
        with pytest.raises(DatasetError, match="no plain path"):
            entries["page"].load()
        assert not (tmp_path / "up").exists()
