"""WebDataset shards: tars of `<key>.jpg` with `<key>.txt` or `<key>.json`, read in place.

So does img2dataset write them with `--output_format webdataset`. A caption is the field
`data.columns.caption` of the JSON; without one the text, else the field `caption`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from compo_pipeline.datasets.readers.record import (
    RawCaption,
    SourceError,
    checked,
    no_files,
    rejected,
    source_files,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage import archives
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.untrusted import parse_json, shown

_IMAGES = ("jpg", "jpeg", "png", "webp")
_TEXT, _JSON, _CAPTION = "txt", "json", "caption"


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """The split's shards, in the order of their names."""
    found = source_files(data, source)
    if not found:
        raise no_files(data, source)
    for path in found:
        if path.suffix != ".tar":
            raise SourceError(f"{path} is no .tar shard; set data.splits")
    if data.images or data.columns.image or data.columns.sentences:
        raise SourceError(
            "data.images, data.columns.image and data.columns.sentences say nothing of shards: "
            "images are members, and a caption is one text"
        )
    return found


def image_folder(data: DataSettings, source: str) -> Path:
    """The folder of the shards: an image's path is that of its shard and its member."""
    return data.root


def count(data: DataSettings, source: str) -> int:
    """Samples of a split; a shard that is no archive counts as one."""
    found = (_samples(path) for path in caption_files(data, source))
    return sum(1 if samples is None else len(samples) for samples in found)


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """One record per sample, and one for each shard that is damaged as a whole or cut off."""
    for path in caption_files(data, source):
        shard = path.relative_to(data.root).as_posix()
        name = f"{split}-{shard.removesuffix('.tar')}"
        samples = _samples(path)
        if samples is None:
            yield rejected(name, shard, f"{shard} is not a tar archive")
            continue
        for key, members in samples.items():
            yield _record(data, split, f"{name}/{key}", path, members)
        if archives.scan(path).cut:
            yield rejected(name, shard, f"{shard} is cut off: what followed is missing")


def _samples(path: Path) -> dict[str, dict[str, str]] | None:
    """The members of each sample by their endings; None where the file is no archive."""
    try:
        return archives.samples(archives.scan(path))
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read: {error.strerror}; fetch it again, or change data.splits"
        ) from error
    except ValueError:
        return None


def _record(
    data: DataSettings, split: str, sample_id: str, path: Path, members: Mapping[str, str]
) -> RawCaption | Rejected:
    """A record, or why the members of a sample make none."""
    member = next((members[ending] for ending in _IMAGES if ending in members), None)
    if member is None:
        detail = f"no image ({', '.join(_IMAGES)}) among {', '.join(members)}"
        return rejected(sample_id, "", detail)
    image = f"{path.relative_to(data.root).as_posix()}/{member}"
    try:
        given, text = _texts(data, path, members)
    except ValueError as error:
        return rejected(sample_id, image, str(error))
    if given is not None:
        sample_id = f"{split}-{given}"
    return checked(sample_id, f"{split}-{image}", image, (text,), (), split)


def _texts(data: DataSettings, path: Path, members: Mapping[str, str]) -> tuple[object, object]:
    """The id that the sample's JSON gives, where one is asked for, and its caption.

    Raises:
        ValueError: it has none, or a member is damaged.
    """
    columns, values = data.columns, {}
    if _JSON in members and (columns.caption or columns.id or _TEXT not in members):
        values = parse_json(_content(path, members[_JSON]))
        if not isinstance(values, dict):
            raise ValueError(f"{members[_JSON]}: {shown(values)}, expected an object")
    given = values.get(columns.id) if columns.id else None
    if columns.id and given is None:
        raise ValueError(f"no field {columns.id} (data.columns.id)")
    field = columns.caption or _CAPTION
    if columns.caption is None and _TEXT in members:
        return given, _content(path, members[_TEXT]).decode("utf-8", "surrogateescape").strip()
    if field not in values:
        raise ValueError(f"neither a text nor a field {field} of a JSON member")
    return given, values[field]


def _content(path: Path, member: str) -> bytes:
    content = archives.read(path, member)
    if len(content) < archives.scan(path).members[member][1]:
        raise ValueError(f"{member}: the archive ends before it does")
    return content
