"""Croissant metadata of a version's training data: what the data set is, its files, its rows.

Source: the format's specification, version 1.0 (http://mlcommons.org/croissant/1.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from compo_pipeline.storage.files import file_sha256, write_plain_json
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Table
from compo_pipeline.versions.layout import CROISSANT_FILE
from compo_pipeline.versions.materials import UNKNOWN, Material

# The context that the specification recommends.
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty"),
    *("fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
    *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("separator", "source", "subField", "transform"),
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}
_CAPTIONS, _IMAGES, _TABLE = "captions", "images", "captions.parquet"
_FIELDS = {
    "sample_id": ("sc:Text", "id of the row"),
    "image_id": ("sc:Text", "id of the image"),
    "image": ("sc:Text", "path of the image below the data's root"),
    "width": ("sc:Integer", "pixels"),
    "height": ("sc:Integer", "pixels"),
    "sentences": ("sc:Text", "captions of the image, the row's own first"),
    "source": ("sc:Text", "which of several sources"),
    "split": ("sc:Text", "train, or a held-out split"),
}
_FORMATS = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".parquet": "application/x-parquet",
    ".tar": "application/x-tar",
    ".txt": "text/plain",
}
_OTHER = "application/octet-stream"


def write_croissant(
    folder: Path, data: Sequence[Material], manifest: Mapping[str, Any], captions: Sequence[Caption]
) -> Path:
    """Write Croissant metadata (JSON-LD) of the training data into an exported model's folder.

    The metadata name files of the data's root by their paths there, and the table of valid captions
    that training reads, where it is in a file. They hold no caption and no image.

    Args:
        folder: of the export.
        data: materials of the kind data; the first one names the data set.
        manifest: of the data (`data_hash`, `count`, `files`).
        captions: valid rows of all splits.
    """
    table = Table.of(captions, Caption)
    splits = Counter(cast(str, one) for one in table.column("split").to_pylist())
    rows = ", ".join(f"{count:,} {name}" for name, count in splits.items())
    licences = [f"{one.label}: {one.licence or UNKNOWN}" for one in data]
    metadata = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": data[0].name,
        "description": (
            f"Images and captions that a model was fine-tuned and judged on. Rows that passed "
            f"validation: {rows}. Licences: {'; '.join(licences)}."
        ),
        "license": sorted({one.licence or UNKNOWN for one in data}),
        "version": f"1.0.0+{manifest['data_hash'][:16]}",
        "identifier": manifest["data_hash"],
        "distribution": [
            # An id has no spaces, which a name may have.
            *(
                _file_object(f"file-{number}", *file)
                for number, file in enumerate(manifest["files"].items())
            ),
            _image_files(table),
        ],
    }
    if table.file is not None:
        metadata["distribution"].append(_file_object(_TABLE, _TABLE, file_sha256(table.file)))
        metadata["recordSet"] = [
            {
                "@type": "cr:RecordSet",
                "@id": _CAPTIONS,
                "name": _CAPTIONS,
                "description": "Caption rows that passed validation.",
                "field": [_field(name, *about) for name, about in _FIELDS.items()],
            }
        ]
    write_plain_json(folder / CROISSANT_FILE, metadata)
    return folder / CROISSANT_FILE


def _file_object(identifier: str, path: str, sha256: str) -> dict[str, Any]:
    """The Croissant `FileObject` (a dict) of a file: its path, format and SHA-256."""
    return {
        "@type": "cr:FileObject",
        "@id": identifier,
        "name": path,
        "contentUrl": path,
        "encodingFormat": _FORMATS.get(PurePosixPath(path).suffix.lower(), _OTHER),
        "sha256": sha256,
    }


def _image_files(table: Table[Caption]) -> dict[str, Any]:
    """The Croissant `FileSet` (a dict) of all images, matched by their file extensions."""
    names = table.column("image").unique().to_pylist()
    endings = sorted({PurePosixPath(name).suffix for name in names})
    return {
        "@type": "cr:FileSet",
        "@id": _IMAGES,
        "name": _IMAGES,
        "description": f"{len(names):,} images.",
        "encodingFormat": "image/*",
        "includes": [f"**/*{ending}" for ending in endings],
    }


def _field(name: str, kind: str, about: str) -> dict[str, Any]:
    """The Croissant `Field` (a dict) of a column of the captions table."""
    field: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"{_CAPTIONS}/{name}",
        "name": f"{_CAPTIONS}/{name}",
        "description": about,
        "dataType": kind,
        "source": {"fileObject": {"@id": _TABLE}, "extract": {"column": name}},
    }
    return field | {"repeated": True} if name == "sentences" else field
