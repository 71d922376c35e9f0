"""Evidence of a version that is registered again is computed from its files alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlflow
import pytest
import torch
from mlflow.entities.model_registry import ModelVersion
from PIL import Image
from tests.registry.asked import aliases_of

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.records import Caption, Score
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import Overlap, TrainingRows, training_rows
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices, scored_items
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pipelines.rescore.nodes import rescore_version
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import read_evidence, read_tables, write_evidence
from compo_pipeline.registry.promotion import PromotionError, promote
from compo_pipeline.registry.settings import (
    Gate,
    GateRule,
    PromotionSettings,
    RegistrationSettings,
    SigningSettings,
)
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import verified

IMAGES = 24
NAME = "rescored-clip"
DATA = "d" * 64
EVALUATION = EvaluationSettings(device="cpu", workers=1)
SETTINGS = RegistrationSettings(name=NAME)
RULE = GateRule("rise", figure="sugar_crepe_pp/itt/swap_att")
GATE = Gate(version=1, rules={"itt": RULE}, items=IMAGES)


@pytest.fixture(scope="module")
def subtask(choices: Callable[[int], Subtask]) -> Subtask:
    return choices(IMAGES)


@pytest.fixture(scope="module")
def models(tiny_model: Callable[..., Path]) -> tuple[Path, Path]:
    """A base and a fine-tuned model."""
    return tiny_model(seed=1), tiny_model(seed=2)


class Asked(NamedTuple):
    """What a version is scored again with."""

    items: list[Subtask]
    slices: ItemSlices
    known: TrainingRows
    captions: list[Caption]
    manifest: dict[str, Any]
    root: Path
    base: ModelSettings


@pytest.fixture
def asked(subtask: Subtask, models: tuple[Path, Path]) -> Asked:
    """Training rows with two sentences of the items, and no image of them."""
    sentences = ("cup 0", "A cup is 1.")
    caption = Caption("0", "0", "train/0.png", 32, 32, sentences, "train", "train")
    return Asked(
        items=[subtask],
        slices={},
        known=training_rows([caption], []),
        captions=[caption],
        manifest={"data_hash": DATA},
        root=subtask.images,
        base=ModelSettings(f"local-dir:{models[0]}"),
    )


def rescore(asked: Asked, settings: RegistrationSettings) -> SimpleNamespace:
    store = TrackingSettings(experiment="rescoring", uri=mlflow.get_tracking_uri())
    return SimpleNamespace(**rescore_version(*asked, EVALUATION, settings, store))


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
    scored_files: Callable[..., tuple[dict[str, str], list[Score]]],
    sealed: Callable[..., ModelVersion],
    tmp_path: Path,
) -> Any:
    """A challenger whose scores and overlaps were forged, with digests that fit."""
    configure("rescoring")
    client = mlflow.MlflowClient()
    client.create_registered_model(NAME)
    run_id = tracking.open_run("scored", {})
    folder = tmp_path / "version"
    same = {"checkpoint_sha256": "c" * 64, "precision": "fp32"}
    run = {"dataset": "toy", "method": "clic", "variant": "default", "seed": 0}
    training = {"training": {"fingerprint": {"model": load(models[0]).fingerprint}}}
    tags, _ = scored_files(subtask, *models, folder, {}, **same, **run, **training, export_format=5)
    clean = Overlap("sugar_crepe_pp", "swap_att", IMAGES, 0, 0, 2 * IMAGES, 0)
    (export,) = (folder / "artifacts").iterdir()
    evidence = replace(read_evidence(export), overlaps=(clean,))
    scores = {FINE_TUNED: forged(True), BASE: forged(False)}
    write_evidence(export, evidence, scores, scored_items([subtask]))
    (export / "README.md").write_text("---\n---\nA card.")
    tags |= {**same, "data_hash": DATA, "dataset": "toy"}
    made = sealed(client.create_model_version(NAME, str(folder), run_id, tags=tags))
    client.set_registered_model_alias(NAME, "challenger", made.version)
    yield made
    client.delete_registered_model(NAME)


def decided(signing: SigningSettings | None = None) -> tuple[str, dict[str, str]]:
    """Outcome of a promotion, and the findings that failed."""
    settings = PromotionSettings(gate=GATE, dry_run=True)
    decision = promote(NAME, "challenger", settings, signing or SigningSettings())
    failed = {check.rule: check.finding for check in decision.checks if not check.passed}
    return decision.outcome, failed


@pytest.mark.usefixtures("challenger")
def test_forged_evidence_is_replaced_by_what_the_files_give(
    asked: Asked, models: tuple[Path, Path], tmp_path: Path
) -> None:
    assert decided() == ("promoted", {})
    made = rescore(asked, SETTINGS)
    assert (made.version, made.alias, made.fresh) == (2, "challenger", True)
    version = mlflow.MlflowClient().get_model_version_by_alias(NAME, "challenger")
    assert version.tags["rescored_from"] == f"models:/{NAME}/1"

    files = verified(version, tmp_path / "copy", SigningSettings())
    (overlap,) = files.evidence.overlaps
    assert (overlap.images, overlap.same_bytes, overlap.captions) == (IMAGES, 0, 2 * IMAGES)
    assert overlap.same_caption == 2
    scores, base, _ = files.read(read_tables)
    (task,) = asked.items
    for rows, folder in ((scores, models[1]), (base, models[0])):
        model = load(folder)
        for row, item in zip(rows, task.items, strict=True):
            assert row.item == item.item
            assert row.similarities == pytest.approx(cosines(model, task, item), abs=1e-5)
    outcome, failed = decided()
    assert outcome == "refused" and set(failed) == {"itt"}


@torch.inference_mode()
def cosines(model: LoadedModel, subtask: Subtask, item: Item) -> list[float]:
    """Of an item's image with its texts, one after the other."""
    with Image.open(subtask.path(item)) as image:
        u = model.model.encode_image(model.preprocess(image.convert("RGB"))[None], normalize=True)
    texts = (*item.positives, *item.negatives)
    t = [model.model.encode_text(model.tokenize([text]), normalize=True)[0] for text in texts]
    return [float(u[0] @ each) for each in t]


@pytest.mark.usefixtures("challenger")
def test_a_champion_stays_champion(asked: Asked) -> None:
    """It keeps its aliases, and what its promotion wrote."""
    client = mlflow.MlflowClient()
    decision = promote(NAME, "challenger", PromotionSettings(gate=GATE), SigningSettings())
    assert decision.outcome == "promoted"
    promoted = client.get_model_version(NAME, "1").tags
    made = rescore(asked, replace(SETTINGS, alias=None, rescore="champion"))
    assert made.alias == "champion"
    assert aliases_of(NAME) == {"challenger": 2, "champion": 2}
    tags = client.get_model_version(NAME, "2").tags
    of_promotion = {name for name in promoted if name.startswith("promotion.")}
    assert of_promotion and all(tags[name] == promoted[name] for name in of_promotion)


@pytest.mark.usefixtures("challenger")
@pytest.mark.parametrize(("outcome", "stays"), [("rolled back", True), ("refused", False)])
def test_a_version_that_was_rolled_back_stays_so(asked: Asked, outcome: str, stays: bool) -> None:
    client = mlflow.MlflowClient()
    client.set_model_version_tag(NAME, "1", "promotion.outcome", outcome)
    rescore(asked, SETTINGS)
    assert ("promotion.outcome" in client.get_model_version(NAME, "2").tags) == stays
    if stays:
        with pytest.raises(PromotionError, match="version 2 .*was rolled back"):
            decided()
    else:
        assert set(decided()[1]) == {"itt"}


def test_with_keys_the_new_evidence_is_signed(
    challenger: ModelVersion,
    asked: Asked,
    sealed: Callable[..., ModelVersion],
    key_pair: Callable[[str], SigningSettings],
    tmp_path: Path,
) -> None:
    keys = key_pair("rescoring")
    sealed(challenger, keys)
    public = SigningSettings(keys.public_key)
    with pytest.raises(SettingsError, match=r"registration\.signing\.private_key"):
        rescore(asked, replace(SETTINGS, signing=public))
    made = rescore(asked, replace(SETTINGS, signing=keys))
    version = mlflow.MlflowClient().get_model_version(NAME, str(made.version))
    assert verified(version, tmp_path / "copy", public).read(read_tables)[0]
    assert set(decided(public)[1]) == {"itt"}


@pytest.mark.usefixtures("challenger")
def test_only_a_version_with_other_evidence_or_reference_is_new(asked: Asked) -> None:
    assert (rescore(asked, SETTINGS).version, rescore(asked, SETTINGS).version) == (2, 2)
    held_out = replace(asked.captions[0], split="test", image="0.png")
    assert rescore(asked._replace(captions=[held_out]), SETTINGS).version == 3


@pytest.mark.usefixtures("challenger")
def test_another_base_is_refused(asked: Asked, models: tuple[Path, Path]) -> None:
    with pytest.raises(SettingsError, match=r"model: version 1 was fine-tuned from another"):
        rescore(asked._replace(base=ModelSettings(f"local-dir:{models[1]}")), SETTINGS)


def test_a_version_that_does_not_name_its_base_is_refused(
    challenger: ModelVersion, asked: Asked, sealed: Callable[..., ModelVersion]
) -> None:
    mlflow.MlflowClient().delete_model_version_tag(NAME, "1", "base_fingerprint")
    sealed(challenger)
    with pytest.raises(SettingsError, match="does not say from which"):
        rescore(asked, SETTINGS)


@pytest.mark.usefixtures("challenger")
def test_a_version_of_other_data_or_without_alias_is_refused(asked: Asked) -> None:
    with pytest.raises(SettingsError, match=r"dataset: version 1 .*dddd.*, this dataset has eeee"):
        rescore(asked._replace(manifest={"data_hash": "e" * 64}), SETTINGS)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"alias": None}, "alias: .*got null"),
        ({"alias": "nobody"}, "alias: .*'nobody'"),
        ({"rescore": "nobody"}, "rescore: .*'nobody'"),
    ]
    for changes, named in cases:
        with pytest.raises(SettingsError, match=rf"registration\.{named}"):
            rescore(asked, replace(SETTINGS, **changes))
    assert aliases_of(NAME) == {"challenger": 1}
