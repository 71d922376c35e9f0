"""Folders that a node fills: what passes between nodes is the path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError


class FolderDataset(AbstractDataset[Path, Path]):
    """A folder of files too big, or too much a format of their own, to pass through memory.

    The node that makes it gets the folder's path as a parameter (`params:paths.<entry>`), writes
    there and returns the path.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the folder.

        Args:
            filepath: the folder.
            metadata: kept for viewers, never read.
        """
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> Path:
        """The folder's path.

        Raises:
            DatasetError: there is no such folder.
        """
        if not self._filepath.is_dir():
            raise DatasetError(
                f"there is no folder {self._filepath}: run the pipeline that makes it"
            )
        return self._filepath

    def save(self, data: Path) -> None:
        """Check that a node wrote where the catalog says.

        Raises:
            DatasetError: it wrote elsewhere, or nothing.
        """
        written = Path(data)
        if written.resolve() != self._filepath.resolve():
            raise DatasetError(
                f"the node wrote to {written}, the catalog says {self._filepath}: "
                "paths in conf/base/parameters_places.yml and conf/base/catalog.yml must agree"
            )
        if not written.is_dir():
            raise DatasetError(f"the node returned {written}, but there is no such folder")

    def _exists(self) -> bool:
        return self._filepath.is_dir()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}
