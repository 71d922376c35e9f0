"""Captions that the papers train on, in the files in which they are published.

The columns of each are in docs/how-to/your-data.md; `data.columns` names others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compo_pipeline.core.records import Rejected
from compo_pipeline.data.readers import table
from compo_pipeline.data.readers.delimited import UnreadableRecord, csv_rows, without_halves
from compo_pipeline.data.readers.record import RawCaption, checked, rejected
from compo_pipeline.data.settings import DataSettings


class NegClip:
    """Reader of NegCLIP's COCO captions (train_neg_clip.tsv): one row per caption, tab separated.

    `filepath` is such as `coco/train2014/COCO_train2014_000000000009.jpg`, from `data.images` on.
    `neg_caption` and `neg_image` are no data of a row: `views.from_table` takes them.
    """

    caption_files = staticmethod(table.caption_files)

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield a record per caption, with the image's other captions as the further ones.

        The file is read twice: once for the captions that each image has.
        """
        own = data.columns
        caption = None if own.sentences else own.caption or "title"
        columns = replace(own, image=own.image or "filepath", caption=caption)
        data = replace(data, columns=columns)
        of_image: dict[str, list[tuple[str, str]]] = {}
        for record in table.read(data, split, source):
            if isinstance(record, RawCaption):
                of_image.setdefault(record.image, []).append((record.sample_id, record.own[0]))
        for record in table.read(data, split, source):
            if isinstance(record, RawCaption):
                others = of_image[record.image]
                further = tuple(text for sample, text in others if sample != record.sample_id)
                record = replace(record, further=further)
            yield record


class CogVlmLaion:
    """Reader of LAION images captioned by CogVLM, as CLIC's authors publish them: headless CSV.

    First the image's address or path, of which the file's name counts (they download it under that
    name, into the folder `data.images`), then its caption, or its sentences in columns of their
    own.
    """

    caption_files = staticmethod(table.caption_files)

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield a caption record per row of the split's CSV files, or its rejection."""
        files = self.caption_files(data, source)
        rows = (row for path in files for row in without_halves(csv_rows(path), 2))
        for number, row in enumerate(rows):
            sample_id = f"{split}-{number}"
            if isinstance(row, UnreadableRecord):
                yield rejected(sample_id, "", str(row))
            elif len(row) < 2:
                yield rejected(sample_id, row[0], "one column, expected an image and its caption")
            else:
                # Rows of different lengths share one file: short ones may end in empty cells.
                texts = tuple(text for text in row[1:] if text) or ("",)
                name = row[0].rsplit("/", 1)[-1]
                image = (Path(data.images) / name).as_posix() if name else ""
                yield checked(sample_id, f"{split}-{image}", image, texts, (), split)


NEG_CLIP, COGVLM_LAION = NegClip(), CogVlmLaion()
