"""Caption editor, parser and image generator that the settings choose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import parse
from compo_pipeline.counterfactuals.contract import CaptionEditor, ImageGenerator
from compo_pipeline.counterfactuals.generation import Parser
from compo_pipeline.counterfactuals.settings import (
    KEY,
    CounterfactualSettings,
    DiffusionSettings,
    EndpointSettings,
    RulesSettings,
    TransformersSettings,
)
from compo_pipeline.records import Caption, Parse

if TYPE_CHECKING:
    from compo_pipeline.scenes.counterfactuals import SceneCounterfactuals

SCENES = "scenes"


def open_all(
    settings: CounterfactualSettings,
    captions: Sequence[Caption],
    *,
    language_model: str,
    root: Path,
    world: Mapping[str, Any],
    state: Path,
) -> tuple[CaptionEditor, Parser, ImageGenerator | None]:
    """Caption editor, parser of its captions, and image generator; None where no images are asked.

    Args:
        settings: name editor and generator and hold the settings of each.
        captions: the rows whose sentences are edited.
        language_model: of the parser.
        root: folder of the real images.
        world: of rendered scenes, as under `scenes.world`.
        state: folder where editors store the answers of language models.

    Raises:
        SettingsError: settings that cannot be used, found before a caption is edited.
    """
    if settings.caption_editor == SCENES:
        scenes = _scenes(settings, captions, root, world)
        generator = scenes if settings.image_generator == SCENES else _generator(settings)
        return scenes, Parser("", _unparsed), generator
    return _editor(settings, state), _parser(language_model), _generator(settings)


def _editor(settings: CounterfactualSettings, state: Path) -> CaptionEditor:
    name, seed = settings.caption_editor, settings.seed
    key, values, answers = f"{KEY}.{name}", getattr(settings, name), state / f"{name}.sqlite"
    if name == "rules":
        from compo_pipeline.counterfactuals.editors.rules import RuleEditor

        return RuleEditor(parse(RulesSettings, values, key), key=key, seed=seed)
    if name == "endpoint":
        from compo_pipeline.counterfactuals.editors.endpoint import EndpointEditor

        return EndpointEditor(
            parse(EndpointSettings, values, key), key=key, seed=seed, cache=answers
        )
    from compo_pipeline.counterfactuals.editors.local import TransformersEditor

    return TransformersEditor(
        parse(TransformersSettings, values, key), key=key, seed=seed, cache=answers
    )


def _generator(settings: CounterfactualSettings) -> ImageGenerator | None:
    if settings.image_generator is None:
        return None
    import torch

    from compo_pipeline.counterfactuals.generators.diffusion import DiffusionGenerator

    own = parse(DiffusionSettings, settings.diffusion, f"{KEY}.diffusion")
    generator = DiffusionGenerator(own, "cuda" if torch.cuda.is_available() else "cpu")
    generator.check()
    return generator


def _parser(language_model: str) -> Parser:
    from compo_pipeline.language.parsing import loaded, name_and_version, parse_by

    return Parser(name_and_version(loaded(language_model)), partial(parse_by, language_model))


def _unparsed(items: Iterable[tuple[str, int, str]]) -> Iterator[Parse]:
    """Empty parses, for the editor of scenes, which reads none."""
    for sample_id, sentence, text in items:
        yield Parse(sample_id, sentence, text, (), (), (), (), ())


def _scenes(
    settings: CounterfactualSettings, captions: Sequence[Caption], root: Path, world: Any
) -> SceneCounterfactuals:
    from compo_pipeline.scenes.counterfactuals import (
        SceneCounterfactuals,
        SceneEditSettings,
        read_scenes,
    )
    from compo_pipeline.scenes.dataset import WorldSettings

    return SceneCounterfactuals(
        read_scenes(root),
        captions,
        parse(SceneEditSettings, settings.scenes, f"{KEY}.{SCENES}"),
        parse(WorldSettings, world, "scenes.world").world(),
    )
