"""Caption editor and image generator that read existing edits and images from a table.

Nothing is checked but that there is a text and an image: the table counts, not our rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from compo_pipeline.core import seeding
from compo_pipeline.core.hashing import file_hash, hash_of
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.annotations import AnnotationSettings
from compo_pipeline.generation.counterfactuals.contract import (
    CaptionEditor,
    EditedCaption,
    EditRequest,
    ImageRequest,
    Opening,
)
from compo_pipeline.generation.counterfactuals.settings import KEY, CounterfactualSettings

if TYPE_CHECKING:
    from PIL.Image import Image

NAME = "table"
TABLE_KEY = f"{KEY}.{NAME}"


def table_settings(settings: CounterfactualSettings) -> tuple[AnnotationSettings, frozenset[str]]:
    """Settings of the external table of edits, and the names of the columns that are read.

    These are texts, and images where they are wanted.

    Raises:
        SettingsError: a column is named that nothing uses, or one that is needed is not.
    """
    own: AnnotationSettings = getattr(settings, NAME)
    if own.file is None:
        raise SettingsError(f"{TABLE_KEY}.file: expected the path of a table, got null")
    with_images = settings.image_generator == NAME
    images = {f"{role}_images" for role in own.roles} if with_images else set()
    able = {"negatives", "positives", *images}
    generator = "null" if settings.image_generator is None else settings.image_generator
    user = f"the caption editor {NAME} with counterfactuals.image_generator {generator}"
    used = own.usable(able, TABLE_KEY, user)
    if missing := sorted(images - used):
        raise SettingsError(
            f"{TABLE_KEY}.columns.{missing[0]}: expected a column, since "
            f"{missing[0].removesuffix('_images')}s are named and counterfactuals.image_generator "
            f"is {NAME}"
        )
    return own, used


class TableEditor:
    """Caption editor that draws the edit of each caption from those in an external table."""

    name: ClassVar[str] = NAME
    concurrent: ClassVar[bool] = False

    def __init__(self, settings: AnnotationSettings, _key: str, opening: Opening) -> None:
        self._annotations, self._seed = opening.annotations, opening.seed
        content = file_hash(Path(str(settings.file)))
        self.settings_fingerprint = hash_of(self.name, settings, opening.seed, content)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        """Yield the table's edit of each caption, or why the table has none."""
        for request in requests:
            place = (request.sample_id, request.sentence)
            found = self._annotations.of_sentence(*place)
            texts = [
                (text, f"record {each.record}")
                for each in found
                for text in (each.negatives if request.role == "negative" else each.positives)
            ]
            if texts:
                draws = seeding.rng(self._seed, self.name, *place, request.role)
                yield EditedCaption(*draws.choice(texts))
            elif found:
                yield f"its record in the table has no {request.role}"
            else:
                yield "the table has no record of it"


class TableImages:
    """Image generator that loads the images which an external table names for edited captions."""

    name: ClassVar[str] = NAME

    def __init__(
        self, settings: AnnotationSettings, _key: str, opening: Opening, editor: CaptionEditor
    ) -> None:
        self._folder, self._annotations = Path(settings.images), opening.annotations
        self.settings_fingerprint = editor.settings_fingerprint

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[Image | str]:
        """Yield the table's image for each text, or why there is none."""
        from compo_pipeline.data.images import decoding

        for request in requests:
            path = self._image_path(request)
            if path is None:
                yield f"the table names no image of this {request.role}"
                continue
            try:
                yield decoding.load(self._folder, path, decoding.Limits())
            except decoding.ImageError as error:
                yield f"{path} below {self._folder} ({TABLE_KEY}.images): {error}"

    def _image_path(self, request: ImageRequest) -> str | None:
        """Path of the image that the table names for a request's text, or None."""
        for each in self._annotations.of_sentence(request.sample_id, request.sentence):
            shown = {
                "negative": zip(each.negatives, each.negative_images, strict=False),
                "positive": zip(each.positives, each.positive_images, strict=False),
            }
            for text, path in shown[request.role]:
                if text == request.text and path:
                    return path
        return None
