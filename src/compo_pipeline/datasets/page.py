"""Folders with a page that `kedro viz` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compo_pipeline.datasets.folder import FolderDataset

if TYPE_CHECKING:
    # The viewer recognises a preview by the name of its return type.
    from kedro_datasets._typing import HTMLPreview


class PageDataset(FolderDataset):
    """A folder that a node fills, with a self-contained HTML page in it.

    Example:
        ```yaml
        report:
          type: compo_pipeline.datasets.page.PageDataset
          filepath: data/08_reporting/report
          metadata: {kedro-viz: {layer: reporting, preview_args: {page: report.html}}}
        ```
    """

    def preview(self, page: str) -> HTMLPreview:
        """The page, for `kedro viz`."""
        return (self._filepath / page).read_text(encoding="utf-8")
