"""Facts: what is measured of every caption row, and how rows stand to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compo_pipeline.images.decoding import Picture
from compo_pipeline.records import Caption, Fact


def measured(
    captions: Sequence[Caption],
    words: Sequence[Sequence[int]],
    pictures: Mapping[str, Picture],
    splits: Sequence[str],
) -> Iterator[Fact]:
    """One fact per caption row.

    Of rows that repeat each other within a split the first is clean. A picture in several splits
    stays in the last one named: held-out data keep their pictures, and the rows before leak.

    Args:
        captions: the rows.
        words: per row, the words of each sentence.
        pictures: what was found at each path.
        splits: all splits, those held out last.
    """
    rank = {split: place for place, split in enumerate(splits)}
    contents = {image: _content(picture) for image, picture in pictures.items()}
    last_split: dict[str, int] = {}
    for caption in captions:
        content = contents[caption.image]
        last_split[content] = max(rank[caption.split], last_split.get(content, 0))
    ids: set[str] = set()
    pairs: set[tuple[str, str, str]] = set()
    for row, (caption, counts) in enumerate(zip(captions, words, strict=True)):
        picture, content = pictures[caption.image], contents[caption.image]
        pair = (caption.split, content, caption.sentences[0] if caption.sentences else "")
        yield Fact(
            row=row,
            sample_id=caption.sample_id,
            image=caption.image,
            split=caption.split,
            image_hash=picture.sha256,
            decode_error=picture.error,
            width=picture.width,
            height=picture.height,
            sentences=len(counts),
            least_words=min(counts, default=0),
            most_words=max(counts, default=0),
            repeats_id=caption.sample_id in ids,
            repeats_pair=pair in pairs,
            leaks=rank[caption.split] < last_split[content],
        )
        ids.add(caption.sample_id)
        pairs.add(pair)


def _content(picture: Picture) -> str:
    """What makes two pictures the same: their bytes, or the path of one that does not decode."""
    return picture.path if picture.error else picture.sha256
