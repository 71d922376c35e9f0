"""Scores of versions: cached ones are reused, others are computed; copies have their scores."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
from mlflow.entities.model_registry import ModelVersion
from PIL import Image

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.evaluation.benchmarks.items import Subtask
from compo_pipeline.evaluation.contamination import TrainingRows, overlaps
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.scoring import ModelScores
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.records import Score, to_table
from compo_pipeline.registry import scores as stored
from compo_pipeline.registry import tracking, verification, version_scores
from compo_pipeline.registry.copies import copy_version
from compo_pipeline.registry.evidence import Evidence, write_evidence
from compo_pipeline.registry.run_log import RunLog
from compo_pipeline.registry.scores import (
    ScoresFingerprint,
    ScoresInvalid,
    scores_fingerprints,
)
from compo_pipeline.registry.settings import CopySettings, SigningSettings
from compo_pipeline.registry.verification import VersionError
from compo_pipeline.registry.version_scores import ScoresMissing, VersionScores
from compo_pipeline.storage import file_sha256

IMAGES = 4
EVALUATION = EvaluationSettings(device="cpu")
UNSIGNED = SigningSettings()


@pytest.fixture(scope="module")
def subtask(choices: Callable[[int], Subtask]) -> Subtask:
    return choices(IMAGES)


@pytest.fixture(scope="module")
def base(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model(seed=1)


@pytest.fixture
def version(
    configure: Callable[[str], None],
    tiny_model: Callable[..., Path],
    base: Path,
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., ModelVersion],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> ModelVersion:
    """A version with an export among its files and nothing scored."""
    configure("scores")
    training = {"fingerprint": {"model": load(base).fingerprint}}
    loaded = load(tiny_model(seed=2))
    same = {"checkpoint_sha256": "c" * 64, "precision": "fp32"}
    written = version_files(loaded, tmp_path / "version", training=training, **same)
    client = mlflow.MlflowClient()
    name = f"scored-{request.node.name}".replace("[", "-").replace("]", "")
    client.create_registered_model(name)
    run_id = tracking.open_run("scored", {})
    tags = {
        **written,
        "base_fingerprint": training["fingerprint"]["model"],
        **same,
    }
    source = str(tmp_path / "version")
    made = client.create_model_version(name, source, run_id, tags=tags, description="A card.")
    client.set_registered_model_alias(name, "champion", made.version)
    return sealed(made)


def scorer(subtask: Subtask, base: Path, **settings: bool) -> VersionScores:
    return VersionScores([subtask], EVALUATION, ModelSettings(f"local-dir:{base}"), **settings)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that are scored."""
    noted: list[str] = []
    score = version_scores.score_model

    def note(subtasks: Sequence[Subtask], embedded: Embedded, name: str) -> ModelScores:
        noted.append(name)
        return score(subtasks, embedded, name)

    monkeypatch.setattr(version_scores, "score_model", note)
    return noted


def test_scores_are_computed_once_and_stored_with_the_run(
    version: ModelVersion, subtask: Subtask, base: Path, scored: list[str]
) -> None:
    first = scorer(subtask, base)
    made, of_base = first.of(version), first.base_of(version)
    assert len(made) == len(of_base) == IMAGES
    assert [s.similarities for s in made] != [s.similarities for s in of_base]
    assert scored == ["version 1", "the base of version 1"]
    again = scorer(subtask, base, reevaluate=False)
    assert (again.of(version), again.base_of(version)) == (made, of_base)
    assert len(scored) == 2


def test_nothing_is_stored_on_a_dry_run(
    version: ModelVersion, subtask: Subtask, base: Path
) -> None:
    assert scorer(subtask, base, store=False).of(version)
    assert mlflow.MlflowClient().list_artifacts(version.run_id) == []


def test_missing_and_stale_scores_say_why(
    version: ModelVersion, subtask: Subtask, base: Path, scored: list[str]
) -> None:
    with pytest.raises(ScoresMissing, match=r"no scores are stored.*promotion\.reevaluate"):
        scorer(subtask, base, reevaluate=False).of(version)
    made = scorer(subtask, base).of(version)
    other = replace(subtask, items=subtask.items[1:])
    with pytest.raises(ScoresMissing, match="computed with other items, images"):
        scorer(other, base, reevaluate=False).of(version)
    assert len(scorer(other, base).of(version)) == len(made) - 1
    assert len(scored) == 2


def test_adding_or_changing_an_adapter_leaves_scores_of_other_benchmarks_cached(
    version: ModelVersion, subtask: Subtask, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="compo_pipeline.registry.version_scores")
    model = ModelSettings(f"local-dir:{base}")
    other = replace(subtask, benchmark="sugar_crepe")
    made = VersionScores([subtask, other], EVALUATION, model).of(version)
    changed = replace(other, items=(replace(subtask.items[0], negatives=("cups",)),))
    added = replace(subtask, benchmark="winoground", items=subtask.items[:2])
    caplog.clear()
    again = VersionScores([subtask, changed, added], EVALUATION, model).of(version)
    (line,) = [log.getMessage() for log in caplog.records if log.name == version_scores.__name__]
    assert "other items, images (sugar_crepe)" in line
    assert "only scores of other benchmarks (winoground)" in line
    assert [row for row in made if row.benchmark == subtask.benchmark] == again[:IMAGES]
    assert [row.benchmark for row in again[IMAGES:]] == ["sugar_crepe", *["winoground"] * 2]
    # What was computed is cached too, and what an adapter leaves out changes no score.
    left_out = replace(added, dropped={"too few votes": 3})
    cached = VersionScores([subtask, changed, left_out], EVALUATION, model, reevaluate=False)
    assert cached.of(version) == again


def stored_table(version: ModelVersion, suffix: str) -> str:
    """Path of the stored scores, or of their digest, in the artefacts of the version's run."""
    client = mlflow.MlflowClient()
    (folder,) = client.list_artifacts(version.run_id, "scores")
    files = [file.path for file in client.list_artifacts(version.run_id, folder.path)]
    return next(path for path in files if path.endswith(suffix))


def test_edited_scores_are_refused(
    version: ModelVersion, subtask: Subtask, base: Path, tmp_path: Path
) -> None:
    made = scorer(subtask, base).of(version)
    client, name = mlflow.MlflowClient(), stored_table(version, ".parquet")
    table = Path(client.download_artifacts(version.run_id, name, str(tmp_path)))
    edited = [replace(score, correct=True) for score in made]
    assert edited != made
    pq.write_table(to_table(edited, Score), table)
    client.log_artifact(version.run_id, str(table), str(Path(name).parent))
    with pytest.raises(ScoresInvalid, match=rf"{name}.*sha256"):
        scorer(subtask, base).of(version)
    digest = table.with_suffix(".sha256")
    digest.write_bytes(b"\xff" * 64)
    client.log_artifact(version.run_id, str(digest), str(Path(name).parent))
    with pytest.raises(ScoresInvalid, match=rf"{name}.*sha256"):
        scorer(subtask, base).of(version)
    # With a digest that fits, the verdicts still do not.
    digest.write_text(file_sha256(table))
    client.log_artifact(version.run_id, str(digest), str(Path(name).parent))
    wrong = next(score.item for score in made if not score.correct)
    with pytest.raises(ScoresInvalid, match=rf"swap_att itt, item '{wrong}'.*correct=True"):
        scorer(subtask, base).of(version)


def test_with_keys_only_signed_scores_are_used(
    version: ModelVersion,
    subtask: Subtask,
    base: Path,
    key_pair: Callable[[str], SigningSettings],
    sealed: Callable[..., ModelVersion],
) -> None:
    made = scorer(subtask, base).of(version)
    write_evidence(export_of(version), Evidence(stored.digests(version.run_id), ()))
    keys = key_pair("scores")
    signed = sealed(version, keys)

    def found() -> list[Score]:
        model = ModelSettings(f"local-dir:{base}")
        return VersionScores([subtask], EVALUATION, model, reevaluate=False, signing=keys).of(
            signed
        )

    assert found() == made
    better = [replace(score, similarities=(0.3, 0.2, 0.1), correct=True) for score in made]
    fingerprints = scorer(subtask, base).fingerprints
    stored.store_scores(RunLog(version.run_id), fingerprints, {version.tags["fingerprint"]: better})
    assert scorer(subtask, base, store=False).of(signed) == made
    with pytest.raises(ScoresMissing):
        found()


def test_without_keys_too_scores_are_those_of_the_evidence(
    version: ModelVersion, subtask: Subtask, base: Path, sealed: Callable[..., ModelVersion]
) -> None:
    """Forged tables with digests that fit: of the version all right, of its base all wrong."""
    named = scorer(subtask, base)
    made = {"fingerprint": named.of(version), "base_fingerprint": named.base_of(version)}
    write_evidence(export_of(version), Evidence(stored.digests(version.run_id), ()))
    registered = sealed(version)
    forged = {
        registered.tags[tag]: [
            replace(score, similarities=(0.3, 0.2, 0.1 if right else 0.4), correct=right)
            for score in made[tag]
        ]
        for tag, right in (("fingerprint", True), ("base_fingerprint", False))
    }
    stored.store_scores(RunLog(version.run_id), named.fingerprints, forged)
    for read in (VersionScores.of, VersionScores.base_of):
        with pytest.raises(ScoresMissing):
            read(scorer(subtask, base, reevaluate=False), registered)
    again = scorer(subtask, base, store=False)
    assert again.of(registered) == made["fingerprint"]
    assert again.base_of(registered) == made["base_fingerprint"]


def test_files_of_other_weights_than_the_tag_says_are_refused(
    version: ModelVersion, subtask: Subtask, base: Path
) -> None:
    mlflow.MlflowClient().set_model_version_tag(version.name, version.version, "fingerprint", "f0")
    changed = mlflow.MlflowClient().get_model_version(version.name, version.version)
    with pytest.raises(VersionError, match=r"version 1 .*the fingerprint \w{16}, .*names f0"):
        scorer(subtask, base).of(changed)


def test_another_base_than_the_versions_is_refused(
    version: ModelVersion,
    subtask: Subtask,
    tiny_model: Callable[..., Path],
    sealed: Callable[..., ModelVersion],
) -> None:
    with pytest.raises(SettingsError, match=r"model: version 1 was fine-tuned from another"):
        scorer(subtask, tiny_model(seed=3)).base_of(version)
    mlflow.MlflowClient().delete_model_version_tag(
        version.name, version.version, "base_fingerprint"
    )
    untold = sealed(version)
    with pytest.raises(SettingsError, match="does not say from which"):
        scorer(subtask, tiny_model(seed=1)).base_of(untold)


def test_an_evaluation_stores_the_scores_of_its_version_and_base(
    version: ModelVersion, subtask: Subtask, base: Path, comparison: Comparison, tmp_path: Path
) -> None:
    def made_up(model: str, right: bool) -> list[Score]:
        name = (model, "sugar_crepe_pp", "swap_att", "itt")
        return [Score(*name, "0", "0.png", (0.3, 0.4, 0.2 if right else 0.35), right, None)]

    scores = [*made_up("base", False), *made_up("control", False), *made_up("clic", True)]
    record = RunLog(version.run_id)
    weights = {"base": version.tags["base_fingerprint"], "control": "c"}
    weights["fine_tuned"] = version.tags["fingerprint"]
    compared = replace(
        comparison,
        models={"base": "base", "control": "control", "fine_tuned": "clic"},
        fingerprints=weights,
    )
    asked = ([subtask], str(tmp_path), EVALUATION)
    stored.store_evaluation(record, scores, compared, *asked)
    found = scorer(subtask, base, reevaluate=False)
    assert found.of(version) == made_up("clic", True)
    assert found.base_of(version) == made_up("base", False)
    (given,) = mlflow.get_run(version.run_id).inputs.dataset_inputs
    assert given.dataset.name == "benchmarks"


def test_overlaps_are_those_of_the_same_items(
    version: ModelVersion,
    subtask: Subtask,
    base: Path,
    sealed: Callable[..., ModelVersion],
) -> None:
    (measured,) = overlaps([subtask], TrainingRows(), 1, {})
    assert measured.images == IMAGES
    write_evidence(export_of(version), Evidence({}, (measured,)))
    version = sealed(version)
    assert scorer(subtask, base).overlaps(version) == [measured]
    # Other subtasks do not matter; a subtask with other items is another one.
    other = replace(subtask, benchmark="sugar_crepe", items=subtask.items[1:])
    both = VersionScores([other, subtask], EVALUATION, ModelSettings(f"local-dir:{base}"))
    assert both.overlaps(version) == [measured]
    fewer = replace(subtask, items=subtask.items[1:])
    assert scorer(fewer, base).overlaps(version) == []


def export_of(version: ModelVersion) -> Path:
    (folder,) = (Path(version.source) / "artifacts").iterdir()
    return folder


def test_scores_of_other_weights_say_so(
    version: ModelVersion, subtask: Subtask, base: Path
) -> None:
    """As an evaluation keeps them of a checkpoint that is then registered in half precision."""
    found = scorer(subtask, base, reevaluate=False)
    stored.store_scores(RunLog(version.run_id), found.fingerprints, {"e" * 64: []})
    with pytest.raises(ScoresMissing, match=r"only scores of other weights .*fp32"):
        found.of(version)


def test_unreadable_fingerprints_are_ignored(
    version: ModelVersion, subtask: Subtask, base: Path, tmp_path: Path
) -> None:
    client = mlflow.MlflowClient()
    client.log_dict(version.run_id, {"made": "by a later version"}, "scores/old/fingerprint.json")
    client.log_text(version.run_id, "{", "scores/half/fingerprint.json")
    (tmp_path / "fingerprint.json").write_bytes(b'{"made": "\xff"}')
    client.log_artifact(version.run_id, str(tmp_path / "fingerprint.json"), "scores/odd")
    client.log_dict(version.run_id, {}, "scores/bare/other.json")
    with pytest.raises(ScoresMissing, match="cannot be read"):
        scorer(subtask, base, reevaluate=False).of(version)
    assert len(scorer(subtask, base).of(version)) == IMAGES


def test_a_copy_is_a_version_with_files_tags_and_scores(
    version: ModelVersion, subtask: Subtask, base: Path, tmp_path: Path
) -> None:
    made = scorer(subtask, base).of(version)
    decided = ("promotion.outcome", "rolled back")
    mlflow.MlflowClient().set_model_version_tag(version.name, version.version, *decided)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    target = mlflow.MlflowClient(tracking_uri=other, registry_uri=other)
    target.create_experiment("copies", (tmp_path / "artifacts").as_uri())
    settings = CopySettings(to=other, experiment="copies")
    assert copy_version(version.name, settings, UNSIGNED, dry_run=True) is None
    assert target.search_registered_models() == []
    assert copy_version(version.name, settings, UNSIGNED) == 1
    assert copy_version(version.name, settings, UNSIGNED) == 1, "the same checkpoint is there once"

    copied = target.get_model_version_by_alias(version.name, "challenger")
    assert copied.description == "A card."
    origin = f"models:/{version.name}/1"
    origins = {"copied_from": origin, "copied_from_run": version.run_id}
    assert copied.tags == version.tags | origins
    here = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri(other)
        mlflow.set_registry_uri(other)
        there = verification.verified(copied, tmp_path / "copy", UNSIGNED)
        assert json.loads((there.export / "compo.json").read_text())["precision"] == "fp32"
        assert scorer(subtask, base, reevaluate=False).of(copied) == made
    finally:
        mlflow.set_tracking_uri(here)
        mlflow.set_registry_uri(here)


def test_a_copy_is_signed_anew_for_its_own_number(
    version: ModelVersion,
    sealed: Callable[..., ModelVersion],
    key_pair: Callable[[str], SigningSettings],
    tmp_path: Path,
) -> None:
    keys = key_pair("copies")
    public = SigningSettings(keys.public_key)
    sealed(version, keys)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    target = mlflow.MlflowClient(tracking_uri=other, registry_uri=other)
    target.create_experiment("copies", (tmp_path / "artifacts").as_uri())
    target.create_registered_model(version.name)
    target.create_model_version(version.name, str(tmp_path / "earlier"))
    settings = CopySettings(to=other, experiment="copies")
    with pytest.raises(SettingsError, match=r"registration\.signing\.private_key"):
        copy_version(version.name, settings, public)
    assert copy_version(version.name, settings, keys) == 2
    copied = target.get_model_version_by_alias(version.name, "challenger")
    files = verification.verified(copied, tmp_path / "copy", public, other)
    assert (files.lineage.version, files.lineage.run_id) == (2, copied.run_id)
    assert copy_version(version.name, settings, keys) == 2, "the same checkpoint is there once"
    # What is checked is the copy, not the version of the same number here.
    (weights,) = (tmp_path / "artifacts").rglob("open_clip_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(VersionError, match="open_clip_model.safetensors"):
        verification.verified(copied, tmp_path / "again", public, other)


def test_copying_needs_a_place_and_a_version(version: ModelVersion) -> None:
    with pytest.raises(SettingsError, match=r"promotion\.copy\.to"):
        copy_version(version.name, CopySettings(), UNSIGNED)
    with pytest.raises(SettingsError, match=r"promotion\.copy\.alias.*'nobody'"):
        copy_version(
            version.name,
            CopySettings(to=mlflow.get_tracking_uri(), alias="nobody"),
            UNSIGNED,
        )
    with pytest.raises(SettingsError, match=r"copy\.gives: 'champion' is given by"):
        parse(CopySettings, {"gives": "champion"}, "promotion.copy")


def test_the_fingerprint_changes_with_everything_that_scores_depend_on(subtask: Subtask) -> None:
    def fingerprint(task: Subtask, settings: EvaluationSettings) -> ScoresFingerprint:
        return scores_fingerprints([task], settings)[task.benchmark]

    ours = fingerprint(subtask, EVALUATION)
    assert fingerprint(subtask, replace(EVALUATION, image_batch=7, workers=1)).id == ours.id
    exact = fingerprint(subtask, replace(EVALUATION, image_precision="bf16"))
    assert ours.differences(exact) == ["settings"]
    reworded = replace(subtask.items[0], negatives=("keys",))
    asked = replace(subtask, items=(reworded, *subtask.items[1:]))
    assert ours.differences(fingerprint(asked, EVALUATION)) == ["items"]
    for readers in ({"deviations": ("ties",)}, {"dropped": {"symmetric": 1}}, {"title": "own"}):
        reported: dict[str, Any] = readers
        assert fingerprint(replace(subtask, **reported), EVALUATION) == ours
    turned = replace(subtask, limits=Limits(exif=False))
    assert ours.differences(fingerprint(turned, EVALUATION)) == ["items"]
    image = subtask.images / "0.png"
    before = image.read_bytes()
    try:
        Image.new("RGB", (32, 32), "grey").save(image)
        assert ours.differences(fingerprint(subtask, EVALUATION)) == ["images"]
        image.unlink()
        assert ours.differences(fingerprint(subtask, EVALUATION)) == ["images"]
    finally:
        image.write_bytes(before)
    assert fingerprint(subtask, EVALUATION) == ours
