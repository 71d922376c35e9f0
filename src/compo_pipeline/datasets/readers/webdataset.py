"""WebDataset shards: tars of `<key>.jpg` with `<key>.txt` or `<key>.json`, read in place.

So does img2dataset write them with `--output_format webdataset`. A caption is the field
`data.columns.caption` of the JSON; without one the text, else the field `caption`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.datasets.readers.joined import key_of
from compo_pipeline.datasets.readers.record import (
    RawCaption,
    SourceError,
    checked,
    rejected,
    shard_files,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage import archives
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.untrusted import parse_json, shown

_IMAGES = ("jpg", "jpeg", "png", "webp")
_TEXT, _JSON, _CAPTION = "txt", "json", "caption"


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's tar shards, sorted by name."""
    if data.columns.image:
        raise SourceError("data.columns.image says nothing of .tar shards: images are members")
    return shard_files(data, source, ".tar")


def image_folder(data: DataSettings, source: str) -> Path:
    """The data's root, as an image's path begins with the path of its shard."""
    return data.root


def count(data: DataSettings, source: str) -> int:
    """Number of samples in a split's shards; a shard that is no tar archive counts as one."""
    found = (_samples(path) for path in caption_files(data, source))
    return sum(1 if samples is None else len(samples) for samples in found)


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per sample of the shards, and a rejection per damaged shard."""
    for path in caption_files(data, source):
        shard = path.relative_to(data.root).as_posix()
        name = f"{split}-{shard.removesuffix('.tar')}"
        samples = _samples(path)
        if samples is None:
            yield rejected(name, shard, f"{shard} is not a tar archive")
            continue
        for key, members in samples.items():
            yield _record(data, split, name, key, path, members)
        if archives.scan(path).cut:
            yield rejected(name, shard, f"{shard} is cut off: what followed is missing")


def _samples(path: Path) -> dict[str, dict[str, str]] | None:
    """Mapping from sample key to its tar members by suffix; None if the file is no archive."""
    try:
        return archives.samples(archives.scan(path))
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read: {error.strerror}; fetch it again, or change data.splits"
        ) from error
    except ValueError:
        return None


def _record(
    data: DataSettings, split: str, shard: str, name: str, path: Path, members: Mapping[str, str]
) -> RawCaption | Rejected:
    """Caption record of a sample's tar members, or its rejection with the reason."""
    sample_id = f"{shard}/{name}"
    member = next((members[ending] for ending in _IMAGES if ending in members), None)
    if member is None:
        detail = f"no image ({', '.join(_IMAGES)}) among {', '.join(members)}"
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
    """Fields of a sample's JSON member; empty where no setting needs them.

    Raises:
        ValueError: it has not the id that is asked for, or the member is damaged.
    """
    columns, values = data.columns, {}
    if data.captions.file:
        wanted = bool(columns.id or data.captions.image_key)
    else:
        wanted = bool(columns.caption or columns.id or _TEXT not in members)
    if _JSON in members and wanted:
        values = parse_json(_read_member(path, members[_JSON]))
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
    if data.columns.caption is None and _TEXT in members:
        return _read_member(path, members[_TEXT]).decode("utf-8", "surrogateescape").strip()
    if field not in values:
        raise ValueError(f"neither a text nor a field {field} of a JSON member")
    return values[field]


def _read_member(path: Path, member: str) -> bytes:
    """Read the bytes of a tar member; raise an error if the archive is cut off before its end."""
    content = archives.read(path, member)
    if len(content) < archives.scan(path).members[member][1]:
        raise ValueError(f"{member}: the archive ends before it does")
    return content
