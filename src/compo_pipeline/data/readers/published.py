"""Captions that the papers train on, in the files in which they are published.

The columns of each are in docs/how-to/your-data.md; `data.columns` names others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from compo_pipeline.core.records import Rejected
from compo_pipeline.data.readers import img2dataset, table
from compo_pipeline.data.readers.delimited import UnreadableRecord, csv_rows, without_halves
from compo_pipeline.data.readers.record import (
    NOT_DOWNLOADED,
    RawCaption,
    Reader,
    SourceError,
    by_share,
    checked,
    rejected,
    source_files,
    strip_coca_tokens,
)
from compo_pipeline.data.settings import Columns, DataSettings

_COCA_CAPTION = "coca_captions"
_ADDRESS = "url"  # a column of img2dataset's tables
_SHARDS = "[0-9]*.parquet"


@dataclass(frozen=True)
class NamedTable:
    """Reader of tables with columns of these names.

    PixelProse is one: its Parquet files name images by address only. Images downloaded with
    img2dataset as files are at `<first five digits of key>/<key>.jpg`, and its metadata tables,
    which carry `vlm_caption` along, are read just as well.
    """

    image: str
    caption: str
    id: str | None = None

    def named(self, data: DataSettings) -> DataSettings:
        """Settings with the columns that they do not name."""
        own = data.columns
        caption = None if own.sentences else own.caption or self.caption
        image, id_ = own.image or self.image, own.id or self.id
        return replace(data, columns=replace(own, id=id_, image=image, caption=caption))

    def caption_files(self, data: DataSettings, source: str) -> list[Path]:
        """Paths of the split's tables, sorted by name."""
        return table.caption_files(data, source)

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield a caption record per row of the split's tables."""
        return table.read(self.named(data), split, source)


class NegClip(NamedTable):
    """Reader of NegCLIP's COCO captions (train_neg_clip.tsv): one row per caption, tab separated.

    `filepath` is such as `coco/train2014/COCO_train2014_000000000009.jpg`, from `data.images` on.
    `neg_caption` and `neg_image` are no data of a row: `views.from_table` takes them.
    """

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield a record per caption, with the image's other captions as the further ones.

        The file is read twice: once for the captions that each image has.
        """
        of_image: dict[str, list[tuple[str, str]]] = {}
        for record in super().read(data, split, source):
            if isinstance(record, RawCaption):
                of_image.setdefault(record.image, []).append((record.sample_id, record.own[0]))
        for record in super().read(data, split, source):
            if isinstance(record, RawCaption):
                others = of_image[record.image]
                further = tuple(text for sample, text in others if sample != record.sample_id)
                record = replace(record, further=further)
            yield record


class DreamLip(NamedTable):
    """Reader of DreamLIP's captions of CC3M, CC12M and YFCC: CSV or Parquet, without images.

    `Image Path` holds each image's address, and seven columns hold a caption each.

    Images fetched with img2dataset (`--url_col "Image Path" --output_format files`) are found by
    their address in its tables below `data.images`. Its tables, or the files beside its images,
    serve in the place of the published file where the captions were carried along as additional
    columns. Where `Image Path` was rewritten to paths, these start from `data.images`.
    """

    def caption_files(self, data: DataSettings, source: str) -> list[Path]:
        """Paths of the files with the split's captions."""
        return _reader_of_files(data, source).caption_files(data, source)

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield a caption record per row of the split's files, with its downloaded image's path."""
        if _reader_of_files(data, source) is img2dataset:
            found = img2dataset.read(data, split, source, self.caption)
            yield from by_share(data, split, source, found)
            return
        images: dict[str, RawCaption | Rejected] | None = None
        for record in super().read(replace(data, images=""), split, source):
            if isinstance(record, Rejected):
                yield record
            elif "://" not in record.image:
                yield _with_image((Path(data.images) / record.image).as_posix(), record)
            else:
                images = self._downloads(data) if images is None else images
                found_image = images.get(record.image)
                if isinstance(found_image, RawCaption):
                    yield _with_image(found_image.image, record)
                else:
                    unknown = f"no row of {self._tables(data)} has this address"
                    reason = found_image.detail if found_image else unknown
                    detail = f"{reason}: {record.image}"
                    yield rejected(record.sample_id, "", detail, NOT_DOWNLOADED)

    def _tables(self, data: DataSettings) -> str:
        """Pattern of img2dataset's tables below the data's root."""
        return (Path(data.images) / _SHARDS).as_posix()

    def _downloads(self, data: DataSettings) -> dict[str, RawCaption | Rejected]:
        """Records of img2dataset's tables, by address of the image."""
        tables = self._tables(data)
        if not source_files(data, tables):
            raise SourceError(
                f"'{data.columns.image or self.image}' holds addresses, and no table of "
                f"img2dataset matches '{tables}' below {data.root}: set data.images to the folder "
                "that holds 00000.parquet, 00001.parquet, ... or write paths in the place of "
                "addresses"
            )
        # The address serves as caption and id, which a record has even where the download failed.
        named = replace(data, images="", columns=Columns(id=_ADDRESS, caption=_ADDRESS))
        found: dict[str, RawCaption | Rejected] = {}
        for row in img2dataset.read(named, "", tables):
            address = row.sample_id.removeprefix("-")
            if isinstance(row, RawCaption) or address not in found:
                found[address] = row
        return found


def _reader_of_files(data: DataSettings, source: str) -> Reader:
    """Reader for the split's files of DreamLIP: that of img2dataset, or of plain tables."""
    first = next(iter(source_files(data, source)), None)
    if first is not None and first.suffix == ".parquet":
        with table.parquet_file(first) as file:
            return img2dataset if "key" in file.schema_arrow.names else table
    return img2dataset if first is not None and first.suffix == ".json" else table


def _with_image(image: str, record: RawCaption) -> RawCaption:
    """Copy of a caption record with another image path."""
    return replace(record, image=image, image_id=f"{record.split}-{image}")


class CocaCaptions:
    """Reader of CC3M with captions by CoCa, as FSC-CLIP trains on it: img2dataset's files.

    The caption is in the column `coca_captions`, or in a folder of that name beside the shards,
    as `<key>.txt`.
    """

    caption_files = staticmethod(img2dataset.caption_files)

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield a caption record per row of img2dataset's files, without CoCa's special tokens."""
        for record in img2dataset.read(data, split, source, _COCA_CAPTION):
            if isinstance(record, RawCaption):
                record = replace(record, own=tuple(map(strip_coca_tokens, record.own)))
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


PIXELPROSE = NamedTable("{key:.5}/{key}.jpg", "vlm_caption", "uid")
NEG_CLIP = NegClip("filepath", "title")
DREAMLIP = DreamLip("Image Path", "shortLLA_captions")
CC3M_COCA, COGVLM_LAION = CocaCaptions(), CogVlmLaion()
