"""The distinct images of a run, for millions of images.

An image is identified by a hash of 64 bits; of a million images two have the same with a
probability of 3e-8. `ImageInput` objects are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.core.seeding import digest
from compo_pipeline.methods.contract import ImageInput

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
        keys: hashes of the images of rows 0 to n - 1.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys, self._order = keys, keys.argsort(kind="stable").astype(np.int32)

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Keys) -> NDArray[np.int32]:
        """Rows [m] of the images with the given hashes; -1 for a hash without a row."""
        if not len(self):
            return np.full(len(keys), -1, np.int32)
        places = np.searchsorted(self.keys, keys, sorter=self._order).clip(max=len(self) - 1)
        rows = self._order[places]
        return np.where(self.keys[rows] == keys, rows, np.int32(-1))

    def rows_of(self, images: Sequence[ImageInput]) -> NDArray[np.int32]:
        """Rows [m] of the given images.

        Raises:
            KeyError: one has no row.
        """
        rows = self.find(keys_of(images))
        if rows.min(initial=0) < 0:
            raise KeyError(images[int(rows.argmin())])
        return rows
