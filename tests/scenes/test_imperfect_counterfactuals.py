"""Images of edited scenes that fall short as a text-to-image model's do."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.counterfactuals.contract import ImageFailure, ImageRequest
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption
from compo_scenes import counterfactuals
from compo_scenes.captions import sentences
from compo_scenes.counterfactuals import (
    SceneCounterfactuals,
    SceneEdit,
    SceneEditSettings,
    edit,
)
from compo_scenes.render import SceneAdainSettings, image, render
from compo_scenes.world import Scene, World

IsTrue = Callable[[str, Scene], bool]
Key = tuple[str, int, str]

SCENES = {scene.scene_id: scene for scene in itertools.islice(World().scenes(0, "train"), 120)}
ROWS = [
    Caption(name, name, f"{name}.png", 0, 0, sentences(scene, rng("told", name)), "", "train")
    for name, scene in SCENES.items()
]
KEYS: list[Key] = [
    (row.sample_id, sentence, role)
    for row in ROWS
    for sentence in (0, 1)
    for role in ("negative", "positive")
]
PIXELS = SceneAdainSettings(weight=1.0, space="pixels")
ALL = SceneEditSettings(faithful=False, cast=0.7, adain=PIXELS, wrong=0.3)


def editor(**changes: Any) -> SceneCounterfactuals:
    return SceneCounterfactuals(SCENES, ROWS, replace(SceneEditSettings(), **changes))


EXACT = editor()


def caption_of(key: Key) -> str:
    return next(row.sentences[key[1]] for row in ROWS if row.sample_id == key[0])


def both(generator: SceneCounterfactuals) -> list[tuple[Key, SceneEdit, SceneEdit]]:
    """Each edit, and what its image shows."""
    found = [(key, generator.edited(*key), generator.shown(*key)) for key in KEYS]
    return [
        (key, asked, shown)
        for key, asked, shown in found
        if isinstance(asked, SceneEdit) and isinstance(shown, SceneEdit)
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of some real images."""
    folder = tmp_path_factory.mktemp("real")
    for row in ROWS[:6]:
        image(SCENES[row.sample_id]).save(folder / row.image)
    return folder


def requests(root: Path) -> list[ImageRequest]:
    """Of the first sentences of the real images that are there."""
    return [
        ImageRequest(*key, asked.text, root / f"{key[0]}.png", seed)
        for seed, key in enumerate(KEYS[:24])
        if key[1] == 0 and isinstance(asked := EXACT.edited(*key), SceneEdit)
    ]


def made(generator: SceneCounterfactuals, root: Path) -> list[NDArray[np.uint8]]:
    answers = list(generator.generate(requests(root)))
    assert len(answers) == 12
    return [np.asarray(answer) for answer in answers if isinstance(answer, Image.Image)]


def test_what_is_off_leaves_images_as_they_were(root: Path) -> None:
    off = editor(faithful=True, cast=0.0, adain=SceneAdainSettings(1.0, "none"), wrong=0.0)
    exact = [EXACT.edited(r.sample_id, r.sentence, r.role) for r in requests(root)]
    for pixels, edited in zip(made(off, root), exact, strict=True):
        assert isinstance(edited, SceneEdit)
        assert np.array_equal(pixels, render(edited.scene))


def test_shortcomings_are_of_images_alone() -> None:
    """Runs that differ by them train on the same texts."""
    other = SceneCounterfactuals(SCENES, ROWS, ALL)
    assert [other.edited(*key) for key in KEYS] == [EXACT.edited(*key) for key in KEYS]


def test_an_unfaithful_image_shows_its_text_and_little_else(is_true: IsTrue) -> None:
    found = both(editor(faithful=False))
    assert len(found) > 0.97 * len(KEYS)
    for key, asked, shown in found:
        assert shown.text == asked.text
        assert is_true(asked.text, shown.scene)
        assert is_true(caption_of(key), shown.scene) == (key[2] == "positive")
    same = [shown.scene.content == asked.scene.content for _, asked, shown in found]
    assert sum(same) < 0.15 * len(same)


def test_an_unfaithful_positive_does_not_show_what_its_negative_says(is_true: IsTrue) -> None:
    generator = editor(faithful=False)
    for key, _, shown in both(generator):
        negative = generator.edited(key[0], key[1], "negative")
        if key[2] == "positive" and isinstance(negative, SceneEdit):
            assert not is_true(negative.text, shown.scene)


def test_what_cannot_be_imagined_is_drawn_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterfactuals, "imagine", lambda *_: None)
    assert editor(faithful=False).shown(*KEYS[0]) == EXACT.edited(*KEYS[0])


@pytest.mark.parametrize("faithful", [True, False])
def test_wrong_images_show_the_other_meaning(faithful: bool, is_true: IsTrue) -> None:
    generator = editor(wrong=0.3, faithful=faithful)
    counts = {"negative": 0, "positive": 0}
    for key, asked, shown in both(generator):
        wrong = generator.is_wrong(*key)
        assert is_true(shown.text, shown.scene)
        assert is_true(asked.text, shown.scene) == (not wrong)
        assert is_true(caption_of(key), shown.scene) == ((key[2] == "positive") != wrong)
        counts[key[2]] += wrong
    assert all(0.22 < count / (len(KEYS) / 2) < 0.38 for count in counts.values())


def test_a_larger_share_of_wrong_images_holds_the_smaller() -> None:
    generators = [editor(wrong=share) for share in (0.0, 0.1, 0.3, 1.0)]
    none, few, many, nearly_all = (
        {key for key in KEYS if generator.is_wrong(*key)} for generator in generators
    )
    assert not none
    assert few < many
    assert len(nearly_all) > 0.95 * len(KEYS)


def test_nothing_is_wrong_about_what_was_never_made() -> None:
    generator = editor(wrong=1.0)
    assert not generator.is_wrong("unknown", 0, "negative")
    assert generator.shown("unknown", 0, "negative") == "its image has no recorded scene"


def test_no_image_leaves_its_split() -> None:
    found = both(SceneCounterfactuals(SCENES, ROWS, ALL))
    assert {shown.scene.split for _, _, shown in found} == {"train"}


def test_images_are_the_same_in_any_order(root: Path) -> None:
    forth = made(SceneCounterfactuals(SCENES, ROWS, ALL), root)
    backwards = SceneCounterfactuals(SCENES, ROWS, ALL).generate(requests(root)[::-1])
    back = [np.asarray(answer) for answer in backwards if isinstance(answer, Image.Image)]
    assert len(forth) == len(back) == 12
    assert all(np.array_equal(a, b) for a, b in zip(forth, back[::-1], strict=True))


def test_a_cast_is_drawn_from_the_requests_seed(root: Path) -> None:
    request = requests(root)[0]
    generator = editor(cast=0.5)
    asked = [request, request, replace(request, seed=99)]
    one, same, other = (a for a in generator.generate(asked) if isinstance(a, Image.Image))
    assert one == same
    assert one != other


def test_statistics_come_from_the_real_image(root: Path) -> None:
    real = [np.asarray(Image.open(request.image), float) for request in requests(root)]
    means = [
        [x.mean((0, 1)) for x in some]
        for some in (
            real,
            made(editor(cast=1.0), root),
            made(editor(cast=1.0, adain=replace(PIXELS, weight=0.5)), root),
            made(editor(cast=1.0, adain=PIXELS), root),
        )
    ]
    none, half, full = (np.abs(np.subtract(some, means[0])).mean() for some in means[1:])
    assert full < 0.1 * none
    assert 0.4 * none < half < 0.6 * none


def test_a_real_image_that_cannot_be_read_gives_none(root: Path) -> None:
    request = replace(requests(root)[0], image=root / "away.png")
    (answer,) = editor(adain=PIXELS).generate([request])
    assert isinstance(answer, ImageFailure)
    assert answer.reason.startswith("the real image: missing")
    (answer,) = editor(cast=0.5).generate([request])
    assert isinstance(answer, Image.Image)


def test_an_edit_is_made_once_for_its_text_and_its_image(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = []

    def counted(*args: Any) -> SceneEdit | None:
        edits.append(args)
        return edit(*args)

    monkeypatch.setattr(counterfactuals, "edit", counted)
    generator = editor(faithful=False)
    for request in requests(root):
        generator.edited(request.sample_id, request.sentence, request.role)
    list(generator.generate(requests(root)))
    assert len(edits) == 12


def test_every_shortcoming_is_in_the_hash() -> None:
    one_each: list[dict[str, Any]] = [
        {"faithful": False},
        {"cast": 0.5},
        {"wrong": 0.5},
        {"adain": SceneAdainSettings(0.5, "pixels")},
        {"adain": SceneAdainSettings(0.6, "pixels")},
    ]
    hashes = {editor(**changes).settings_fingerprint for changes in ({}, *one_each)}
    assert len(hashes) == 6
    assert editor().settings_fingerprint == EXACT.settings_fingerprint


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"cast": 1.2}, r"scenes\.cast: .*\(got 1\.2\)"),
        ({"wrong": -0.1}, r"scenes\.wrong: .*\(got -0\.1\)"),
        ({"edits": []}, r"scenes\.edits: "),
        ({"preferred": ["swap_colors"]}, r"scenes\.preferred"),
        ({"adain": {"weight": 2}}, r"scenes\.adain\.weight: .*\(got 2\)"),
        ({"faithfull": False}, r"scenes\.faithfull: unknown key; did you mean 'faithful'"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        parse(SceneEditSettings, values, "counterfactuals.scenes")
