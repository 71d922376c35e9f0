"""Injection of a real image's CLIP features into the padding of a prompt's embeddings.

Source: SPARCL, Sec. 3: of a text-to-image model's prompt embedding, the positions up to the end of
the text decide what is painted, the padding behind it decides the style. The padding is replaced by
the real image's projected CLIP embedding, as it is: not normalised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def has_padding(token_ids: Tensor, eos: int) -> Tensor:
    """Mask [b] of the prompts that have padding positions after their end token.

    Args:
        token_ids: [b, T].
        eos: the token that ends a text.

    Returns:
        [b] of bool. A prompt without an end was cut off and fills all positions.
    """
    return (token_ids[:, :-1] == eos).any(dim=1)


def inject(prompt: Tensor, token_ids: Tensor, image: Tensor, eos: int) -> Tensor:
    """Replace the padding of prompt embeddings by the CLIP embedding of an image.

    CLIP's tokenizer fills up with the end token itself: only its first one ends the text. A prompt
    that fills all positions comes back as it is; `has_padding` tells which do.

    Args:
        prompt: [b, T, W] output of the text encoder.
        token_ids: token ids that the text encoder has read [b, T].
        image: [b, W] projected embedding of the real image, not normalised.
        eos: the token that ends a text.

    Returns:
        [b, T, W] of the prompt's type.

    Raises:
        ValueError: the shapes do not fit together.
    """
    batch, length, width = prompt.shape
    if token_ids.shape != (batch, length) or image.shape != (batch, width):
        raise ValueError(
            f"a prompt of {tuple(prompt.shape)} needs token ids of {(batch, length)} and an image "
            f"of {(batch, width)}, got {tuple(token_ids.shape)} and {tuple(image.shape)}"
        )
    ends = (token_ids == eos).int()
    behind = ends.cumsum(dim=1) - ends > 0  # an end stands before, not at, the position
    return prompt.where(~behind[..., None], image.to(prompt.dtype)[:, None])
