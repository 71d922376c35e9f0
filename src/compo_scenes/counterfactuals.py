"""Exact counterfactuals of rendered scenes: text and image follow from one edit.

A negative changes one claim of the sentence, in the sentence and in the scene; other words and
things are unchanged. A positive has the same claims in other words, and the same things in other
places. A counterfactual is always in the split of its scene.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated

from PIL import Image
from pydantic import Field

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError, settings
from compo_pipeline.core.untrusted import read_json_lines
from compo_pipeline.generation.counterfactuals.contract import (
    CaptionEditor,
    EditedCaption,
    EditorEntry,
    EditRequest,
    GeneratorEntry,
    ImageRequest,
    Opening,
)
from compo_scenes.edits import EDITS, EditKind
from compo_scenes.reading import ParsedCaption, read
from compo_scenes.redrawing import redraw, retell
from compo_scenes.render import image
from compo_scenes.world import SCENES, Scene, World

RETOLD = "retold"
_CACHED_EDITS = 65_536  # the image of an edit is generated after its text


@dataclass(frozen=True, slots=True)
class SceneEdit:
    """An edited sentence with a scene that it is true of, and the kind of edit.

    `kind` is `RETOLD` for a positive.
    """

    text: str
    scene: Scene
    kind: str


def edit(
    scene: Scene,
    caption: str,
    role: str,
    random_: random.Random,
    world: World | None = None,
    edits: Sequence[EditKind] = tuple(EDITS),
    preferred: Sequence[EditKind] = (),
) -> SceneEdit | None:
    """Make a counterfactual (negative or positive) of a scene's sentence, or None if not possible.

    The text of a negative is true of its scene and false of the given one; the given sentence is
    false of the new scene. The text of a positive has the same claims as the sentence, and both are
    true of both scenes.

    Args:
        scene: scene that the real image shows.
        caption: a sentence of `captions.first` or `captions.detail` about it.
        role: "negative" or "positive".
        random_: draws the edit, its words and places.
        world: the kinds and colours to choose from; the standard world by default.
        edits: the kinds of negatives to draw from, with equal chances where possible.
        preferred: kinds that are tried before the others.

    Returns:
        None where the sentence is outside the grammar or false, or no edit within the scene's
        split was found.
    """
    parsed = read(caption)
    if parsed is None or not parsed.holds(scene):
        return None
    if role == "positive":
        after = redraw(scene, parsed, random_)
        text = retell(after, caption, parsed, random_) if after else None
        if after is None or text is None:
            return None
        return SceneEdit(text, replace(after, scene_id=f"{scene.scene_id}-{RETOLD}"), RETOLD)
    known = (*edits, *(kind for kind in preferred if kind not in edits))
    drawn = random_.sample(known, len(known))
    for kind in sorted(drawn, key=lambda kind: kind not in preferred):
        for text, after in EDITS[kind](parsed, scene, world or World(), random_):
            if after.split == scene.split and _is_exact(text, parsed, scene, after):
                return SceneEdit(text, replace(after, scene_id=f"{scene.scene_id}-{kind}"), kind)
    return None


def _is_exact(text: str, parsed: ParsedCaption, scene: Scene, after: Scene) -> bool:
    """Whether the old and the new sentence are each true of their own scene only."""
    new = read(text)
    return new is not None and new.holds(after) and not new.holds(scene) and not parsed.holds(after)


@settings
class SceneEditSettings:
    """Settings of counterfactual scenes."""

    edits: Annotated[tuple[EditKind, ...], Field(min_length=1)] = tuple(EDITS)
    """Kinds of negatives to draw from, each equally likely if it is possible."""
    preferred: tuple[EditKind, ...] = ()
    """Kinds of negatives that are tried first. Another kind is drawn only for a sentence that
    allows none of these."""


class SceneCounterfactuals:
    """Caption editor and image generator for rendered scenes.

    The edit follows from (seed, sample_id, sentence, role), so an image needs no more of its edited
    caption than the text, which is checked.
    """

    name = "scenes"
    concurrent = False

    def __init__(
        self,
        scenes: Mapping[str, Scene],
        captions: Iterable[Caption],
        settings: SceneEditSettings,
        world: World | None = None,
        seed: int = 0,
    ) -> None:
        """Look up the scenes of the captions.

        Args:
            scenes: scenes by scene_id, which is the name of a caption's image (see `read_scenes`).
            captions: the rows whose sentences are edited.
            settings: settings of the edits.
            world: the kinds and colours to choose from; the standard world by default.
            seed: seed of every edit.
        """
        self._settings, self._world, self._seed = settings, world or World(), seed
        self.settings_fingerprint = hash_of(self.name, settings, self._world, seed, SCENES)
        self._rows = {
            row.sample_id: (scene, row.sentences)
            for row in captions
            if (scene := scenes.get(PurePosixPath(row.image).stem))
        }
        self.edited = lru_cache(_CACHED_EDITS)(self._edit)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        """Yield an edited caption, or why there is none, for each request, in their order."""
        for request in requests:
            found = self.edited(request.sample_id, request.sentence, request.role)
            yield found if isinstance(found, str) else EditedCaption(found.text, found.kind)

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[Image.Image | str]:
        """Yield a rendered image, or why there is none, for each request, in their order."""
        for request in requests:
            edited = self.edited(request.sample_id, request.sentence, request.role)
            if isinstance(edited, str):
                yield edited
            elif edited.text != request.text:
                yield f"these settings give '{edited.text}', not '{request.text}'"
            else:
                yield image(edited.scene)

    def _edit(self, sample_id: str, number: int, role: str) -> SceneEdit | str:
        """Draw the edit of one sentence in a role, or return the reason why there is none."""
        if sample_id not in self._rows:
            return "its image has no recorded scene"
        scene, sentences = self._rows[sample_id]
        random_ = rng(self._seed, "counterfactual", sample_id, number, role)
        kinds = self._settings.edits, self._settings.preferred
        if found := edit(scene, sentences[number], role, random_, self._world, *kinds):
            return found
        parsed = read(sentences[number])
        if parsed is None:
            return "its sentence is outside the grammar of scenes: render them again"
        if not parsed.holds(scene):
            return "its sentence is not true of its scene"
        return "nothing to change within its split"


def read_scenes(root: Path) -> dict[str, Scene]:
    """Read the records of all rendered scenes below a data root: mapping from scene_id to scene.

    Raises:
        SettingsError: there are none.
        DamagedFileError: a file of them is damaged.
    """
    files = sorted((root / "annotations").glob("scenes_*.jsonl"))
    if not files:
        raise SettingsError(
            f"data.root: '{root}' holds no records of scenes (annotations/scenes_<split>.jsonl), "
            "which only rendered scenes have; for other images set counterfactuals.caption_editor "
            "and counterfactuals.image_generator to others than 'scenes'"
        )
    return {scene.scene_id: scene for file in files for scene in _read_scenes_file(file)}


def _read_scenes_file(file: Path) -> Iterator[Scene]:
    """Read the scenes of a JSON lines file."""
    try:
        yield from map(Scene.from_dict, read_json_lines(file))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(file, f"it holds no records of scenes ({error})") from error


def open_editor(settings: SceneEditSettings, _key: str, opening: Opening) -> SceneCounterfactuals:
    """Create the caption editor `scenes`, which is also the image generator."""
    scenes = read_scenes(opening.root)
    world = opening.generator_settings.world.world()
    return SceneCounterfactuals(scenes, opening.captions, settings, world, opening.seed)


def open_generator(
    _settings: SceneEditSettings, _key: str, _opening: Opening, editor: CaptionEditor
) -> SceneCounterfactuals:
    """The image generator `scenes`: the caption editor itself, which renders its edits."""
    assert isinstance(editor, SceneCounterfactuals)  # GENERATOR names it
    return editor


EDITOR = EditorEntry(SceneEditSettings, f"{__name__}:open_editor", "preferred", parses=False)
GENERATOR = GeneratorEntry(SceneEditSettings, f"{__name__}:open_generator", editor="scenes")
