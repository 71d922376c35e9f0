"""The distinct images of a run, and their rows in a table of features, for millions of images.

An image is identified by a hash of 64 bits; of a million images two have the same with a
probability of 3e-8. `ImageInput` objects are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.run.seeding import digest

Keys = NDArray[np.uint64]


def key_of(image: ImageInput) -> int:
    """The 64-bit hash that identifies an image of a batch."""
    return digest(image.axis or "", image.counterfactual, *image.paths)


def keys_of(images: Iterable[ImageInput]) -> Keys:
    """The 64-bit hashes [n] of images."""
    return np.fromiter(map(key_of, images), np.uint64)


class Images(Sequence[ImageInput]):
    """Sequence of image inputs that stores 16 bytes for each and makes the objects on access.

    Args:
        keys: their hashes [n].
        places: a number [n] for each, from which `make` makes it.
        make: the image of such a number.
    """

    def __init__(
        self, keys: Keys, places: NDArray[np.int64], make: Callable[[int], ImageInput]
    ) -> None:
        self.keys, self._places, self._make = keys, places, make

    @classmethod
    def from_sequence(cls, images: Sequence[ImageInput]) -> Images:
        """A sequence of images that are in memory."""
        return cls(keys_of(images), np.arange(len(images)), images.__getitem__)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> ImageInput: ...
    @overload
    def __getitem__(self, place: slice) -> Images: ...
    def __getitem__(self, place: int | slice) -> ImageInput | Images:
        if isinstance(place, slice):
            return Images(self.keys[place], self._places[place], self._make)
        return self._make(int(self._places[place]))

    def without(self, rows: ImageRows) -> Images:
        """The images that have no row in a table of features, in the given order."""
        new = rows.find(self.keys) < 0
        return Images(self.keys[new], self._places[new], self._make)


class ImageRows:
    """Index of the row of each image in a table of features; 12 bytes an image.

    Args:
        keys: hashes of the images of rows 0 to n - 1; of equal ones the first counts.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        keys = np.empty(0, np.uint64) if keys is None else keys
        order = keys.argsort(kind="stable")
        self._sorted, self._rows = keys[order], order.astype(np.int32)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> Keys:
        """Hashes of the images, in the order of their rows."""
        keys = np.empty_like(self._sorted)
        keys[self._rows] = self._sorted
        return keys

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Rows [m] of the images with the given hashes; -1 for a hash without a row."""
        if not len(self):
            return np.full(len(keys), -1)
        places = self._sorted.searchsorted(keys).clip(max=len(self) - 1)
        return np.where(self._sorted[places] == keys, self._rows[places], -1)

    def rows_of(self, images: Iterable[ImageInput]) -> NDArray[np.int64]:
        """Rows [m] of the given images.

        Raises:
            KeyError: one has no row.
        """
        images = list(images)
        rows = self.find(keys_of(images))
        if rows.min(initial=0) < 0:
            raise KeyError(images[int(rows.argmin())])
        return rows
