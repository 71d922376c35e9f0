"""Folders pass between nodes as paths, and only where the catalog expects them."""

import pytest
from kedro.io import DatasetError

from compo_pipeline.datasets.folder import FolderDataset


def test_a_missing_folder_names_its_path(tmp_path):
    dataset = FolderDataset(filepath=str(tmp_path / "views"))
    assert not dataset.exists()
    with pytest.raises(DatasetError, match=r"there is no folder .*/views"):
        dataset.load()


def test_the_path_written_to_is_the_path_loaded(tmp_path, monkeypatch):
    dataset = FolderDataset(filepath=str(tmp_path / "views"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    dataset.save((tmp_path / "views").relative_to(tmp_path))
    assert dataset.exists()
    assert dataset.load() == tmp_path / "views"


def test_writing_elsewhere_is_refused(tmp_path):
    dataset = FolderDataset(filepath=str(tmp_path / "views"))
    (tmp_path / "view").mkdir()
    with pytest.raises(DatasetError, match=r"wrote to .*/view, the catalog says .*/views"):
        dataset.save(tmp_path / "view")


def test_returning_a_path_without_writing_is_refused(tmp_path):
    dataset = FolderDataset(filepath=str(tmp_path / "views"))
    with pytest.raises(DatasetError, match="no such folder"):
        dataset.save(tmp_path / "views")
