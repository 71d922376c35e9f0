"""Generators of data: formats whose images and captions are made, not read.

An installed package adds one by entry points of the groups `compo_pipeline.data_generators` (a
module or object with the functions of `DataGenerator`), `compo_pipeline.readers` (of the format
that it writes) and `compo_pipeline.settings` (its settings class), all under the format's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from compo_pipeline.core.plugins import Registry


@dataclass(frozen=True)
class Recipe:
    """An environment that trains on generated data to reduce a weakness of models.

    Attributes:
        env: name of the environment.
        kinds: names of the kinds of change that it teaches (`language.changes.Change`).
        gained: measured gains, for readers.
    """

    env: str
    kinds: tuple[str, ...]
    gained: str


class DataGenerator(Protocol):
    """Interface of generators that make images with captions, and benchmarks about them."""

    def generate(self, settings: Any, root: Path) -> None:
        """Write generated images and captions into a folder, unless they are there already.

        Args:
            settings: settings of the class that the package names in `compo_pipeline.settings`.
            root: the folder, which holds nothing else.

        Raises:
            SettingsError: a setting cannot be used, or the folder holds other files.
        """

    def benchmarks(self, root: str, split: Literal["val", "test"]) -> str:
        """Path of the generated benchmarks about a held-out split, below the data's root."""

    def recipes(self) -> Sequence[tuple[str, tuple[str, ...], str]]:
        """Environments that teach kinds of change, each as a `Recipe`."""


GENERATORS: Registry[DataGenerator] = Registry("compo_pipeline.data_generators", {})
"""Generators by data.format."""
