"""A caption and further texts of its image, each with one negative: batches of DAC and CS-CLIP.

In their views `negatives` is parallel to `positives`, the caption first; a text that is missing has
no negative either.

Shapes: m rows of a batch, B further texts a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from compo_pipeline.methods.contract import Collated, Example, Preprocessor
from compo_pipeline.methods.negclip import TextNegatives
from compo_pipeline.methods.views import single_image


class TextPairsBatch(NamedTuple):
    """Batch of m images, each with B + 1 texts (first the caption) and their negatives."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [2, m, B + 1, T]: the texts, then their negatives
    valid: Tensor  # [2, m, B + 1] bool: the text exists


class TextPairs(TextNegatives):
    """Base class of methods whose views have several texts, each with one negative."""

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images, texts and their negatives.

        A negative with the same tokens as a text of its row is absent, and counted. The empty text
        in place of a missing one is masked.
        """
        views = [example.view for example in examples]
        rows = [view.positives for view in views] + [view.negatives for view in views]
        width = max(map(len, rows))
        flat = [text for row in rows for text in (*row, *[None] * (width - len(row)))]
        tokens = preprocessor.tokens([(text or "").lower() for text in flat])
        texts = tokens.view(2, len(views), width, -1)
        valid = torch.tensor([text is not None for text in flat]).view(2, len(views), width)
        alike = (texts[1][:, :, None] == texts[0][:, None]).all(-1) & valid[0][:, None]
        equal = valid[1] & alike.any(-1)
        counts = {
            "rows": len(views),
            "further texts": int(valid[0, :, 1:].sum()),
            "negatives that could not be made": int((valid[0] & ~valid[1]).sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        there = torch.stack([valid[0], valid[0] & valid[1] & ~equal])
        images = preprocessor.images([single_image(example) for example in examples])
        return Collated(TextPairsBatch(images, texts, there), counts)
