"""Caption editors and image generators by name.

An installed package adds its own by entry points of the groups `compo_pipeline.caption_editors` and
`compo_pipeline.image_generators`, which name an `EditorEntry` and a `GeneratorEntry`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import Any, cast

from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.settings import parse
from compo_pipeline.data.annotations import AnnotationSettings
from compo_pipeline.generation.counterfactuals.contract import (
    CaptionEditor,
    EditorEntry,
    GeneratorEntry,
    ImageGenerator,
    Opening,
)
from compo_pipeline.generation.counterfactuals.settings import (
    EDITOR_GROUP,
    GENERATOR_GROUP,
    KEY,
    CounterfactualSettings,
    DiffusionSettings,
    EditorEndpointSettings,
    RulesSettings,
)

_EDITORS = "compo_pipeline.generation.counterfactuals.editors"
_TABLE = "compo_pipeline.generation.counterfactuals.table"
_DIFFUSION = "compo_pipeline.generation.counterfactuals.generators.diffusion"
RULES = EditorEntry(RulesSettings, f"{_EDITORS}.rules:RuleEditor", "negatives")
ENDPOINT = EditorEntry(EditorEndpointSettings, f"{_EDITORS}.llm:EndpointEditor")
TABLE = EditorEntry(AnnotationSettings, f"{_TABLE}:TableEditor", parses=False)
TABLE_IMAGES = GeneratorEntry(AnnotationSettings, f"{_TABLE}:TableImages", editor="table")
DIFFUSION = GeneratorEntry(DiffusionSettings, f"{_DIFFUSION}:open_generator")

CAPTION_EDITORS: Registry[EditorEntry] = Registry(
    EDITOR_GROUP,
    {name: f"{__name__}:{name.upper()}" for name in ("rules", "endpoint", "table")},
)
IMAGE_GENERATORS: Registry[GeneratorEntry] = Registry(
    GENERATOR_GROUP,
    {"diffusion": f"{__name__}:DIFFUSION", "table": f"{__name__}:TABLE_IMAGES"},
)


def chosen_entries(
    settings: CounterfactualSettings,
) -> Iterator[tuple[str, EditorEntry | GeneratorEntry]]:
    """Yield name and registry entry of the configured caption editor and image generator."""
    yield settings.caption_editor, CAPTION_EDITORS[settings.caption_editor]
    if settings.image_generator is not None:
        yield settings.image_generator, IMAGE_GENERATORS[settings.image_generator]


def refuse_unfit(settings: CounterfactualSettings) -> None:
    """Raise an error if the image generator needs another caption editor than the configured one.

    Raises:
        ValueError: naming the key.
    """
    name = settings.image_generator
    needed = IMAGE_GENERATORS[name].editor if name is not None else None
    if needed not in (None, settings.caption_editor):
        raise ValueError(
            f"{KEY}.image_generator: {name} shows what the caption editor {needed} edited, got the "
            f"caption editor {settings.caption_editor}"
        )


def open_editor(settings: CounterfactualSettings, opening: Opening) -> CaptionEditor:
    """Create the configured caption editor.

    Raises:
        SettingsError: settings that cannot be used, found before a caption is edited.
    """
    name = settings.caption_editor
    return cast(CaptionEditor, _open(CAPTION_EDITORS[name], settings, name, opening))


def open_generator(
    settings: CounterfactualSettings, opening: Opening, editor: CaptionEditor
) -> ImageGenerator | None:
    """Create the configured image generator, or None if no images are wanted.

    Raises:
        SettingsError: as of `open_editor`.
    """
    name = settings.image_generator
    if name is None:
        return None
    entry = IMAGE_GENERATORS[name]
    return cast(ImageGenerator, _open(entry, settings, name, opening, editor))


def _open(
    entry: EditorEntry | GeneratorEntry, settings: CounterfactualSettings, name: str, *given: Any
) -> object:
    """Make an editor or generator of its own settings."""
    key = f"{KEY}.{name}"
    own: Any = parse(entry.settings, getattr(settings, name), key)
    return pkgutil.resolve_name(entry.path)(own, key, *given)
