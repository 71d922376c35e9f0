"""A caption's own image, alone: what every method shows at some of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from compo_pipeline.language.concepts import Concept
from compo_pipeline.methods.contract import Example, ImageInput
from compo_pipeline.records import Caption, View


def single_image(example: Example) -> ImageInput:
    """The anchor's own image."""
    return ImageInput((example.caption.image,))


def own_sentence(example: Example) -> str:
    """What the anchor's image is paired with where it is shown alone: the sentence of its view,
    of a composite the first of its own caption.
    """
    view = example.view
    return view.positives[0] if view.kind == "single" else example.caption.sentences[0]


def single_view(
    caption: Caption,
    positives: Sequence[str],
    negatives: Sequence[str | None],
    provenance: str,
    phrases: Sequence[Concept] = (),
    counterfactuals: Sequence[str] = (),
) -> View:
    """A view of one image; negatives are None where a generator found nothing, phrases are of
    the first positive.
    """
    return View(
        sample_id=caption.sample_id,
        kind="single",
        sample_ids=(caption.sample_id,),
        images=(caption.image,),
        axis=None,
        positives=tuple(positives),
        negatives=tuple(negatives),
        phrases=tuple(phrase.text for phrase in phrases),
        phrase_spans=tuple(place for phrase in phrases for place in (phrase.start, phrase.end)),
        counterfactuals=tuple(counterfactuals),
        provenance=provenance,
    )
