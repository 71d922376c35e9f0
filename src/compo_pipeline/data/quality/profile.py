"""Profile of a dataset: splits, caption lengths, image sizes, duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

_BINS = 16


def profile(facts: pd.DataFrame) -> dict[str, Any]:
    """Compute the profile of a dataset: splits, histograms and numbers of duplicates.

    Args:
        facts: one row per caption row.
    """
    readable = facts[facts.decode_error.isna()]
    splits = [
        {
            "name": str(name),
            "rows": len(part),
            "images": part.image_hash[part.decode_error.isna()].nunique(),
            "unreadable": int(part.decode_error.notna().sum()),
        }
        for name, part in facts.groupby("split", sort=False)
    ]
    written = facts[facts.sentences > 0]
    columns = {
        "sentences a row": facts.sentences,
        "words of the shortest sentence": written.least_words,
        "words of the longest sentence": written.most_words,
        "image width, pixels": readable.width,
        "image height, pixels": readable.height,
    }
    return {
        "splits": splits,
        "distributions": [
            _distribution(label, column.to_numpy())
            for label, column in columns.items()
            if len(column)
        ],
        "duplicates": {
            "rows with the sample_id of an earlier row": int(facts.repeats_id.sum()),
            "rows with image and first sentence of an earlier row": int(facts.repeats_pair.sum()),
            "rows whose image is in a later, held-out split too": int(facts.leaks.sum()),
            "rows that share their image with another row": int(
                readable.image_hash.duplicated(keep=False).sum()
            ),
        },
    }


def _distribution(label: str, values: NDArray[np.int64]) -> dict[str, Any]:
    """Least, median and largest value of a column, and a histogram.

    Its bars are (from, to, rows), both bounds inclusive.
    """
    least, most = int(values.min()), int(values.max())
    # Whole numbers in bins of equal width.
    width = -(-(most - least + 1) // _BINS)
    counts = np.bincount((values - least) // width)
    bars = [
        (least + place * width, min(least + (place + 1) * width - 1, most), int(count))
        for place, count in enumerate(counts)
    ]
    median = float(np.median(values))
    return {"label": label, "least": least, "median": median, "most": most, "bars": bars}
