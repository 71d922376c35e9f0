"""Evidence of a version that is registered again is computed from its files alone."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import Subtask
from compo_pipeline.evaluation.contamination import Overlap, TrainingRows, training_rows
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.records import Caption, Score
from compo_pipeline.registry import scores, tracking
from compo_pipeline.registry.evidence import Evidence, write_evidence
from compo_pipeline.registry.promotion import promote
from compo_pipeline.registry.rescoring import rescore
from compo_pipeline.registry.run_log import RunLog
from compo_pipeline.registry.settings import (
    Gate,
    GateRule,
    PromotionSettings,
    RegistrationSettings,
    SigningSettings,
)
from compo_pipeline.registry.verification import verified
from compo_pipeline.registry.version_scores import VersionScores

IMAGES = 24
NAME = "rescored-clip"
DATA = "d" * 64
EVALUATION = EvaluationSettings(device="cpu", workers=1)
SETTINGS = RegistrationSettings(name=NAME)


@pytest.fixture(scope="module")
def subtask(choices: Callable[[int], Subtask]) -> Subtask:
    return choices(IMAGES)


@pytest.fixture(scope="module")
def models(tiny_model: Callable[..., Path]) -> tuple[Path, Path]:
    """A base and a fine-tuned model."""
    return tiny_model(seed=1), tiny_model(seed=2)


def scorer(subtask: Subtask, base: Path, signing: SigningSettings | None = None) -> VersionScores:
    return VersionScores(
        subtasks=[subtask],
        evaluation=EVALUATION,
        base=ModelSettings(f"local-dir:{base}"),
        reevaluate=False,
        signing=signing or SigningSettings(),
    )


def forged(right: bool) -> list[Score]:
    """Scores of which all are right, or none, with verdicts that fit their similarities."""
    values = (0.4, 0.3, 0.1 if right else 0.5)
    name = ("m", "sugar_crepe_pp", "swap_att", "itt")
    return [Score(*name, str(k), f"{k}.png", values, right, None) for k in range(IMAGES)]


@pytest.fixture
def challenger(
    configure: Callable[[str], None],
    subtask: Subtask,
    models: tuple[Path, Path],
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., ModelVersion],
    tmp_path: Path,
) -> Any:
    """A challenger whose stored scores and overlaps were forged, with digests that fit."""
    configure("rescoring")
    client = mlflow.MlflowClient()
    client.create_registered_model(NAME)
    base, tuned = map(load, models)
    run_id = tracking.open_run("scored", {})
    by_weights = {tuned.fingerprint: forged(True), base.fingerprint: forged(False)}
    fingerprints = scorer(subtask, models[0]).fingerprints
    scores.store_scores(RunLog(run_id), fingerprints, by_weights)
    folder = tmp_path / "version"
    same = {"checkpoint_sha256": "c" * 64, "precision": "fp32"}
    tags = version_files(tuned, folder, **same)
    clean = Overlap("sugar_crepe_pp", "swap_att", IMAGES, 0, 0, None, 2 * IMAGES, 0)
    (export,) = (folder / "artifacts").iterdir()
    write_evidence(export, Evidence(scores.digests(run_id), (clean,)))
    tags |= {**same, "base_fingerprint": base.fingerprint, "data_hash": DATA}
    made = sealed(client.create_model_version(NAME, str(folder), run_id, tags=tags))
    client.set_registered_model_alias(NAME, "challenger", made.version)
    yield made
    client.delete_registered_model(NAME)


def decided(
    subtask: Subtask, base: Path, signing: SigningSettings | None = None
) -> tuple[str, dict[str, str]]:
    """Outcome of a promotion, and the findings that failed."""
    rule = GateRule("sugar_crepe_pp/itt/swap_att", "rise")
    gate = Gate(version=1, rules={"itt": rule}, items=IMAGES)
    settings = PromotionSettings(captions="", gate=gate, reevaluate=False, dry_run=True)
    decision = promote(NAME, "challenger", scorer(subtask, base, signing), settings)
    failed = {check.rule: check.finding for check in decision.checks if not check.passed}
    return decision.outcome, failed


@pytest.fixture
def known(subtask: Subtask) -> TrainingRows:
    """Training rows with two sentences of the items, and no image of them."""
    caption = Caption(
        sample_id="0",
        image_id="0",
        image="train/0.png",
        width=32,
        height=32,
        sentences=("cup 0", "A cup is 1."),
        source="train",
        split="train",
    )
    return training_rows([caption], [], subtask.images, EVALUATION)


def test_forged_evidence_is_replaced_by_what_the_files_give(
    challenger: ModelVersion,
    subtask: Subtask,
    models: tuple[Path, Path],
    known: TrainingRows,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    # The forged overlap is of other items, so that it does not count.
    assert set(decided(subtask, models[0])[1]) == {"contamination"}
    made = rescore(scorer(subtask, models[0]), known, DATA, SETTINGS)
    assert (made.version, made.alias, made.fresh) == (2, "challenger", True)
    version = mlflow.MlflowClient().get_model_version_by_alias(NAME, "challenger")
    assert version.tags["rescored_from"] == f"models:/{NAME}/1"
    assert any("stored verdicts" in line and "differ" in line for line in caplog.messages)

    files = verified(version, tmp_path / "copy", SigningSettings())
    (overlap,) = files.evidence.overlaps
    assert (overlap.images, overlap.same_bytes, overlap.captions) == (IMAGES, 0, 2 * IMAGES)
    assert overlap.same_caption == 2
    # Without the stored scores, those of the first version are computed; they are the same.
    anew = VersionScores(
        [subtask], EVALUATION, ModelSettings(f"local-dir:{models[0]}"), store=False
    )
    mlflow.MlflowClient().delete_run(challenger.run_id)
    stored = scorer(subtask, models[0])
    for old, new in ((anew.of, stored.of), (anew.base_of, stored.base_of)):
        rows = [replace(row, model="m") for row in old(challenger)]
        assert [replace(row, model="m") for row in new(version)] == rows
    outcome, failed = decided(subtask, models[0])
    assert outcome == "refused" and set(failed) == {"itt"}


def test_with_keys_the_new_evidence_is_signed(
    challenger: ModelVersion,
    subtask: Subtask,
    models: tuple[Path, Path],
    known: TrainingRows,
    sealed: Callable[..., ModelVersion],
    key_pair: Callable[[str], SigningSettings],
    tmp_path: Path,
) -> None:
    keys = key_pair("rescoring")
    sealed(challenger, keys)
    public = SigningSettings(keys.public_key)
    with pytest.raises(SettingsError, match=r"registration\.signing\.private_key"):
        own = scorer(subtask, models[0], public)
        rescore(own, known, DATA, replace(SETTINGS, signing=public))
    made = rescore(scorer(subtask, models[0], keys), known, DATA, replace(SETTINGS, signing=keys))
    version = mlflow.MlflowClient().get_model_version(NAME, str(made.version))
    assert verified(version, tmp_path / "copy", public).evidence.scores
    assert set(decided(subtask, models[0], public)[1]) == {"itt"}


def test_a_version_of_other_data_or_without_alias_is_refused(
    challenger: ModelVersion, subtask: Subtask, models: tuple[Path, Path], known: TrainingRows
) -> None:
    with pytest.raises(SettingsError, match=r"dataset: version 1 .*dddd.*, this dataset has eeee"):
        rescore(scorer(subtask, models[0]), known, "e" * 64, SETTINGS)
    for alias, named in ((None, "got null"), ("nobody", "'nobody'")):
        with pytest.raises(SettingsError, match=rf"registration\.alias: .*{named}"):
            rescore(scorer(subtask, models[0]), known, DATA, replace(SETTINGS, alias=alias))
    aliases = mlflow.MlflowClient().get_registered_model(NAME).aliases
    assert {alias: int(number) for alias, number in aliases.items()} == {"challenger": 1}
