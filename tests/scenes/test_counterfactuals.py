"""Counterfactual scenes against a slow reader of sentences, and their editor and generator."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.scenes.conftest import PAIR

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.generation.counterfactuals.contract import ImageRequest
from compo_scenes.captions import sentences
from compo_scenes.counterfactuals import (
    SceneCounterfactuals,
    SceneEdit,
    SceneEditSettings,
    edit,
    read_scenes,
)
from compo_scenes.edits import EDITS, EditKind
from compo_scenes.render import render
from compo_scenes.world import CONTAINERS, NESTED, Scene, World, relation

IsTrue = Callable[[str, Scene], bool]
Told = tuple[Scene, str, SceneEdit]


def draw(split: str, scenes: int) -> list[tuple[Scene, int, str]]:
    """Sentences of scenes with their index; a fifth of the pairs nested, to see enough of them."""
    world = World(nested=0.2)
    return [
        (scene, number, text)
        for scene in itertools.islice(world.scenes(0, split), scenes)
        for number, text in enumerate(sentences(scene, rng("told", scene.scene_id)))
    ]


TRAIN = draw("train", 250)


def edits(sentences_: Sequence[tuple[Scene, int, str]], role: str) -> list[Told]:
    found = []
    for scene, number, text in sentences_:
        edited = edit(scene, text, role, rng(0, scene.scene_id, number, role))
        if edited is not None:
            found.append((scene, text, edited))
    return found


@pytest.fixture(scope="module")
def negatives() -> list[Told]:
    return edits(TRAIN, "negative")


@pytest.fixture(scope="module")
def positives() -> list[Told]:
    return edits(TRAIN, "positive")


def test_nearly_every_sentence_has_both(negatives: list[Told], positives: list[Told]) -> None:
    assert len(negatives) > 0.98 * len(TRAIN)
    assert len(positives) > 0.97 * len(TRAIN)


def test_a_negative_is_true_of_its_own_scene_alone(negatives: list[Told], is_true: IsTrue) -> None:
    for scene, text, edited in negatives:
        assert is_true(text, scene)
        assert is_true(edited.text, edited.scene), edited
        assert not is_true(edited.text, scene), edited
        assert not is_true(text, edited.scene), edited


def test_a_positive_and_its_caption_are_true_of_both_scenes(
    positives: list[Told], is_true: IsTrue
) -> None:
    for scene, text, edited in positives:
        for told, of in itertools.product((text, edited.text), (scene, edited.scene)):
            assert is_true(told, of), (told, of)
        assert edited.text != text
        assert edited.kind == "retold"


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("role", ["negative", "positive"])
def test_no_counterfactual_leaves_its_split(split: str, role: str) -> None:
    made = edits(draw(split, 60), role)
    assert len(made) > 100
    assert {edited.scene.split for _, _, edited in made} == {split}


def words(text: str) -> list[str]:
    """Words but articles; a relation or place of several words is one."""
    many = (
        "to the left of|left of|on the left of|to the right of|right of|on the right of"
        "|(?:in|on|at) the (?:middle|left|right|top|bottom)(?! of)"
    )
    joined = re.sub(many, lambda match: match[0].replace(" ", "_"), text.lower())
    return [word for word in re.findall(r"\w+", joined) if word not in ("a", "an")]


def changed(before: str, after: str) -> int:
    """Words that differ, position by position."""
    old, new = words(before), words(after)
    assert len(old) == len(new), (before, after)
    return sum(a != b for a, b in zip(old, new, strict=True))


def test_a_negative_differs_by_as_little_as_its_edit_needs(negatives: list[Told]) -> None:
    for _, text, edited in negatives:
        if edited.kind == "swap_things":
            assert sorted(words(text)) == sorted(words(edited.text))
            assert text.lower() != edited.text.lower()
        elif edited.kind == "swap_colours":
            assert sorted(words(text)) == sorted(words(edited.text))
            assert changed(text, edited.text) == 2
        else:
            assert changed(text, edited.text) == 1, (text, edited)


FIELDS = ("kind", "colour", "size", "pattern", "x", "y", "size_px", "shade")
MAY_DIFFER = {
    "replace_kind": {"kind"},
    "replace_colour": {"colour"},
    "replace_pattern": {"pattern"},
    "replace_size": {"size", "size_px", "x", "y"},
    "replace_place": {"x", "y"},
    "replace_relation": {"x", "y"},
    "replace_background": set(),
    "swap_colours": {"colour"},
    "swap_things": {"x", "y", "kind", "colour", "shade"},
}


def differences(before: Scene, after: Scene) -> list[set[str]]:
    """Of each thing, the fields that changed."""
    return [
        {name for name, a, b in zip(FIELDS, astuple(old), astuple(new), strict=True) if a != b}
        for old, new in zip(before.things, after.things, strict=True)
    ]


def test_a_negatives_scene_differs_in_what_the_edit_is_about_and_in_nothing_else(
    negatives: list[Told],
) -> None:
    for scene, _, edited in negatives:
        after = edited.scene
        differ = [fields for fields in differences(scene, after) if fields]
        assert all(fields <= MAY_DIFFER[edited.kind] for fields in differ), (scene, edited)
        touched = 0 if edited.kind == "replace_background" else 1
        touched += edited.kind in ("swap_colours", "swap_things", "replace_relation")
        assert len(differ) == touched, (scene, edited)
        assert (scene.background != after.background) == (edited.kind == "replace_background")
        assert (scene.width, scene.height, scene.shade) == (after.width, after.height, after.shade)


def test_every_edit_occurs_and_nested_scenes_are_turned_inside_out(
    negatives: list[Told],
) -> None:
    assert {edited.kind for *_, edited in negatives} == set(EDITS)
    turned = [
        edited.scene
        for scene, _, edited in negatives
        if edited.kind == "swap_things" and relation(*scene.things[:2]) in NESTED
    ]
    assert turned
    assert all(scene.things[0].kind in CONTAINERS for scene in turned)


def test_things_stand_as_in_drawn_scenes(negatives: list[Told], positives: list[Told]) -> None:
    """Within the image, apart from one another, none large among three, and what lies inside at
    its height.
    """
    for _, _, edited in [*negatives, *positives]:
        things, scene = edited.scene.things, edited.scene
        assert len({thing.kind for thing in things}) == len(things)
        assert len(things) < 3 or all(thing.size != "large" for thing in things)
        for thing in things:
            assert thing.size_px / 2 <= thing.x <= scene.width - thing.size_px / 2
            assert thing.size_px / 2 <= thing.y <= scene.height - thing.size_px / 2
        for a, b in itertools.combinations(things, 2):
            if relation(a, b) not in NESTED:
                assert not a.overlaps(b, 3)
                continue
            outer, inner = (a, b) if a.size_px > b.size_px else (b, a)
            assert outer.kind in CONTAINERS and outer.pattern == "solid"
            assert outer.colour != inner.colour
            drop = {"cloud": 0.16, "heart": -0.05}.get(outer.kind, 0.0)
            assert abs(inner.y - outer.y - drop * outer.size_px) <= 1


def test_a_positives_scene_shows_the_same_in_other_places(positives: list[Told]) -> None:
    for scene, _, edited in positives:
        after = edited.scene
        assert after.content == scene.content
        assert (after.width, after.height) == (scene.width, scene.height)
        for i, j in itertools.combinations(range(len(scene.things)), 2):
            before = relation(scene.things[i], scene.things[j])
            assert relation(after.things[i], after.things[j]) == before
        assert not np.array_equal(render(scene), render(after))


def test_no_border_tells_a_counterfactual_from_a_real_scene(
    negatives: list[Told], positives: list[Told]
) -> None:
    """Things crowd no more at the edges than they do in what a model trains on as real."""

    def crowded(scenes: Sequence[Scene]) -> float:
        gaps = [
            min(thing.x, thing.y, scene.width - thing.x, scene.height - thing.y)
            - thing.size_px // 2
            for scene in scenes
            for thing in scene.things
        ]
        return float(np.mean([gap < 5 for gap in gaps]))

    real = crowded([scene for scene, _, _ in positives])
    assert 0.02 < real < 0.2
    by_kind: dict[str, list[Scene]] = {}
    for _, _, edited in [*negatives, *positives]:
        by_kind.setdefault(edited.kind, []).append(edited.scene)
    for kind, scenes in by_kind.items():
        # Three deviations of so many scenes beside the real share.
        slack = 3 * (real * (1 - real) / len(scenes)) ** 0.5
        assert crowded(scenes) < real + slack, kind


def test_positives_are_told_in_other_words_not_by_a_turned_list_alone(
    positives: list[Told],
) -> None:
    same_words = [e for _, text, e in positives if sorted(words(text)) == sorted(words(e.text))]
    assert len(same_words) < 0.15 * len(positives)
    alike = [SequenceMatcher(None, text, e.text).ratio() for _, text, e in positives]
    assert sum(alike) / len(alike) < 0.85


@pytest.mark.parametrize("kind", EDITS)
def test_edits_are_the_callers_choice(kind: EditKind) -> None:
    made = [edit(scene, text, "negative", rng(0), edits=(kind,)) for scene, _, text in TRAIN]
    assert Counter(e.kind for e in made if e) == {kind: sum(e is not None for e in made)}
    assert any(made)


def test_preferred_edits_come_first_and_others_where_they_are_impossible() -> None:
    wanted: tuple[EditKind, ...] = ("swap_things", "replace_relation")
    for scene, _, text in TRAIN:
        possible = edit(scene, text, "negative", rng(0), edits=wanted)
        made = edit(scene, text, "negative", rng(0), preferred=wanted)
        assert possible is None or (made and made.kind in wanted)
    kinds = {e.kind for s, _, t in TRAIN if (e := edit(s, t, "negative", rng(0), preferred=wanted))}
    assert set(wanted) < kinds
    both = {"edits": ("replace_kind",), "preferred": wanted}
    kinds = {e.kind for s, _, t in TRAIN if (e := edit(s, t, "negative", rng(t), **both))}
    assert kinds == {"replace_kind", *wanted}


def test_only_the_worlds_kinds_and_colours_come_in() -> None:
    world = World(things=("ball", "star", "key", "tree"), colours=("red", "blue", "green", "pink"))
    for scene in itertools.islice(world.scenes(0, "train"), 40):
        for number, text in enumerate(sentences(scene, rng(scene.scene_id))):
            edited = edit(scene, text, "negative", rng(number), world)
            for thing in edited.scene.things if edited else ():
                assert thing.kind in world.things and thing.colour in world.colours


@pytest.mark.parametrize(
    ("caption", "kind", "expected"),
    [
        ("A red ball left of a star.", "replace_relation", "A red ball right of a star"),
        ("A red ball left of a blue star.", "swap_things", "A blue star left of a red ball"),
        ("A red disc and a blue star.", "swap_colours", "A blue disc and a red star"),
        ("A red ball and a star.", "swap_colours", None),
        ("A red ball and a star.", "replace_relation", None),
        ("A ball and a star.", "replace_colour", None),
        ("The ball is at the left side.", "replace_place", "The ball is at the right side"),
        ("The star looks striped.", "replace_pattern", "The star looks (dotted|spotted)"),
        ("The ball is plain.", "replace_pattern", "The ball is (striped|dotted|spotted)"),
        ("The wall behind is beige.", "replace_background", r"The wall behind is \w+"),
        ("The star is huge.", "replace_size", "The star is (small|tiny|little)"),
    ],
)
def test_edits_of_a_hand_placed_scene(
    caption: str, kind: EditKind, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scene, "split", "train")  # whatever it shows
    edited = edit(PAIR, caption, "negative", rng(1), edits=(kind,))
    if expected is None:
        assert edited is None
    else:
        assert edited is not None
        assert re.fullmatch(rf"{expected}\.", edited.text), edited.text


@pytest.mark.parametrize(
    "caption",
    [
        "A blue ball left of a star.",  # false
        "A dog left of a star.",  # no thing of the world
        "An old ball next to a star.",
    ],
)
def test_sentences_that_are_not_the_scenes_own(caption: str) -> None:
    for role in ("negative", "positive"):
        assert edit(PAIR, caption, role, rng(0)) is None


def caption_of(scene: Scene, sample_id: str) -> Caption:
    told = sentences(scene, rng("told", scene.scene_id))
    image = f"{scene.split}/{scene.scene_id}.jpg"
    return Caption(
        sample_id, sample_id, image, scene.width, scene.height, told, "scenes", scene.split
    )


SOME = list(itertools.islice(World(nested=0.2).scenes(0, "train"), 20))
ROWS = [caption_of(scene, f"train-{number}") for number, scene in enumerate(SOME)]


def editor(**changes: object) -> SceneCounterfactuals:
    scenes = {scene.scene_id: scene for scene in SOME}
    return SceneCounterfactuals(scenes, ROWS, replace(SceneEditSettings(), **changes))  # type: ignore[arg-type]


def asked(generator: SceneCounterfactuals) -> list[ImageRequest]:
    requests = []
    for row in ROWS:
        for role in ("negative", "positive"):
            edited = generator.edited(row.sample_id, 0, role)
            assert isinstance(edited, SceneEdit)
            image = Path(row.image)
            requests.append(ImageRequest(row.sample_id, 0, role, edited.text, image, seed=0))
    return requests


def test_the_generator_draws_the_edited_scenes(is_true: IsTrue) -> None:
    requests = asked(editor())
    answers = list(editor().generate(requests))
    assert len(answers) == len(requests)
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, Image.Image)
        edited = editor().edited(request.sample_id, 0, request.role)
        assert isinstance(edited, SceneEdit)
        assert is_true(request.text, edited.scene)
        assert np.array_equal(np.asarray(answer), render(edited.scene))


def test_the_generator_answers_the_same_in_any_order() -> None:
    requests = asked(editor())
    forth = [np.asarray(a) for a in editor().generate(requests) if isinstance(a, Image.Image)]
    back = [np.asarray(a) for a in editor().generate(requests[::-1]) if isinstance(a, Image.Image)]
    assert len(forth) == len(requests)
    assert all(np.array_equal(a, b) for a, b in zip(forth, back[::-1], strict=True))


def test_what_the_generator_cannot_make() -> None:
    generator = editor()
    real, *_ = asked(generator)
    requests = [replace(real, text="A ball is here."), replace(real, sample_id="train-99")]
    other, unknown = generator.generate(requests)
    assert isinstance(other, str) and isinstance(unknown, str)
    assert real.text in other and "A ball is here." in other
    assert unknown == "its image has no recorded scene"
    bare = replace(ROWS[0], sentences=("A dog barks.", ROWS[1].sentences[0]))
    scenes = {scene.scene_id: scene for scene in SOME}
    foreign = SceneCounterfactuals(scenes, [bare], SceneEditSettings())
    told = [str(foreign.edited(bare.sample_id, place, "negative")) for place in (0, 1)]
    assert "outside the grammar" in told[0] and "not true of its scene" in told[1]


def test_seed_edits_and_world_are_in_the_hash() -> None:
    small = World(things=("ball", "star", "key", "tree"))
    hashes = {
        editor().settings_fingerprint,
        SceneCounterfactuals({}, [], SceneEditSettings(), seed=1).settings_fingerprint,
        editor(edits=("replace_kind",)).settings_fingerprint,
        SceneCounterfactuals({}, [], SceneEditSettings(), small).settings_fingerprint,
    }
    assert len(hashes) == 4
    assert editor().settings_fingerprint in hashes


def test_records_are_read_from_all_splits(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"data\.root.*no records of scenes"):
        read_scenes(tmp_path)
    (tmp_path / "annotations").mkdir()
    for split, part in (("train", SOME[:3]), ("val", SOME[3:5])):
        lines = "".join(json.dumps(asdict(scene)) + "\n" for scene in part)
        (tmp_path / "annotations" / f"scenes_{split}.jsonl").write_text(lines)
    assert read_scenes(tmp_path) == {scene.scene_id: scene for scene in SOME[:5]}
    file = tmp_path / "annotations" / "scenes_val.jsonl"
    whole = file.read_bytes()
    for damaged in (whole[:-9], whole.replace(b"{", b"\xff", 1), b"[]", b'{"things": 1}'):
        file.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"jsonl is damaged") as caught:
            read_scenes(tmp_path)
        assert "\n" not in caught.value.message
