"""Facts: what is measured of every caption row, and how rows stand to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compo_pipeline.images.decoding import DecodedImage
from compo_pipeline.records import Caption, Fact


def measured(
    captions: Sequence[Caption],
    words: Sequence[Sequence[int]],
    images: Mapping[str, DecodedImage],
    splits: Sequence[str],
) -> Iterator[Fact]:
    """One fact per caption row.

    Of rows that repeat each other within a split the first is clean. An image in several splits
    stays in the last one named: held-out data keep their images, and the rows before leak.

    Args:
        captions: the rows.
        words: per row, the words of each sentence.
        images: what was found at each path.
        splits: all splits, those held out last.
    """
    rank = {split: place for place, split in enumerate(splits)}
    contents = {image: _content(decoded) for image, decoded in images.items()}
    last_split: dict[str, int] = {}
    for caption in captions:
        content = contents[caption.image]
        last_split[content] = max(rank[caption.split], last_split.get(content, 0))
    ids: set[str] = set()
    pairs: set[tuple[str, str, str]] = set()
    for row, (caption, counts) in enumerate(zip(captions, words, strict=True)):
        decoded, content = images[caption.image], contents[caption.image]
        pair = (caption.split, content, caption.sentences[0] if caption.sentences else "")
        yield Fact(
            row=row,
            sample_id=caption.sample_id,
            image=caption.image,
            split=caption.split,
            image_hash=decoded.sha256,
            decode_error=decoded.error,
            width=decoded.width,
            height=decoded.height,
            sentences=len(counts),
            least_words=min(counts, default=0),
            most_words=max(counts, default=0),
            repeats_id=caption.sample_id in ids,
            repeats_pair=pair in pairs,
            leaks=rank[caption.split] < last_split[content],
        )
        ids.add(caption.sample_id)
        pairs.add(pair)


def _content(image: DecodedImage) -> str:
    """What makes two images the same: their bytes, or the path of one that does not decode."""
    return image.path if image.error else image.sha256
