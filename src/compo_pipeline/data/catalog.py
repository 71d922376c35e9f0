"""Kedro datasets of the catalog: tables of row types, JSON, folders, pages.

Their files are written atomically: kedro-datasets writes in place, and an interrupted run would
leave half a file that the next one reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from kedro.io import AbstractDataset, DatasetError
from kedro.utils import load_obj

from compo_pipeline.core import records, untrusted
from compo_pipeline.core.files import (
    FolderWriter,
    atomic_folder,
    read_json,
    record_json,
    write_files,
    write_json,
)
from compo_pipeline.core.remote import is_url
from compo_pipeline.core.settings import masked, parse
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.core.tables import Table

if TYPE_CHECKING:
    # Kedro-Viz recognises a preview by the name of its return type.
    from kedro_datasets._typing import HTMLPreview, JSONPreview, TablePreview


class _PathDataset(AbstractDataset[Any, Any]):
    """Kedro dataset of a local file or folder."""

    is_folder: ClassVar[bool] = False

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the file or folder.

        Args:
            filepath: local path of the file or folder.
            metadata: metadata for viewers.

        Raises:
            DatasetError: the path is a URL.
        """
        if is_url(filepath):
            raise DatasetError(
                f"catalog: filepath must be local, got {masked(filepath)}; `dvc push` stores "
                "results elsewhere"
            )
        self._filepath = Path(filepath)
        self.metadata = metadata

    def _exists(self) -> bool:
        """Whether the file or folder exists."""
        return self._filepath.is_dir() if self.is_folder else self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        """Description of the dataset for Kedro: its file path."""
        return {"filepath": str(self._filepath)}


class JsonDataset(_PathDataset):
    """Kedro dataset of a JSON file: of a value, or of a dataclass instance.

    Example:
        ```yaml
        comparison:
          type: compo_pipeline.data.catalog.JsonDataset
          filepath: data/07_model_output/comparison.json
          record: compo_pipeline.evaluation.evaluate.Comparison
        ```
    """

    def __init__(
        self, *, filepath: str, record: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Name the file and its class.

        Args:
            filepath: the JSON file.
            record: dotted path of the dataclass, which is imported when the file is read; its
                floats have six significant digits. None: the file holds a plain value.
            metadata: metadata for viewers.
        """
        super().__init__(filepath=filepath, metadata=metadata)
        self._record = record

    def load(self) -> Any:
        """Read the value or instance from the JSON file.

        Raises:
            DatasetError: there is no such file, or it is damaged or of another version.
        """
        value = read_json(self._filepath)
        if self._record is None:
            return value
        return parse(load_obj(self._record), value, self._filepath.name)

    def save(self, data: Any) -> None:
        """Write the value or instance as JSON."""
        write_json(self._filepath, data if self._record is None else record_json(data))

    def preview(self) -> JSONPreview:
        """Text of the JSON file, for `kedro viz`."""
        return self._filepath.read_text(encoding="utf-8")


class ReceivedJsonDataset(JsonDataset):
    """Kedro dataset of a JSON file that a user may provide.

    Without the file, it is an empty object.
    """

    def load(self) -> dict[str, Any]:
        """Read the JSON object of the file, or an empty one if there is no file.

        Raises:
            DatasetError: the file holds something else.
        """
        path = self._filepath
        if not path.exists():
            return {}
        try:
            content = untrusted.read_json(path)
        except ValueError as error:
            raise DatasetError(str(error)) from error
        if not isinstance(content, dict):
            raise DatasetError(f"{path}: expected a JSON object, got {untrusted.shown(content)}")
        return content

    def _exists(self) -> bool:
        """True, as a missing file is read as an empty object."""
        return True


class RowsDataset(_PathDataset):
    """Kedro dataset of a Parquet file whose rows are of one dataclass, loaded as a lazy `Table`.

    Saving takes any iterable and writes it atomically in groups of rows, so a generator is never
    in memory as a whole; `Parts` are computed part by part.

    Example:
        ```yaml
        captions:
          type: compo_pipeline.data.catalog.RowsDataset
          filepath: data/02_intermediate/scenes/captions.parquet
          row: Caption
        ```
    """

    def __init__(
        self,
        *,
        filepath: str,
        row: str,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Name the file and its row type.

        Args:
            filepath: the parquet file.
            row: name of a dataclass of `compo_pipeline.core.records`.
            metadata: metadata for viewers.

        Raises:
            DatasetError: there is no such row type.
        """
        row_type = getattr(records, row, None)
        if not isinstance(row_type, type) or not is_dataclass(row_type):
            raise DatasetError(f"catalog: row '{row}' of {filepath} is no row type of core.records")
        super().__init__(filepath=filepath, metadata=metadata)
        self._row_type = row_type

    def load(self) -> Table[Any]:
        """Open the Parquet file as a lazy table of rows."""
        try:
            return Table.open(self._filepath, self._row_type)
        except FileNotFoundError as error:
            raise DatasetError(
                f"{self._filepath} does not exist yet. Run the pipeline that writes it, or all of "
                "them in order, `kedro run --pipeline=train_eval`"
            ) from error

    def save(self, data: Iterable[Any]) -> None:
        """Write the rows to the Parquet file, atomically."""
        write_rows(self._filepath, data, self._row_type)

    def preview(self, nrows: int = 10) -> TablePreview:
        """First rows of the Parquet file, for `kedro viz`."""
        columns = self.load()[:nrows].to_arrow().to_pydict()
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        return {"index": list(range(len(rows))), "columns": [*columns], "data": rows}


class FolderDataset(_PathDataset):
    """Kedro dataset of a folder, which nodes get as its path.

    A node returns its files by path in the folder, or a folder that it has filled elsewhere, which
    is moved. Large results are filled part by part and resumed there.
    """

    is_folder: ClassVar[bool] = True

    def load(self) -> Path:
        """Path of the folder.

        Raises:
            DatasetError: there is no such folder.
        """
        if not self._filepath.is_dir():
            raise DatasetError(
                f"there is no folder {self._filepath}: run the pipeline that writes it"
            )
        return self._filepath

    def save(self, data: Mapping[str, str | bytes] | Path | FolderWriter) -> None:
        """Replace the folder by one with these files, or by another folder.

        A function that fills a folder is called with this one.

        Raises:
            DatasetError: the function left no folder.
        """
        if isinstance(data, Mapping):
            write_files(data, self._filepath)
        elif not isinstance(data, Path):
            data(self._filepath)
        elif data.resolve() != self._filepath.resolve():
            with atomic_folder(self._filepath) as new:
                new.rmdir()
                shutil.move(data, new)
        if not self._filepath.is_dir():
            raise DatasetError(f"nothing was written to {self._filepath}")


class PageDataset(FolderDataset):
    """Kedro dataset of a folder with a self-contained HTML page, which `kedro viz` shows.

    Example:
        ```yaml
        report:
          type: compo_pipeline.data.catalog.PageDataset
          filepath: data/08_reporting/report
          page: report.html
        ```
    """

    def __init__(
        self,
        *,
        filepath: str,
        page: str,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Name the folder and its page.

        Args:
            filepath: the folder.
            page: path of the page in it.
            metadata: metadata for viewers.
        """
        super().__init__(filepath=filepath, metadata=metadata)
        self._page = page

    def save(self, data: Mapping[str, str | bytes] | Path | FolderWriter) -> None:
        """Write the folder with the page.

        Raises:
            DatasetError: the folder holds something else than an older page.
        """
        folder, page = self._filepath, PurePath(self._page)
        # A page below the folder may have another name of its folder (that of a split).
        older = folder.glob(str(PurePath(*("*" for _ in page.parts[:-1]), page.name)))
        if folder.is_dir() and any(folder.iterdir()) and not any(older):
            raise DatasetError(
                f"{folder} holds something else than the page {self._page}, which would replace "
                "it; change filepath in conf/base/catalog.yml, or remove the folder"
            )
        super().save(data)

    def preview(self) -> HTMLPreview:
        """HTML of the page, for `kedro viz`."""
        return (self._filepath / self._page).read_text(encoding="utf-8")

    def _describe(self) -> dict[str, Any]:
        """Description of the dataset for Kedro: folder and file name of the page."""
        return {**super()._describe(), "page": self._page}
