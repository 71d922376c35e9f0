"""Real pairs and synthetic pairs edited from them: views and batches of SPARCL and TripletCLIP.

Shapes: n rows of a batch, 3 kinds in the order of `losses.sextuple` (real, negative, positive), P
present images and K present texts, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compo_pipeline.core.records import Caption, Counterfactual, View
from compo_pipeline.core.tables import Groups, Table
from compo_pipeline.language.editing import Generated
from compo_pipeline.losses.sextuple import NEGATIVE, POSITIVE, REAL
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    ImageInput,
    Method,
    Preprocessor,
    Sampler,
    ViewContext,
)
from compo_pipeline.methods.views import single_image, single_view

KINDS = (REAL, NEGATIVE, POSITIVE)
NAMES = {NEGATIVE: "negative", POSITIVE: "rephrased caption"}


class PairsBatch(NamedTuple):
    """Batch of n rows with up to three image-text pairs each: real, negative and positive.

    Images and texts are ordered by kind, without gaps.
    """

    images: Tensor  # [P, 3, H, W], or [P] rows of features
    texts: Tensor  # [K, T]
    images_there: Tensor  # [3, n] bool, P of them true
    texts_there: Tensor  # [3, n] bool, K of them true


class CounterfactualPairs(Method):
    """Base class of methods that train on synthetic pairs.

    Subclasses add the loss.
    """

    kinds: tuple[int, ...] = KINDS

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from the first caption of an image to its view with one drawn edited caption.

        An image has one view; its other captions have none, but their edited captions are drawn
        too, each with its own edits.

        An image without any edit is shown with its first caption alone.

        Raises:
            ValueError: there are no counterfactuals, or they are of other captions.
        """
        if not context.counterfactuals:
            raise ValueError(
                f"{self.name} trains on counterfactuals, and there are none: "
                f"run `kedro run --pipeline=counterfactuals --params method={self.name}` "
                "(catalog entry `counterfactuals`)"
            )
        images = Groups(Table.of(captions, Caption), "image_id")

        def view(caption: Caption) -> View | None:
            rows = images[caption.image_id]
            if caption != rows[0]:
                return None
            edited = [
                (row, sentence, edits)
                for row in rows
                for sentence, edits in _edits_by_sentence(
                    row, context.counterfactuals.get(row.sample_id, ())
                )
            ]
            drawn = edited or [(rows[0], 0, {})]
            return _counterfactual_view(
                *context.rng("counterfactuals", rows[0]).choice(drawn), context
            )

        return view

    def anchors(self, captions: Table[Caption]) -> NDArray[np.bool_]:
        """Mask [n] of the captions that have a view: the first caption of each image."""
        found = np.zeros(len(captions), bool)
        found[np.unique(captions.codes("image_id"), return_index=True)[1]] = True
        return found

    def images(self, example: Example, step: int) -> list[ImageInput]:
        """Images of an example: the real one, and the synthetic ones that the method uses."""
        return [image for image in self._images_by_kind(example) if image is not None]

    def _images_by_kind(self, example: Example) -> tuple[ImageInput | None, ...]:
        """Real, negative and positive image of an example, or None for an absent or unused one."""
        paths = example.view.counterfactuals
        synthetic = [ImageInput((p,), counterfactual=True) if p else None for p in paths]
        shown = [single_image(example), *synthetic]
        used = self.kinds if self.objective.images else (REAL,)
        return tuple(image if kind in used else None for kind, image in enumerate(shown))

    def _texts_by_kind(self, example: Example) -> tuple[str | None, ...]:
        """Real, negative and positive text, in lower case, or None for an absent or unused one."""
        view = example.view
        real, rephrased = view.positives[0], view.positives[1] if len(view.positives) > 1 else None
        texts = (real, view.negatives[0], rephrased)
        return tuple(
            text.lower() if text is not None and kind in self.kinds else None
            for kind, text in enumerate(texts)
        )

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images and texts by kind.

        Negatives whose text equals a positive are left out.
        """
        texts = list(zip(*map(self._texts_by_kind, examples), strict=True))
        images = list(zip(*map(self._images_by_kind, examples), strict=True))
        tokens = preprocessor.tokens([text or "" for kind in texts for text in kind]).view(
            len(KINDS), len(examples), -1
        )
        texts_there, images_there = _presence_mask(texts), _presence_mask(images)
        alike = (tokens[[REAL, POSITIVE]] == tokens[NEGATIVE]).all(-1)
        equal = texts_there[NEGATIVE] & (alike & texts_there[[REAL, POSITIVE]]).any(0)
        texts_there[NEGATIVE] &= ~equal
        images_there[NEGATIVE] &= ~equal
        shown = [images[kind][row] for kind, row in images_there.nonzero().tolist()]
        counts = {
            "rows": len(examples),
            **{
                f"rows without a {name}": int((~texts_there[kind]).sum())
                for kind, name in NAMES.items()
                if kind in self.kinds
            },
            "synthetic images": int(images_there[1:].sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        batch = PairsBatch(
            preprocessor.images(shown), tokens[texts_there], images_there, texts_there
        )
        return Collated(batch, counts)


def embed_pairs(encoder: Encoder, batch: PairsBatch) -> tuple[Tensor, Tensor]:
    """Image and text embeddings [3, n, D] of real, negative and positive pairs, zero if absent."""
    return (
        _scatter(encoder.images(batch.images), batch.images_there),
        _scatter(encoder.texts(batch.texts), batch.texts_there),
    )


def _scatter(embeddings: Tensor, there: Tensor) -> Tensor:
    """Embeddings [P, D] moved to the P true entries of a mask [3, n], and zeros elsewhere."""
    empty = embeddings.new_zeros(*there.shape, embeddings.shape[-1])
    return empty.masked_scatter(there[..., None], embeddings)


def _presence_mask(kinds: Sequence[Sequence[object | None]]) -> Tensor:
    """Boolean mask of the entries that are not None."""
    return torch.tensor([[one is not None for one in kind] for kind in kinds])


def _edits_by_sentence(
    row: Caption, edits: Sequence[Counterfactual]
) -> list[tuple[int, dict[str, Counterfactual]]]:
    """A caption row's edits that have a text, by the index of the edited sentence and by role."""
    found: defaultdict[int, dict[str, Counterfactual]] = defaultdict(dict)
    for edit in edits:
        if row.sentences[edit.sentence : edit.sentence + 1] != (edit.caption,):
            raise ValueError(
                f"counterfactuals of {row.sample_id} are of another caption ('{edit.caption}'): "
                "the captions changed since; run `kedro run --pipeline=counterfactuals`"
            )
        if edit.text:
            found[edit.sentence][edit.role] = edit
    return sorted(found.items())


def _counterfactual_view(
    row: Caption, sentence: int, edits: dict[str, Counterfactual], context: ViewContext
) -> View:
    """View of one sentence of a caption with its negative and positive edit, if they exist."""
    negative, positive = edits.get("negative"), edits.get("positive")
    made = None
    if negative:
        made = Generated(negative.text, negative.caption_editor, negative.detail, ())
    return single_view(
        row,
        (row.sentences[sentence], *([positive.text] if positive else [])),
        (made,),
        context.language,
        counterfactuals=tuple(edit.image if edit else "" for edit in (negative, positive)),
    )
