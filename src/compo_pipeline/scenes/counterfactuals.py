"""Exact counterfactuals of rendered scenes: one edit decides text and picture together.

A negative changes one thing that the sentence tells, in the scene and in the sentence; all other
words and all other things stay. A positive tells the same in other words, beside the same things
drawn anew. What a scene shows decides its split, and no counterfactual leaves its scene's split.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path, PurePosixPath

from compo_pipeline.configuration import SettingsError
from compo_pipeline.images.makers.contract import Made, PictureRequest, Unmade
from compo_pipeline.records import Caption
from compo_pipeline.scenes.captions import BACKDROP, compose, detail
from compo_pipeline.scenes.edits import EDITS, EditKind
from compo_pipeline.scenes.reading import Reading, read
from compo_pipeline.scenes.render import picture
from compo_pipeline.scenes.words import Phrase, sentence
from compo_pipeline.scenes.world import (
    INVERSE,
    NESTED,
    Relation,
    Scene,
    Thing,
    World,
    fit,
    relation,
)
from compo_pipeline.seeding import digest, rng

# Tries. The rarest detail comes once in about a hundred draws.
_RETELLINGS, _REDRAWS = 600, 100


@dataclass(frozen=True, slots=True)
class Edited:
    """An edited sentence and the scene it is true of; `kind` is the edit, "retold" a positive's."""

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
        scene: what the real picture shows.
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
    after = _redrawn(scene, reading, random_)
    text = None if after is None else _retold(after, caption, reading, random_)
    if after is None or text is None:
        return None
    return Edited(text, replace(after, scene_id=f"{scene.scene_id}-retold"), "retold")


def _redrawn(scene: Scene, reading: Reading, random_: random.Random) -> Scene | None:
    """The same things in other places and shades, standing to each other as they did.

    Places are drawn from the whole picture at first, and ever nearer to the old ones where that
    finds none.
    """
    pairs = list(combinations(range(len(scene.things)), 2))
    for left in range(_REDRAWS, 0, -1):
        reach = max(6, max(scene.width, scene.height) * left // _REDRAWS)
        things = _moved(scene, reach, random_)
        if any(
            relation(things[i], things[j]) != (stood := relation(scene.things[i], scene.things[j]))
            or (stood not in NESTED and things[i].overlaps(things[j], gap=3))
            for i, j in pairs
        ):
            continue
        after = replace(scene, things=things, shade=random_.randint(-8, 8))
        if reading.holds(after):
            return after
    return None


def _moved(scene: Scene, reach: int, random_: random.Random) -> tuple[Thing, ...]:
    """The things up to `reach` pixels away; one inside another moves with it."""
    fresh = []
    for thing in scene.things:
        shade = (random_.randint(-12, 12), random_.randint(-12, 12), random_.randint(-12, 12))
        x, y = (at + random_.randint(-reach, reach) for at in (thing.x, thing.y))
        moved = replace(thing, shade=shade)
        fresh.append(fit(moved, replace(moved, x=x, y=y), scene))
    if len(fresh) == 2 and relation(*scene.things) in NESTED:
        outer, inner = (0, 1) if fresh[0].size_px > fresh[1].size_px else (1, 0)
        dx, dy = (getattr(fresh[outer], axis) - getattr(scene.things[outer], axis) for axis in "xy")
        old = scene.things[inner]
        fresh[inner] = replace(fresh[inner], x=old.x + dx, y=old.y + dy)
    return tuple(fresh)


def _retold(scene: Scene, caption: str, reading: Reading, random_: random.Random) -> str | None:
    """Another sentence with the same claims: put together from them, or drawn until it fits."""
    composed = (
        (len(reading.kinds) > 1 or len(reading.kinds) == len(scene.things))
        and not reading.told("place")
        and all(word.value != "solid" for word in reading.words)
    )
    for _ in range(_RETELLINGS):
        text = _composed(reading, random_) if composed else detail(scene, random_)
        if text == caption:
            continue
        new = read(text)
        if new is not None and new.claims == reading.claims:
            return text
    return None


def _composed(reading: Reading, random_: random.Random) -> str:
    """What a sentence claims in the frames of a first sentence, from either end."""
    order = list(reading.kinds)
    between: Relation | None = None
    for told in reading.told("relation"):
        between = INVERSE[told.value]
        if random_.random() < 0.5:
            between = INVERSE[between]
        else:
            order[:2] = order[1::-1]
    if between is None:
        random_.shuffle(order)
    phrases = []
    for kind in order:
        said = {word.field: word.value for word in reading.words if word.kinds == (kind,)}
        phrases.append(Phrase(**said).indefinite(random_))
    text = compose(phrases, between, random_)
    for told in reading.told("background"):
        text += random_.choice(BACKDROP).format(told.value)
    return sentence(text)


@dataclass(frozen=True)
class SceneEditSettings:
    """How counterfactual scenes are drawn.

    Attributes:
        seed: of every edit.
        edits: kinds of negatives that may be drawn; every one by default.
    """

    seed: int = 0
    edits: tuple[EditKind, ...] = tuple(EDITS)


class SceneCounterfactuals:
    """Writes counterfactual sentences of rendered scenes and makes their pictures, both exact.

    The same (seed, sample_id, sentence, role) gives the same edit, so the maker needs nothing of
    the writer but the text, which it checks.
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
            scenes: by scene_id, see `read_scenes`; the name of a caption's picture is its scene's.
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

    @property
    def settings_hash(self) -> str:
        """Of seed, edits and world."""
        values = json.dumps([asdict(self._settings), asdict(self._world)], sort_keys=True)
        return f"{digest(self.name, values):016x}"[:12]

    def edited(self, sample_id: str, sentence_: int, role: str) -> Edited | str:
        """The edit of one sentence, or the reason why there is none."""
        if sample_id not in self._rows:
            return "no scene is on record for its picture"
        scene, sentences = self._rows[sample_id]
        random_ = rng(self._settings.seed, "counterfactual", sample_id, sentence_, role)
        found = edit(scene, sentences[sentence_], role, random_, self._world, self._settings.edits)
        return found or "no sentence of its scene, or nothing to change within its split"

    def make(self, requests: Sequence[PictureRequest]) -> Iterator[Made | Unmade]:
        """The rendered picture of each request, in their order."""
        for request in requests:
            found = self.edited(request.sample_id, request.sentence, request.role)
            if isinstance(found, str):
                yield Unmade(request, found)
            elif found.text != request.text:
                yield Unmade(request, f"these settings write '{found.text}', not '{request.text}'")
            else:
                yield Made(request, picture(found.scene))


def read_scenes(root: Path) -> dict[str, Scene]:
    """The records of all rendered scenes below a data root, by scene_id.

    Raises:
        SettingsError: there are none.
    """
    files = sorted((root / "annotations").glob("scenes_*.jsonl"))
    if not files:
        raise SettingsError(
            f"data.root: '{root}' holds no records of scenes (annotations/scenes_<split>.jsonl), "
            "which only rendered scenes have; for pictures of another origin set "
            "counterfactuals.writer and counterfactuals.maker to others than 'scenes'"
        )
    scenes = (
        Scene.from_dict(json.loads(line))
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
    )
    return {scene.scene_id: scene for scene in scenes}
