"""Tables of the project's row types, as parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import is_dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.io import AbstractDataset, DatasetError

from compo_pipeline import records

if TYPE_CHECKING:
    # The viewer recognises a preview by the name of its return type.
    from kedro_datasets._typing import TablePreview

_ROWS_PER_GROUP = 50_000


class RowsDataset(AbstractDataset[Iterable[Any], list[Any]]):
    """Parquet on disk, a list of one row type of `compo_pipeline.records` in memory.

    Saving takes any iterable and writes it in groups of rows, so a generator never stands in
    memory whole; the file appears under its name when it is complete.

    Example:
        ```yaml
        captions:
          type: compo_pipeline.datasets.rows.RowsDataset
          filepath: data/02_intermediate/scenes/captions.parquet
          row: Caption
        ```
    """

    def __init__(self, *, filepath: str, row: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the file and its row type.

        Args:
            filepath: the parquet file.
            row: name of a dataclass of `compo_pipeline.records`.
            metadata: kept for viewers, never read.

        Raises:
            DatasetError: there is no such row type.
        """
        row_type = getattr(records, row, None)
        if not isinstance(row_type, type) or not is_dataclass(row_type):
            raise DatasetError(
                f"catalog: row '{row}' of {filepath} is no row type of compo_pipeline.records"
            )
        self._filepath = Path(filepath)
        self._row_type = row_type
        self.metadata = metadata

    def load(self) -> list[Any]:
        """All rows of the file."""
        import pyarrow.parquet as pq

        try:
            return list(records.from_table(pq.read_table(self._filepath), self._row_type))
        except FileNotFoundError as error:
            raise DatasetError(
                f"{self._filepath} is not there: nothing has made it yet. Run the pipeline that "
                "does, or all of them in their order, `kedro run --pipeline=train_eval`"
            ) from error
        except ValueError as error:
            raise DatasetError(f"{self._filepath}: {error}") from error

    def save(self, data: Iterable[Any]) -> None:
        """Write the rows; an existing file is replaced at once."""
        import pyarrow.parquet as pq

        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._filepath.with_name(f".{self._filepath.name}.{os.getpid()}")
        remaining = iter(data)
        try:
            with pq.ParquetWriter(unfinished, records.schema(self._row_type)) as writer:
                while group := list(islice(remaining, _ROWS_PER_GROUP)):
                    writer.write_table(records.to_table(group, self._row_type))
            unfinished.replace(self._filepath)
        finally:
            unfinished.unlink(missing_ok=True)

    def preview(self, nrows: int = 10) -> TablePreview:
        """The first rows, for `kedro viz`."""
        import pyarrow.parquet as pq

        first = next(pq.ParquetFile(self._filepath).iter_batches(batch_size=nrows), None)
        rows = [] if first is None else first.to_pylist()
        names = records.schema(self._row_type).names
        table = {
            "index": list(range(len(rows))),
            "columns": names,
            "data": [[row[name] for name in names] for row in rows],
        }
        return table

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath), "row": self._row_type.__name__}
