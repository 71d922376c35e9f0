"""Images and texts to tensors, in whichever process the batches are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from compo_pipeline.images import composites, decoding
from compo_pipeline.images.crops import random_resized_crop
from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.seeding import rng

# Composites squash the same images again and again: as many halves as fit in here are kept.
KEPT_BYTES = 64 * 2**20
# Tokens looked at behind a model's context: what is cut there is none that ends a cut text here.
BEYOND = 2


class TensorReader:
    """Reads as a model wants it: its preprocessing, its mean and deviation, its tokenizer.

    Args:
        model: whose preprocessing and tokenizer count.
        root: folder of the images; nothing outside it is read.
        rows: rows of precomputed features by image; where given, images are not read.
        limits: what is accepted as an image.
        crop_scale: shares of the area that random crops of single images keep; None reads them
            as evaluation does.
        made: folder of the counterfactuals' images, where any are shown.
    """

    def __init__(
        self,
        model: LoadedModel,
        root: Path,
        rows: Mapping[ImageInput, int] | None = None,
        limits: decoding.Limits | None = None,
        crop_scale: tuple[float, float] | None = None,
        made: Path | None = None,
    ) -> None:
        self.root, self.made, self.rows = root, made, rows
        self.limits = limits or decoding.Limits()
        self.size, self.context = model.image_size, model.context_length
        self.preprocess, self.tokenize = model.preprocess, model.tokenize
        self.mean = torch.tensor(model.mean).view(3, 1, 1) * 255
        self.std = torch.tensor(model.std).view(3, 1, 1) * 255
        # What the tokenizer fills short texts up with: 0, or another id of its own.
        self.padding = int(self.tokenize([""])[0, -1])
        self._truncated = 0
        self.crop_scale = crop_scale
        self._place: tuple[int, int] = 0, 0
        self._half = self._remembering()

    def __getstate__(self) -> dict[str, object]:
        """Without the cache, which does not travel to other processes."""
        return {key: value for key, value in self.__dict__.items() if key != "_half"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """With a new cache."""
        self.__dict__.update(state)
        self._half = self._remembering()

    def _remembering(self) -> Callable[[str, composites.Axis], Image.Image]:
        half = self.size * self.size // 2 * 3
        return lru_cache(KEPT_BYTES // half)(self._read_half)

    def _read_half(self, path: str, axis: composites.Axis) -> Image.Image:
        return composites.half(decoding.load(self.root, path, self.limits), axis, self.size)

    def begin(self, seed: int, step: int) -> None:
        """What is read next belongs to a step of a run: its crops are drawn for it."""
        self._place = seed, step

    def pixels(self, image: ImageInput) -> Tensor:
        """One image, [3, H, W], normalised.

        Composites are already of the input's size; they take the model's own mean and deviation
        (the authors' code takes ImageNet's: a slip).
        """
        if image.axis is None:
            return self.preprocess(self._single(image))
        first, second = (self._half(path, image.axis) for path in image.paths)
        joined = composites.join(first, second, image.axis)
        raw = torch.frombuffer(bytearray(joined.tobytes()), dtype=torch.uint8)
        return (raw.view(self.size, self.size, 3).permute(2, 0, 1) - self.mean) / self.std

    def _single(self, image_input: ImageInput) -> Image.Image:
        """An image, or a random crop of it at the input's size, which preprocessing leaves."""
        path = image_input.paths[0]
        image = (
            self._made(path) if image_input.made else decoding.load(self.root, path, self.limits)
        )
        if self.crop_scale is None:
            return image
        return random_resized_crop(
            image, self.size, self.crop_scale, rng(*self._place, "crop", path)
        )

    def _made(self, path: str) -> Image.Image:
        """A counterfactual's image."""
        if self.made is None:
            raise ValueError(f"'{path}' is a counterfactual's, and no folder of them was given")
        try:
            return decoding.load(self.made, path, self.limits)
        except decoding.ImageError as error:
            detail = (
                f"{error} (counterfactuals changed since the views were drawn? Run "
                "`kedro run --pipelines=counterfactuals,views`)"
            )
            raise decoding.ImageError(error.reason, detail) from error

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """Pixels [m, 3, H, W], or row numbers [m] of precomputed features."""
        if self.rows is not None:
            return torch.tensor([self.rows[image] for image in images])
        return torch.stack([self.pixels(image) for image in images])

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Token ids [K, T]; texts that do not fit are cut and counted."""
        tokens = self.tokenize(list(texts))
        full = tokens[:, -1] != self.padding
        if full.any():  # cut, or an exact fit
            long = [text for text, whole in zip(texts, full.tolist(), strict=True) if whole]
            longer = self.tokenize(long, context_length=self.context + 1)  # type: ignore[call-arg]
            self._truncated += int((longer[:, -1] != self.padding).sum())
        return tokens

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Which tokens spell a run of a text's characters.

        No tokenizer has to tell where its tokens stand: the tokens of a beginning that ends with a
        word are the first ones of the whole text too.

        Args:
            texts: as `tokens` gets them.
            owners: K places in `texts`.
            spans: K half-open runs of characters of those texts, which begin and end with words.

        Returns:
            [K, T], bool; none for a run that is cut off with its text, be it in part.
        """
        runs = list(zip(owners, spans, strict=True))
        rows = torch.tensor(owners, dtype=torch.long)
        # With a word behind it, a whole text is a beginning like the others.
        whole = self._more_tokens([f"{text} x" for text in texts])
        kept = F.pad(self.tokenize(list(texts)) == whole[:, : self.context], (0, BEYOND))[rows]
        firsts = self._agreeing([texts[owner][:start] for owner, (start, _) in runs], whole[rows])
        ends = self._agreeing([texts[owner][:end] for owner, (_, end) in runs], whole[rows])
        place = torch.arange(whole.shape[1])
        within = (place >= firsts[:, None]) & (place < ends[:, None])
        complete = (within <= kept).all(dim=1, keepdim=True)
        return (within & complete)[:, : self.context]

    def _agreeing(self, beginnings: Sequence[str], tokens: Tensor) -> Tensor:
        """How many tokens [K] of each beginning are the first ones of tokens [K, T + BEYOND]."""
        distinct = {text: place for place, text in enumerate(dict.fromkeys(beginnings))}
        rows = torch.tensor([distinct[text] for text in beginnings], dtype=torch.long)
        found = self._more_tokens(list(distinct))[rows]
        return (found == tokens).cumprod(dim=1).sum(dim=1)

    def _more_tokens(self, texts: list[str]) -> Tensor:
        """Token ids [K, T + BEYOND]."""
        more = self.context + BEYOND
        if not texts:
            return torch.zeros(0, more, dtype=torch.long)
        return self.tokenize(texts, context_length=more)  # type: ignore[call-arg]

    def take_truncated(self) -> int:
        """How many texts were cut since the last call."""
        count, self._truncated = self._truncated, 0
        return count
