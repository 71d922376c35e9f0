"""Scenes as caption editor and image generator: what is asked, what is answered."""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
    read_scenes,
)
from compo_scenes.render import render
from compo_scenes.world import Scene, World

IsTrue = Callable[[str, Scene], bool]


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
