"""WebDataset shards: tars of `<key>.jpg` with `<key>.txt` or `<key>.json`, read in place.

So does img2dataset write them with `--output_format webdataset`. A caption is the member with the
ending `data.columns.caption`, or this field of the JSON; without one the text, else the field
`caption`. `data.columns.image` is the ending of images of another name, such as `input.jpg`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.core import archives
from compo_pipeline.core.records import Rejected
from compo_pipeline.core.untrusted import listed, parse_json, shown
from compo_pipeline.data.readers.joined import key_of
from compo_pipeline.data.readers.record import (
    RawCaption,
    SourceError,
    checked,
    rejected,
    shard_files,
)
from compo_pipeline.data.settings import DataSettings

_IMAGES = ("jpg", "jpeg", "png", "webp")
_TEXT, _JSON, _CAPTION = "txt", "json", "caption"


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's tar shards, sorted by name."""
    return shard_files(data, source, ".tar")


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per sample of the shards."""
    paths = caption_files(data, source)
    endings = tuple(filter(None, (data.columns.image, data.columns.caption)))
    for path in paths:
        if damage := _damage(path):
            damaged = [str(each) for each in paths if _damage(each)]
            raise SourceError(
                f"{len(damaged)} of {len(paths)} tar archives cannot be read to the end: {path} is "
                f"{damage}; fetch again or move away {listed(damaged)}"
            )
        name = f"{split}-{path.relative_to(data.root).as_posix().removesuffix('.tar')}"
        for key, sample in archives.samples(archives.scan(path), endings).items():
            yield _record(data, split, name, key, path, sample.members)
            for _ in range(1, sample.total):
                detail = f"another sample has the key {shown(key)}, with {listed(sample.members)}"
                yield rejected(f"{name}/{key}", "", detail)


def _damage(path: Path) -> str:
    """Damage of an archive, after which nobody knows how many samples follow, or an empty text."""
    try:
        return archives.scan(path).damage
    except (OSError, ValueError) as error:
        return f"unreadable: {error}"


def _record(
    data: DataSettings, split: str, shard: str, name: str, path: Path, members: Mapping[str, str]
) -> RawCaption | Rejected:
    """Caption record of a sample's tar members, or its rejection with the reason."""
    sample_id = f"{shard}/{name}"
    endings = (data.columns.image.lower(),) if data.columns.image else _IMAGES
    member = next((members[ending] for ending in endings if ending in members), None)
    if member is None:
        detail = (
            f"no image: its members end in {listed(members)}, expected {', '.join(endings)}; "
            "data.columns.image names another ending"
        )
        return rejected(sample_id, "", detail)
    image = f"{path.relative_to(data.root).as_posix()}/{member}"
    try:
        values = _json_fields(data, path, members)
        text = "" if data.captions.file else _sample_caption(data, path, members, values)
    except ValueError as error:
        return rejected(sample_id, image, str(error))
    if data.columns.id:
        sample_id = f"{split}-{values[data.columns.id]}"
    field = data.captions.image_key
    key = key_of(values, field) if field else name.rpartition("/")[2]
    return checked(sample_id, f"{split}-{image}", image, (text,), (), split, key)


def _json_fields(data: DataSettings, path: Path, members: Mapping[str, str]) -> Mapping[str, Any]:
    """Fields of a sample's JSON member, empty where no setting needs them.

    Raises:
        ValueError: it has not the id that is asked for, or the member is damaged.
    """
    columns, values = data.columns, {}
    if data.captions.file:
        wanted = bool(columns.id or data.captions.image_key)
    else:
        wanted = bool(columns.caption or columns.id or _TEXT not in members)
    if _JSON in members and wanted:
        values = parse_json(archives.read(path, members[_JSON]))
        if not isinstance(values, dict):
            raise ValueError(f"{members[_JSON]}: {shown(values)}, expected an object")
    if columns.id and values.get(columns.id) is None:
        raise ValueError(f"no field {columns.id} (data.columns.id)")
    return values


def _sample_caption(
    data: DataSettings, path: Path, members: Mapping[str, str], values: Mapping[str, Any]
) -> object:
    """Caption of a sample, from its text member or a field of its JSON member.

    Raises:
        ValueError: it has none, or a member is damaged.
    """
    field = data.columns.caption or _CAPTION
    ending = _TEXT if data.columns.caption is None else field.lower()
    if ending in members:
        return archives.read(path, members[ending]).decode("utf-8", "surrogateescape").strip()
    if field not in values:
        raise ValueError(
            f"no caption: its members end in {listed(members)}, expected txt, or json with the "
            f"field {field}; data.columns.caption names another field or ending"
        )
    return values[field]
