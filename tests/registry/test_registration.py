"""A checkpoint becomes one version in the registry, and that version scores images."""

import importlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import open_clip
import pandas as pd
import pytest
import torch
from huggingface_hub import ModelCard
from mlflow.exceptions import MlflowException
from PIL import Image
from rich.console import Console
from tests.hub_server import Hub

from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import export, load
from compo_pipeline.models.weights import read_record
from compo_pipeline.registry import registration, versions
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import MODELS, Evidence, write_evidence
from compo_pipeline.registry.publishing import push
from compo_pipeline.registry.reference import write_reference
from compo_pipeline.registry.registration import (
    Registered,
    export_with_card,
    register,
    requirements,
)
from compo_pipeline.registry.settings import RegistrationSettings, SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import VersionError, verified

SETTINGS = RegistrationSettings()
Again = Callable[..., Registered]
RUN = {"method": "clic", "variant": "default", "seed": 7}
MANIFEST: dict[str, Any] = {"data_hash": "d" * 64, "count": 3, "files": {}}


@pytest.fixture(scope="module")
def checkpoint(tiny_clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned tiny model, as training leaves it."""
    loaded = load(tiny_clip)
    base = loaded.fingerprint
    with torch.no_grad():
        loaded.model.text_projection.mul_(1.5)
    folder = tmp_path_factory.mktemp("trained") / "checkpoint"
    objective = {"positives": 4, "decoder": str(folder)}
    training = {"fingerprint": {"model": base, "seed": 7, "objective": objective}}
    name = f"local-dir:{folder.parent / 'a base'} (clic on toy, from hf-hub:timm/tiny)"
    loaded = replace(loaded, name=name)
    return export(loaded, folder, metadata={"training": training})


def registered_in_a_run(
    checkpoint: Path, folder: Path, comparison: Comparison, settings: RegistrationSettings
) -> Registered:
    run_id = tracking.open_run("registering", {})
    run = {**RUN, "run_id": run_id}
    tuned = replace(comparison.models["fine_tuned"], fingerprint=load(checkpoint).fingerprint)
    scored = replace(comparison, models={**comparison.models, "fine_tuned": tuned})
    export_with_card(checkpoint, folder, run, MANIFEST, (), scored, settings)
    write_evidence(folder, Evidence.from_comparison(scored), {role: [] for role in MODELS}, [])
    write_reference(folder, load(folder), [], folder, 0, EvaluationSettings())
    with tracking.adopt(run_id) as record:
        return register(folder, record, MANIFEST, comparison, str(folder.parent), settings)


@pytest.fixture(scope="module")
def registered(
    mlflow_project: Path,
    checkpoint: Path,
    comparison: Comparison,
    tmp_path_factory: pytest.TempPathFactory,
) -> Registered:
    tracking.configure(TrackingSettings(experiment="registration"), mlflow_project)
    folder = tmp_path_factory.mktemp("out") / "export"
    with pytest.MonkeyPatch.context() as patch:
        # As Python does where no environment variable says otherwise.
        patch.setattr(sys, "dont_write_bytecode", False)
        patch.setattr(sys, "pycache_prefix", None)
        return registered_in_a_run(checkpoint, folder, comparison, SETTINGS)


@pytest.fixture
def again(
    registered: Registered, checkpoint: Path, comparison: Comparison, tmp_path: Path
) -> Callable[..., Registered]:
    """Registers once more, with other settings, another checkpoint or comparison."""

    def register_again(
        of: Path = checkpoint, compared: Comparison = comparison, **settings: Any
    ) -> Registered:
        return registered_in_a_run(of, tmp_path / "export", compared, replace(SETTINGS, **settings))

    return register_again


def version_of(alias: str) -> Any:
    return mlflow.MlflowClient().get_model_version_by_alias("compo-clip", alias)


def test_tags_of_a_version_name_its_origin(registered: Registered, checkpoint: Path) -> None:
    version = version_of("challenger")
    assert registered.fresh
    assert (int(version.version), version.run_id) == (registered.version, registered.run_id)
    headline = version.tags.pop("headline")
    assert headline.startswith("Retrieval image to text R@1 95.0 (+45.0 [")
    assert re.fullmatch("[0-9a-f]{64}", version.tags.pop("files"))
    assert version.tags == {
        "dataset": "toy",
        "method": "clic",
        "variant": "default",
        "seed": "7",
        "base_model": read_record(checkpoint)["name"],
        "base_fingerprint": read_record(checkpoint)["training"]["fingerprint"]["model"],
        "fingerprint": read_record(checkpoint)["fingerprint"],
        "data_hash": "d" * 64,
        "checkpoint_sha256": file_hash(checkpoint / "open_clip_model.safetensors"),
        "precision": "fp32",
    }
    assert mlflow.get_run(registered.run_id).data.metrics == {
        "_headline/retrieval.i2t_r1.raw": 95.0,
        "_headline/retrieval.t2i_r1.raw": 50.0,
        "_headline_vs_base/retrieval.i2t_r1.raw": 45.0,
        "_headline_vs_base/retrieval.t2i_r1.raw": -45.0,
        "test/retrieval/i2t_r1/raw": 95.0,
        "test/retrieval/t2i_r1/raw": 50.0,
    }


def test_version_is_described_by_its_card_and_knows_its_data(registered: Registered) -> None:
    version = version_of("challenger")
    card = next(
        Path(mlflow.artifacts.download_artifacts(registered.model_uri)).rglob("README.md")
    ).read_text()
    assert version.description.startswith("# compo-clip: CLIC")
    assert card.rstrip().endswith(version.description)
    (given,) = mlflow.get_run(registered.run_id).inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("toy", "d" * 36)
    assert {tag.key: tag.value for tag in given.tags} == {
        "mlflow.data.context": "training",
        "digest": "d" * 64,
    }


def test_same_checkpoint_makes_no_second_version(registered: Registered, again: Again) -> None:
    mlflow.MlflowClient().delete_registered_model_alias("compo-clip", "challenger")
    assert again() == replace(registered, fresh=False)
    assert int(version_of("challenger").version) == registered.version


def test_a_version_that_a_kill_left_without_lineage_is_not_used_again(
    again: Again, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(registration, "sign", dies)
        again(name="killed-clip")
    client = mlflow.MlflowClient()
    half = client.get_model_version("killed-clip", "1")
    with pytest.raises(VersionError, match=r"lineage\.json is missing"):
        verified(half, tmp_path / "half", SigningSettings())
    made = again(name="killed-clip")
    assert made.fresh and made.version == 2
    client.delete_registered_model("killed-clip")


def test_overlaps_that_were_measured_anew_are_a_new_version(
    again: Again, comparison: Comparison, tmp_path: Path
) -> None:
    name = "measured-clip"
    first = again(name=name)
    assert not again(name=name).fresh
    (overlap,) = comparison.overlaps
    more = replace(comparison, overlaps=(replace(overlap, same_bytes=2),))
    second = again(compared=more, name=name)
    assert second.fresh and second.version == first.version + 1
    version = mlflow.MlflowClient().get_model_version(name, str(second.version))
    found = verified(version, tmp_path / "copy", SigningSettings()).evidence
    assert found.overlaps == more.overlaps


def test_without_an_alias_no_alias_moves(
    registered: Registered, again: Again, checkpoint: Path, tmp_path: Path
) -> None:
    before = mlflow.MlflowClient().get_registered_model("compo-clip").aliases
    made = again(export(load(checkpoint), tmp_path / "other", precision="fp16"), alias=None)
    assert made.fresh and made.alias is None and made.version > registered.version
    assert mlflow.MlflowClient().get_registered_model("compo-clip").aliases == before


def test_versions_are_listed_with_their_origin(registered: Registered) -> None:
    printed = io.StringIO()
    versions.show_table(Console(file=printed, width=200))
    table = printed.getvalue().partition("\ncompo-clip\n")[2].partition("\n\n")[0]
    (row,) = [line for line in table.splitlines() if re.search(r"\bchallenger\b", line)]
    said = [str(registered.version), "challenger", "toy", "clic", "default", "7"]
    assert row.split()[: len(said)] == said and "+45.0" in table


def test_with_keys_a_version_is_signed_and_unsigned_ones_are_not_used_again(
    registered: Registered, again: Again, key_pair: Callable[[str], SigningSettings], tmp_path: Path
) -> None:
    keys = key_pair("registration")
    first = again(alias="signed", signing=keys)
    assert first.fresh and first.version > registered.version
    assert again(alias="signed", signing=keys) == replace(first, fresh=False)
    public = SigningSettings(keys.public_key)
    assert verified(version_of("signed"), tmp_path / "copy", public).load()
    with pytest.raises(VersionError, match=r"model\.sig is missing"):
        verified(version_of("challenger"), tmp_path / "unsigned", public)
    run = mlflow.get_run(first.run_id).data
    assert ".pem" not in str([run.params, run.tags, version_of("signed").tags])
    assert mlflow.pyfunc.load_model(first.model_uri)


def test_other_precision_or_weights_are_another_version(
    registered: Registered, again: Again, checkpoint: Path, tmp_path: Path
) -> None:
    first = again(precision="fp16", alias="half")
    assert first.version != registered.version
    files = Path(mlflow.artifacts.download_artifacts(first.model_uri))
    rounded = file_hash(next(files.rglob("*.safetensors")))
    assert rounded != version_of("half").tags["checkpoint_sha256"], "the tag is of the checkpoint"

    other = load(checkpoint)
    with torch.no_grad():
        other.model.text_projection.mul_(2)
    second = again(export(other, tmp_path / "other"), alias="half")
    assert second.version > first.version
    assert int(version_of("half").version) == second.version
    assert int(version_of("challenger").version) == registered.version


@pytest.fixture
def hidden_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine of a registry's user: no compo_pipeline, no network, no pickles."""

    class Hide:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.partition(".")[0] == "compo_pipeline":
                raise ImportError(f"{name} is hidden")

    def refuse(*args: object) -> None:
        raise OSError("no network")

    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "compo_pipeline"]:
            patch.delitem(sys.modules, name)
        patch.setattr(sys, "meta_path", [Hide(), *sys.meta_path])
        patch.setattr("socket.socket.connect", refuse)
        patch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        with pytest.raises(ImportError, match="is hidden"):
            importlib.import_module("compo_pipeline.registry.model")
        yield


@pytest.fixture
def image_and_cosines(checkpoint: Path, tmp_path: Path) -> tuple[Path, list[float]]:
    """An image, and its cosines with two captions as open_clip computes them."""
    path = tmp_path / "image.png"
    Image.radial_gradient("L").resize((70, 40)).convert("RGB").save(path)
    loaded = load(checkpoint)
    with torch.no_grad():
        u = loaded.model.encode_image(loaded.preprocess(Image.open(path))[None], normalize=True)
        t = loaded.model.encode_text(loaded.tokenize(["a red cube", "two cats"]), normalize=True)
    return path, (u @ t.T)[0].tolist()


@pytest.mark.usefixtures("registered")
def test_registered_model_scores_images_without_this_package(
    image_and_cosines: tuple[Path, list[float]],
    monkeypatch: pytest.MonkeyPatch,
    hidden_package: None,
) -> None:
    image, cosines = image_and_cosines
    monkeypatch.setenv("COMPO_CLIP_IMAGE_ROOT", str(image.parent))
    model = mlflow.pyfunc.load_model("models:/compo-clip@challenger")
    table = pd.DataFrame({"image": [str(image)] * 2, "text": ["a red cube", "two cats"]})
    answer = model.predict(table)
    assert list(answer.columns) == ["similarity"]
    assert answer["similarity"].tolist() == pytest.approx(cosines, abs=1e-6)
    assert len(model.predict(table.iloc[:0])) == 0
    ranked = model.predict(model.input_example, {"texts": ["a", "b"]})
    assert len(ranked["similarities"]) == 1
    with pytest.raises(MlflowException, match="no column text"):
        model.predict(table[["image"]])
    with pytest.raises(MlflowException, match=r"nothing\.png"):
        model.predict(table.assign(image="nothing.png"))


def test_requirements_are_pinned_and_on_a_package_index(tiny_clip: Path, tmp_path: Path) -> None:
    pins = requirements(tiny_clip)
    assert all(pin.count("==") == 1 and "+" not in pin for pin in pins)
    assert not any(pin.startswith("transformers") for pin in pins)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in of the hub, whose client has a token."""
    server = Hub()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield server
    server.shutdown()


def test_a_version_is_pushed_to_the_hub(
    registered: Registered,
    checkpoint: Path,
    comparison: Comparison,
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from sentence_transformers import SentenceTransformer

    assert push("challenger", "me/tiny", SETTINGS, public=False) == (f"{hub.url}/me/tiny", True)
    kept = {"logo.png", "theirs.json", "onnx/config.json"}
    old = "model-00001-of-00002.safetensors"
    hub.files["me/tiny"] |= dict.fromkeys((old, *kept), b"{}")
    uri = f"models:/compo-clip/{registered.version}"
    assert push(uri, "me/tiny", SETTINGS, public=True)[1], "it stays private"
    assert hub.private == {"me/tiny"}
    assert {token for kind, _, token in hub.seen if kind == "POST"} == {"Bearer hf_secret"}
    files = hub.files["me/tiny"]
    assert kept <= files.keys() and old not in files
    path = str(checkpoint.parent).encode()
    assert not [name for name, content in files.items() if path in content]
    assert not any(name.startswith("evidence") for name in files)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert load(tmp_path).fingerprint == version_of("challenger").tags["fingerprint"]
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path}")
    sentences = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    texts, image = ["a cat", "two dogs"], Image.radial_gradient("L").resize((32, 32))
    with torch.no_grad():
        tokens = open_clip.get_tokenizer(f"local-dir:{tmp_path}")(texts)
        encoded = model.eval().encode_text(tokens, normalize=True)
        shown = model.encode_image(preprocess(image)[None], normalize=True)
    near = {"atol": 1e-6, "rtol": 0.0}
    torch.testing.assert_close(torch.from_numpy(sentences.encode(texts)), encoded, **near)
    torch.testing.assert_close(torch.from_numpy(sentences.encode([image])), shown, **near)
    card = ModelCard(files["README.md"].decode())
    assert [
        (each.dataset_type, each.dataset_name, each.metric_name, each.metric_value)
        for each in card.data.eval_results
    ] == [
        ("retrieval", "Retrieval raw", row.label, round(row.estimate.value, 2))
        for row in comparison.rows
    ]
    base = "- Base: a base (clic on toy, from hf-hub:timm/tiny)\n"
    for said in (base, "decoder: checkpoint\n", "hf-hub:me/tiny", 'SentenceTransformer("me/tiny")'):
        assert said in card.text
    assert "sentence-transformers" in card.data.tags
    monkeypatch.setattr("compo_pipeline.models.foreign.find_spec", lambda name: None)
    hub.files["me/new"] = dict.fromkeys(("model.safetensors", "theirs.json"), b"")
    assert not push(uri, "me/new", SETTINGS, public=True)[1]
    assert hub.files["me/new"].keys() >= {"model.safetensors", "theirs.json"}
    assert "me/new: other weights stay there: model.safetensors" in caplog.text
    assert "open_clip_config.json" in hub.files["me/new"]
    assert "config.json" not in hub.files["me/new"], "without transformers"


def refused_push(*given: Any, public: bool = False, **settings: Any) -> str:
    with pytest.raises((SettingsError, VersionError)) as error:
        push(*given, replace(SETTINGS, **settings), public=public)
    assert "\n" not in error.value.message
    return error.value.message


def test_nothing_is_pushed_unless_all_is_as_it_should_be(
    registered: Registered,
    hub: Hub,
    key_pair: Callable[[str], SigningSettings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert "nobody" in refused_push("nobody", "me/tiny")
    assert "'tiny' has no owner" in refused_push("challenger", "tiny")
    assert "me/ti ny" in refused_push("challenger", "me/ti ny")
    unsigned = refused_push("challenger", "me/tiny", signing=key_pair("push"))
    assert "is not the model that was registered" in unsigned
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE=0" in refused_push("challenger", "me/tiny")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert "hf auth login" in refused_push("challenger", "me/tiny")
    assert not hub.seen, "the hub was asked nothing"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.files["me/known"] = {}
    assert "is public already: add --public" in refused_push("challenger", "me/known")
    assert hub.files["me/known"] == {}
    hub.faults = ['"license" must be one of [mit, other]']
    assert hub.faults[0] in refused_push("challenger", "me/tiny")
    hub.shutdown()
    hub.server_close()
    assert "me/tiny: ConnectError" in refused_push("challenger", "me/tiny")
