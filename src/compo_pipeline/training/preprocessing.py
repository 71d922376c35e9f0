"""Images and texts as tensors, by a model's own preprocessing and tokenizer.

K texts or spans, T tokens of a text, m images.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from compo_pipeline.core.seeding import digest, rng
from compo_pipeline.data.images import composites, decoding
from compo_pipeline.data.images.decoding import ACCEPTED, ImageError
from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.tokenizing import lost_tokens
from compo_pipeline.training.ranks import ALONE

# Composites squash the same images again and again: this many bytes of halves are cached.
CACHED_BYTES = 64 * 2**20
# Tokens looked at behind a model's context: what is cut there is none that ends a cut text here.
BEYOND = 2
TRUNCATED, LOST = "truncated texts", "tokens cut off"
Box = tuple[int, int, int, int]
"""Left, upper, right and lower edge in pixels; right and lower lie outside."""

# Width over height of a crop, before it becomes square.
RATIO = (3 / 4, 4 / 3)
_TRIES = 10


def name_of(image: ImageInput) -> str:
    """Identifier of an image of a batch: a 64-bit hash of its paths and how they are combined."""
    return f"{digest(image.axis or '', image.counterfactual, *image.paths):016x}"


class Picklable:
    """Base class of datasets that leave `_cached...` attributes out of their pickles.

    They are sent to worker processes.
    """

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_cached")}


class ModelPreprocessor(Picklable):
    """Turns images and texts into tensors by a model's own preprocessing and tokenizer.

    Args:
        model: model whose preprocessing and tokenizer are used.
        root: folder of the images; nothing outside it is read.
        rows: rows of precomputed features by `name_of` an image; where given, images are not read.
        crop_scale: shares of the area that random crops of single images keep; None reads them
            as evaluation does.
        counterfactual_images: folder of the counterfactuals' images, where any are shown.

    Attributes:
        ranks: processes that read a share each of a batch's images; this one reads its own.
    """

    def __init__(
        self,
        model: LoadedModel,
        root: Path,
        rows: Mapping[str, int] | None = None,
        crop_scale: tuple[float, float] | None = None,
        counterfactual_images: Path | None = None,
    ) -> None:
        self.root, self.counterfactual_images, self.rows = root, counterfactual_images, rows
        self.size, self.context = model.image_size, model.context_length
        self.preprocess, self.tokenize = model.preprocess, model.tokenize
        self.mean = torch.tensor(model.mean).view(3, 1, 1) * 255
        self.std = torch.tensor(model.std).view(3, 1, 1) * 255
        self.crop_scale = crop_scale
        self.ranks = ALONE
        self._cut: Counter[str] = Counter()
        self._seed_and_step: tuple[int, int] = 0, 0

    @cached_property
    def _cached_half(self) -> Callable[[str, composites.Axis], Image.Image]:
        """Function that loads an image as half of a composite (`_read_half`), with a cache."""
        half = self.size * self.size // 2 * 3
        return lru_cache(CACHED_BYTES // half)(self._read_half)

    def _read_half(self, path: str, axis: composites.Axis) -> Image.Image:
        """Load an image and fit it to one half of a composite."""
        return composites.half(decoding.load(self.root, path, ACCEPTED), axis, self.size)

    def set_step(self, seed: int, step: int) -> None:
        """Set the seed and the step that random crops are drawn for."""
        self._seed_and_step = seed, step

    def pixels(self, image: ImageInput) -> Tensor:
        """Load and preprocess one image or composite: normalised pixels [3, H, W].

        Composites are already of the input's size; they take the model's own mean and deviation
        (the authors' code takes ImageNet's: a slip).
        """
        if image.axis is None:
            return self.preprocess(self._load_single(image))
        first, second = (self._cached_half(path, image.axis) for path in image.paths)
        joined = composites.join(first, second, image.axis)
        raw = torch.frombuffer(bytearray(joined.tobytes()), dtype=torch.uint8)
        return (raw.view(self.size, self.size, 3).permute(2, 0, 1) - self.mean) / self.std

    def _load_single(self, shown: ImageInput) -> Image.Image:
        """Load a single image, and crop it at random if `crop_scale` is set."""
        path = shown.paths[0]
        if shown.counterfactual:
            image = self._load_counterfactual(path)
        else:
            image = decoding.load(self.root, path, ACCEPTED)
        if self.crop_scale is None:
            return image
        random_ = rng(*self._seed_and_step, "crop", path)
        return random_resized_crop(image, self.size, self.crop_scale, random_)

    def _load_counterfactual(self, path: str) -> Image.Image:
        """Load a counterfactual's synthetic image from its own folder."""
        if self.counterfactual_images is None:
            raise ValueError(f"'{path}' is a counterfactual's, and no folder of them was given")
        try:
            return decoding.load(self.counterfactual_images, path, ACCEPTED)
        except ImageError as error:
            detail = (
                f"{error} (counterfactuals changed since the views were drawn? Run "
                "`kedro run --pipelines=counterfactuals,views`)"
            )
            raise ImageError(error.reason, detail) from error

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """Pixels [m, 3, H, W] of this process's images, or row numbers [m] of all features."""
        if self.rows is not None:
            return torch.tensor([self.rows[name_of(image)] for image in images], dtype=torch.long)
        own = images[self.ranks.share(len(images))]
        return torch.stack([self.pixels(image) for image in own])

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Token ids [K, T] of texts.

        Counts the texts that are cut to fit.
        """
        tokens = self.tokenize(list(texts))
        lost = lost_tokens(self.tokenize, texts, tokens)
        self._cut.update({TRUNCATED: int((lost > 0).sum()), LOST: int(lost.sum())})
        return tokens

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Boolean mask [K, T] of the tokens that spell each given character span.

        No tokenizer has to report where its tokens are in the text: the tokens of a beginning that
        ends with a word are the first ones of the whole text too.

        Args:
            texts: texts as `tokens` gets them.
            owners: K indices into `texts`.
            spans: K half-open spans of characters of those texts, which begin and end with words.

        Returns:
            [K, T], bool; none for a span that is cut off with its text, be it in part.
        """
        owned = list(zip(owners, spans, strict=True))
        rows = torch.tensor(owners, dtype=torch.long)
        # With a word behind it, a whole text is a beginning like the others.
        whole = self._longer_tokens([f"{text} x" for text in texts])
        uncut = F.pad(self.tokenize(list(texts)) == whole[:, : self.context], (0, BEYOND))[rows]
        firsts = self._shared_lengths(
            [texts[owner][:start] for owner, (start, _) in owned], whole[rows]
        )
        ends = self._shared_lengths([texts[owner][:end] for owner, (_, end) in owned], whole[rows])
        place = torch.arange(whole.shape[1])
        within = (place >= firsts[:, None]) & (place < ends[:, None])
        complete = (within <= uncut).all(dim=1, keepdim=True)
        return (within & complete)[:, : self.context]

    def _shared_lengths(self, beginnings: Sequence[str], tokens: Tensor) -> Tensor:
        """Number [K] of leading tokens that the beginning of a text shares with the whole text.

        Args:
            beginnings: K beginnings of texts.
            tokens: token ids of the whole texts [K, T + BEYOND].
        """
        distinct = {text: row for row, text in enumerate(dict.fromkeys(beginnings))}
        rows = torch.tensor([distinct[text] for text in beginnings], dtype=torch.long)
        found = self._longer_tokens(list(distinct))[rows]
        return (found == tokens).cumprod(dim=1).sum(dim=1)

    def _longer_tokens(self, texts: list[str]) -> Tensor:
        """Token ids [K, T + BEYOND], cut `BEYOND` tokens later than the model's context."""
        more = self.context + BEYOND
        if not texts:
            return torch.zeros(0, more, dtype=torch.long)
        return self.tokenize(texts, context_length=more)  # type: ignore[call-arg]

    def take_cut(self) -> dict[str, int]:
        """Number of texts cut, and of tokens lost, since the last call."""
        counts, self._cut = self._cut, Counter()
        return {name: counts[name] for name in (TRUNCATED, LOST)}


def random_resized_crop(
    image: Image.Image, size: int, scale: tuple[float, float], rng: random.Random
) -> Image.Image:
    """Random crop of an image, resized to a square of `size` x `size` pixels.

    Source: the training transform of the FSC-CLIP and C2LIP recipes, RandomResizedCrop as
    torchvision defines it, bicubic, without a flip: a mirrored image would belie "left" and
    "right".

    Args:
        image: image in RGB.
        size: side of the result.
        scale: least and largest share of the image's area.
        rng: random generator. Equal states give equal pixels.
    """
    box = crop_box(image.width, image.height, scale, rng)
    return image.crop(box).resize((size, size), Image.Resampling.BICUBIC)


def crop_box(width: int, height: int, scale: tuple[float, float], rng: random.Random) -> Box:
    """Random crop box: area uniform in `scale`, aspect ratio log-uniform, position uniform.

    Where ten draws do not fit, as in a panorama, it is the largest central part whose ratio is
    allowed.
    """
    bounds = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(*bounds))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = rng.randint(0, width - across), rng.randint(0, height - down)
            return left, upper, left + across, upper + down
    return _central_box(width, height)


def _central_box(width: int, height: int) -> Box:
    """Largest centred crop box of an image whose aspect ratio is within `RATIO`."""
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    across = max(1, min(width, round(height * ratio)))
    down = max(1, min(height, round(width / ratio)))
    left, upper = (width - across) // 2, (height - down) // 2
    return left, upper, left + across, upper + down
