"""The writer and the maker that the settings name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import parse
from compo_pipeline.counterfactuals.editors.contract import Failed, Request, Writer, Written
from compo_pipeline.counterfactuals.generation import Parsing
from compo_pipeline.counterfactuals.generators.contract import Maker
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.records import Caption, Parse

if TYPE_CHECKING:
    from compo_pipeline.scenes.counterfactuals import SceneCounterfactuals

KEY = "counterfactuals"
SCENES = "scenes"


@dataclass(frozen=True)
class Choice:
    """Opens what one run asks.

    Attributes:
        settings: name writer and maker and hold the settings of each.
        captions: the rows whose sentences are edited.
        root: folder of the real images.
        world: of rendered scenes, as under `scenes.world`.
        cache: folder where writers keep answers.
    """

    settings: CounterfactualSettings
    captions: Sequence[Caption] = field(repr=False)
    root: Path
    world: Mapping[str, Any]
    cache: Path

    def writer(self) -> Writer:
        """The writer.

        Raises:
            SettingsError: its settings cannot be used.
        """
        if self.settings.writer == SCENES:
            return SceneWriter(self._scenes)
        from compo_pipeline.counterfactuals.editors import open_writer

        name, seed = self.settings.writer, self.settings.seed
        values = getattr(self.settings, name)
        return open_writer(name, values, key=f"{KEY}.{name}", seed=seed, folder=self.cache)

    def maker(self) -> Maker | None:
        """The maker, None where no images are asked for.

        Raises:
            SettingsError: its settings cannot be used; told here, before a caption is edited.
        """
        if self.settings.maker is None:
            return None
        if self.settings.maker == SCENES:
            return self._scenes
        import torch

        from compo_pipeline.counterfactuals.generators import settings
        from compo_pipeline.counterfactuals.generators.diffusion import DiffusionMaker
        from compo_pipeline.counterfactuals.locating import locate

        own = parse(settings.DiffusionSettings, self.settings.diffusion, settings.KEY)
        maker = DiffusionMaker(own, "cuda" if torch.cuda.is_available() else "cpu", locate)
        maker.check()
        return maker

    def parsing(self, language_model: str) -> Parsing:
        """Parses of captions, for writers that read them."""
        if self.settings.writer == SCENES:
            return Parsing("", _bare)
        from compo_pipeline.language.loading import identity, load
        from compo_pipeline.language.parsing import parse as parse_sentences

        nlp = load(language_model)
        return Parsing(identity(nlp), lambda items: parse_sentences(nlp, items))

    @cached_property
    def _scenes(self) -> SceneCounterfactuals:
        from compo_pipeline.scenes.counterfactuals import (
            SceneCounterfactuals,
            SceneEditSettings,
            read_scenes,
        )
        from compo_pipeline.scenes.dataset import WorldSettings

        settings = parse(SceneEditSettings, self.settings.scenes, f"{KEY}.{SCENES}")
        world = parse(WorldSettings, self.world, "scenes.world").world()
        return SceneCounterfactuals(read_scenes(self.root), self.captions, settings, world)


class SceneWriter:
    """The sentences of edited scenes, as a writer gives them."""

    name = SCENES

    def __init__(self, scenes: SceneCounterfactuals) -> None:
        """Take what edits the scenes."""
        self._scenes = scenes

    @property
    def settings_hash(self) -> str:
        """Of all that decides the edits."""
        return self._scenes.settings_hash

    def write(self, requests: Sequence[Request]) -> Iterator[Written | Failed]:
        """One answer for each request, in the requests' order."""
        for request in requests:
            found = self._scenes.edited(request.sample_id, request.sentence, request.role)
            if isinstance(found, str):
                yield Failed(request, found)
            else:
                yield Written(request, found.text, found.kind)


def _bare(items: Iterable[tuple[str, int, str]]) -> Iterator[Parse]:
    """Sentences that nobody parses."""
    for sample_id, sentence, text in items:
        yield Parse(sample_id, sentence, text, (), (), (), (), ())
