"""Rows that are held out of training, where a source has no held-out split of its own.

They are of images that a sample leaves (split `held_out`), or else are taken from the rows that
would train (split `carved`). All rows of an image leave together.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.core.records import Caption, Rejected
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.tables import CARVED, HELD_OUT, Table, codes
from compo_pipeline.data.images.decoding import DecodedImage
from compo_pipeline.data.readers.record import RawCaption

_SHARE = 10  # at most one training image in so many is carved

log = logging.getLogger(__name__)


def surplus(
    records: Iterable[RawCaption | Rejected],
    sample: Iterable[RawCaption | Rejected],
    split: str,
    images: int,
) -> list[RawCaption]:
    """Records of images that a sample leaves out, moved to the split `held_out`.

    The hash of an image's path draws among them, so no other image changes which of two is
    preferred.

    Args:
        records: records of the source.
        sample: records that were drawn, and those of other splits.
        split: the sampled one.
        images: largest number of images.
    """
    taken = {digest(record.image) for record in sample if isinstance(record, RawCaption)}
    found: dict[int, list[RawCaption]] = {}
    ranks: list[int] = []  # max-heap: the first entry is the next to be dropped
    for record in records:
        if isinstance(record, Rejected) or record.split != split or digest(record.image) in taken:
            continue
        rank = digest(HELD_OUT, record.image)
        if rank not in found:
            if len(ranks) < images:
                heapq.heappush(ranks, -rank)
            elif -rank > ranks[0]:
                del found[-heapq.heapreplace(ranks, -rank)]
            else:
                continue
        found.setdefault(rank, []).append(replace(record, split=HELD_OUT))
    return [record for own in found.values() for record in own]


def carve(
    rows: Table[Caption], images: Table[DecodedImage], split: str, wanted: int
) -> Table[Caption]:
    """Move the rows of some training images to the split `carved`, which is not trained on.

    The hash of an image's content draws it. Images that a further split has too are left alone:
    they do not train. At most a tenth of the training images is taken.

    Args:
        rows: rows of all splits. Those of `held_out` count as wanted images.
        images: measurements, in the order in which the rows name the images first.
        split: split that trains.
        wanted: number of held-out images in all.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    content = content_of(rows, images)
    names = rows.column("split")
    trains, spare = (np.asarray(pc.equal(names, name), bool) for name in (split, HELD_OUT))
    whole = np.asarray(pc.is_null(images.column("error")))[rows.codes("image")]
    missing = wanted - len(np.unique(content[spare & whole]))
    if missing <= 0:
        return rows
    elsewhere = np.unique(content[~trains])
    distinct, first = np.unique(content, return_index=True)
    fit = (trains & whole)[first] & ~np.isin(distinct, elsewhere)
    hashes = images.column("sha256").take(pa.array(rows.codes("image")[first[fit]])).to_pylist()
    count = min(missing, len(hashes) // _SHARE)
    if count < missing:
        log.warning(
            "foils.carve: %d images are to be held out, but no more than a tenth of %d training "
            "images is carved: %d are; lower foils.carve, or add data.",
            wanted,
            len(hashes),
            count,
        )
    order = np.argsort([digest(CARVED, each) for each in hashes], kind="stable")
    chosen = np.isin(content, distinct[fit][order[:count]])
    moved = pc.if_else(pa.array(chosen), CARVED, names.combine_chunks())
    return rows.with_columns(split=pa.chunked_array([moved]))


def content_of(rows: Table[Caption], images: Table[DecodedImage]) -> NDArray[np.int64]:
    """Integer id of each row's image content [n], equal for images with equal bytes.

    Images that do not decode equal only themselves.
    """
    import pyarrow.compute as pc

    errors = images.column("error")
    same = pc.if_else(pc.is_null(errors), images.column("sha256"), images.column("path"))
    return codes(same)[rows.codes("image")].astype(np.int64)
