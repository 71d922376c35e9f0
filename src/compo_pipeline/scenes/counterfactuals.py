"""Exact counterfactuals of rendered scenes: one edit decides text and image together.

A negative changes one thing that the sentence tells, in the scene and in the sentence; all other
words and all other things stay. A positive tells the same in other words, beside the same things
drawn anew. What a scene shows decides its split, and no counterfactual leaves its scene's split.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from PIL import Image

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    GeneratedImage,
    ImageFailure,
    ImageRequest,
)
from compo_pipeline.images import decoding
from compo_pipeline.records import Caption
from compo_pipeline.scenes.edits import EDITS, EditKind
from compo_pipeline.scenes.imagining import imagine
from compo_pipeline.scenes.reading import Reading, read
from compo_pipeline.scenes.render import image
from compo_pipeline.scenes.retelling import redrawn, retold
from compo_pipeline.scenes.style import AdainSettings, cast, towards
from compo_pipeline.scenes.world import Scene, World
from compo_pipeline.seeding import digest, rng
from compo_pipeline.storage import files_fingerprint

RETOLD = "retold"
_Key = tuple[str, int, str]  # sample_id, sentence, role
_REMEMBERED = 65_536  # edits: what was written is still known when its image is made
_MISTAKES = 10  # tries for a wrong image that its text is false of


@dataclass(frozen=True, slots=True)
class Edited:
    """An edited sentence and a scene it is true of; `kind` is the edit, `RETOLD` a positive's."""

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
) -> Edited | None:
    """A counterfactual of one sentence of a scene.

    A negative's text is true of its scene and false of the given one, whose own sentence is false
    of the negative's scene. A positive's text claims what the sentence claims, and both are true
    of both scenes, whose things stand to each other alike.

    Args:
        scene: what the real image shows.
        caption: a sentence of `captions.first` or `captions.detail` about it.
        role: "negative" or "positive".
        random_: draws the edit, its words and places.
        world: names the kinds and colours that may come in; the standard one by default.
        edits: the kinds of negatives that may be drawn, each as likely where it is possible.

    Returns:
        None where the sentence is none of the grammar or false, or nothing was found that stays in
        the scene's split.
    """
    reading = read(caption)
    if reading is None or not reading.holds(scene):
        return None
    if role == "positive":
        return _positive(scene, caption, reading, random_)
    for kind in random_.sample(edits, len(edits)):
        for text, after in EDITS[kind](reading, scene, world or World(), random_):
            if after.split == scene.split and _turns(text, reading, scene, after):
                return Edited(text, replace(after, scene_id=f"{scene.scene_id}-{kind}"), kind)
    return None


def _turns(text: str, reading: Reading, scene: Scene, after: Scene) -> bool:
    """Whether each of the two sentences is true of its own scene alone."""
    new = read(text)
    return (
        new is not None and new.holds(after) and not new.holds(scene) and not reading.holds(after)
    )


def _positive(
    scene: Scene, caption: str, reading: Reading, random_: random.Random
) -> Edited | None:
    after = redrawn(scene, reading, random_)
    text = None if after is None else retold(after, caption, reading, random_)
    if after is None or text is None:
        return None
    return Edited(text, replace(after, scene_id=f"{scene.scene_id}-{RETOLD}"), RETOLD)


@dataclass(frozen=True)
class SceneEditSettings:
    """How counterfactual scenes are drawn, and how their images fall short.

    A text-to-image model's images are unlike the real one, have a look of their own, and some do
    not show what was asked for. By default these show nothing of the kind.

    Attributes:
        seed: of every edit and every shortcoming.
        edits: kinds of negatives that may be drawn; every one by default.
        faithful: whether what the text leaves untold stays as it is in the real image; else a
            image is drawn from its text alone.
        cast: 0 to 1, strength of a foreign style over each image, drawn from the request's seed.
        adain: the real image's statistics, after that.
        wrong: 0 to 1, share of the images that do not show what their text says. A wrong negative
            shows what its caption says, a wrong positive something that makes its caption false.
    """

    seed: int = 0
    edits: tuple[EditKind, ...] = tuple(EDITS)
    faithful: bool = True
    cast: float = 0.0
    adain: AdainSettings = field(default_factory=AdainSettings)
    wrong: float = 0.0

    def __post_init__(self) -> None:
        """Refuse strengths and shares beyond their bounds, and negatives of no kind."""
        for key in ("cast", "wrong"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key} must lie within 0 and 1, got {getattr(self, key)}")
        if not self.edits:
            raise ValueError(f"edits must name one at least of {', '.join(EDITS)}")


class SceneCounterfactuals:
    """Caption editor and image generator of rendered scenes: both exact, unless the settings ask
    for imperfect images.

    The same (seed, sample_id, sentence, role) gives the same edit, so images need nothing of the
    edited caption but its text, which is checked.
    """

    name = "scenes"

    def __init__(
        self,
        scenes: Mapping[str, Scene],
        captions: Iterable[Caption],
        settings: SceneEditSettings,
        world: World | None = None,
    ) -> None:
        """Keep what is edited.

        Args:
            scenes: by scene_id, see `read_scenes`; the name of a caption's image is its scene's.
            captions: the rows whose sentences are edited.
            settings: how.
            world: names the kinds and colours that may come in; the standard one by default.
        """
        self._settings, self._world = settings, world or World()
        self._rows = {
            row.sample_id: (scene, row.sentences)
            for row in captions
            if (scene := scenes.get(PurePosixPath(row.image).stem))
        }
        self._edited = lru_cache(_REMEMBERED)(self._edit)

    @cached_property
    def settings_fingerprint(self) -> str:
        """Of settings, world and code: a change of the scenes' code gives new edits."""
        values = json.dumps([asdict(self._settings), asdict(self._world)], sort_keys=True)
        code = files_fingerprint(
            (file.name, file) for file in sorted(Path(__file__).parent.glob("*.py"))
        )
        return f"{digest(self.name, values, code):016x}"[:12]

    def edited(self, sample_id: str, sentence_: int, role: str) -> Edited | str:
        """The edit of one sentence, or the reason why there is none."""
        return self._edited((sample_id, sentence_, role))

    def shown(self, sample_id: str, sentence_: int, role: str) -> Edited | str:
        """What the image of an edit shows and a text that is true of it, the edit's own unless
        the image is wrong; or the reason why there is none.
        """
        key = (sample_id, sentence_, role)
        asked = self._edited(key)
        return asked if isinstance(asked, str) else self._shown(asked, key)

    def is_wrong(self, sample_id: str, sentence_: int, role: str) -> bool:
        """Whether the image of an edit shows something that its text is false of."""
        key = (sample_id, sentence_, role)
        asked = self._edited(key)
        return isinstance(asked, Edited) and self._mistaken(asked, key) is not None

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """The edited sentence of each request, in their order."""
        for request in requests:
            found = self.edited(request.sample_id, request.sentence, request.role)
            if isinstance(found, str):
                yield EditFailure(request, found)
            else:
                yield EditedCaption(request, found.text, found.kind)

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[GeneratedImage | ImageFailure]:
        """The rendered image of each request, in their order."""
        for request in requests:
            key = (request.sample_id, request.sentence, request.role)
            written = self._edited(key)
            if isinstance(written, str):
                yield ImageFailure(request, written)
            elif written.text != request.text:
                why = f"these settings write '{written.text}', not '{request.text}'"
                yield ImageFailure(request, why)
            else:
                yield self._finished(request, image(self._shown(written, key).scene))

    def _edit(self, key: _Key) -> Edited | str:
        if key[0] not in self._rows:
            return "no scene is on record for its image"
        found = self._drawn(key, key[2], rng(self._settings.seed, "counterfactual", *key))
        if found:
            return found
        scene, sentences = self._rows[key[0]]
        reading = read(sentences[key[1]])
        if reading is None:
            return "its sentence is none that scenes are told in: were they rendered long ago?"
        if not reading.holds(scene):
            return "its sentence is no sentence of its scene"
        return "nothing to change within its split"

    def _drawn(self, key: _Key, role: str, random_: random.Random) -> Edited | None:
        """An edit of the sentence, in whatever role."""
        scene, sentences = self._rows[key[0]]
        return edit(scene, sentences[key[1]], role, random_, self._world, self._settings.edits)

    def _shown(self, asked: Edited, key: _Key) -> Edited:
        found = self._mistaken(asked, key) or asked
        return found if self._settings.faithful else self._imagined(found, key)

    def _mistaken(self, asked: Edited, key: _Key) -> Edited | None:
        """What a wrong image shows: an edit of the other role. None for one that is right."""
        random_ = rng(self._settings.seed, "wrong", *key)
        if random_.random() >= self._settings.wrong:
            return None
        role = "negative" if key[2] == "positive" else "positive"
        claimed = read(asked.text)
        for _ in range(_MISTAKES):
            found = self._drawn(key, role, random_)
            if found and claimed and not claimed.holds(found.scene):
                return found
        return None

    def _imagined(self, found: Edited, key: _Key) -> Edited:
        """The edit with a scene drawn from its text alone, or its own where none was found.

        What makes a caption false does not come in by chance where the caption is to be true, nor
        the other way round.
        """
        sample_id, sentence_, _ = key
        untrue = self._rows[sample_id][1][sentence_]
        if found.kind == RETOLD:
            negative = self.edited(sample_id, sentence_, "negative")
            untrue = negative.text if isinstance(negative, Edited) else ""
        told, random_ = read(found.text), rng(self._settings.seed, "imagined", *key)
        scene = told and imagine(told, found.scene, self._world, random_, read(untrue))
        return replace(found, scene=scene or found.scene)

    def _finished(self, request: ImageRequest, drawn: Image.Image) -> GeneratedImage | ImageFailure:
        """The image in its style."""
        settings = self._settings
        if settings.cast:
            drawn = cast(drawn, settings.cast, rng(settings.seed, "cast", request.seed))
        if settings.adain.space == "pixels":
            file, limits = request.image, decoding.Limits(follow_symlinks=True)
            try:
                real = decoding.load(file.parent, file.name, limits)
            except decoding.ImageError as error:
                return ImageFailure(request, f"the real image: {error}")
            drawn = towards(drawn, real, settings.adain.weight)
        return GeneratedImage(request, drawn)


def read_scenes(root: Path) -> dict[str, Scene]:
    """The records of all rendered scenes below a data root, by scene_id.

    Raises:
        SettingsError: there are none.
    """
    files = sorted((root / "annotations").glob("scenes_*.jsonl"))
    if not files:
        raise SettingsError(
            f"data.root: '{root}' holds no records of scenes (annotations/scenes_<split>.jsonl), "
            "which only rendered scenes have; for other images set counterfactuals.caption_editor "
            "and counterfactuals.image_generator to others than 'scenes'"
        )
    scenes = (
        Scene.from_dict(json.loads(line))
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
    )
    return {scene.scene_id: scene for scene in scenes}
