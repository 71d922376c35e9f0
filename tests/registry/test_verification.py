"""A version is used only if its files are those that were registered or, with keys, signed."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from mlflow.entities.model_registry import ModelVersion
from safetensors.torch import load_file, save_file

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.lineage import check_keys, write_lineage
from compo_pipeline.registry.promotion import roll_back
from compo_pipeline.registry.settings import Gate, GateRule, PromotionSettings, SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import VersionError, load_model, verified

UNSIGNED = SigningSettings()
KeyPair = Callable[..., SigningSettings]
OVERLAP = Overlap("sugar_crepe_pp", "swap_att", 9, 1, 0, 9, 0)
# In tags and record of a version.
SAME = {"checkpoint_sha256": "c" * 64, "precision": "fp32"}
NAME = "verified"


@pytest.fixture(scope="module")
def registered(
    version_files: Callable[..., dict[str, str]],
    tiny_model: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    mlflow_project: Path,
    sealed: Callable[..., ModelVersion],
) -> tuple[ModelVersion, Path]:
    """Version 1 of a model, the former champion, and a copy of its files; 2 is the champion."""
    tracking.configure(TrackingSettings(experiment="verification"), mlflow_project)
    folder = tmp_path_factory.mktemp("registered")
    tags = version_files(load(tiny_model(seed=1)), folder / "1", (OVERLAP,), **SAME)
    shutil.copytree(folder / "1", folder / "2")
    client = mlflow.MlflowClient()
    client.create_registered_model(NAME)
    for number, alias in (("1", "previous"), ("2", "champion")):
        run_id = tracking.open_run("verified", {})
        made = client.create_model_version(NAME, str(folder / number), run_id, tags=tags | SAME)
        client.set_registered_model_alias(NAME, alias, number)
        sealed(made)
    intact = shutil.copytree(folder / "1", folder / "intact")
    return client.get_model_version(NAME, "1"), intact


@pytest.fixture
def files(registered: tuple[ModelVersion, Path]) -> Path:
    """The folder of version 1, to be changed."""
    version, intact = registered
    shutil.rmtree(version.source)
    return Path(shutil.copytree(intact, version.source))


@pytest.fixture
def version(registered: tuple[ModelVersion, Path], files: Path) -> ModelVersion:
    """Version 1 as it was registered."""
    client = mlflow.MlflowClient()
    found = client.get_model_version(NAME, "1")
    for tag in found.tags.keys() - registered[0].tags.keys():
        client.delete_model_version_tag(NAME, "1", tag)
    for tag, value in registered[0].tags.items():
        if found.tags[tag] != value:
            client.set_model_version_tag(NAME, "1", tag, value)
    return client.get_model_version(NAME, "1")


def export_of(files: Path) -> Path:
    (folder,) = (files / "artifacts").iterdir()
    return folder


def weights_become(files: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = export_of(files) / "open_clip_model.safetensors"
    save_file({name: change(tensor) for name, tensor in load_file(path).items()}, path)


def edit(files: Path, name: str, old: str, new: str) -> None:
    content = (files / name).read_text()
    assert old in content
    (files / name).write_text(content.replace(old, new))


def second_file(files: Path, name: str) -> None:
    shutil.copyfile(export_of(files) / "open_clip_model.safetensors", export_of(files) / name)


def overlap(files: Path, **changes: Any) -> None:
    path = export_of(files) / "evidence" / "evidence.json"
    content = json.loads(path.read_text())
    content["overlaps"][0] |= changes
    path.write_text(json.dumps(content))


def line(files: Path, name: str, text: str) -> None:
    (files / name).write_text((files / name).read_text() + text)


def probe(files: Path, change: float) -> None:
    path = export_of(files) / "probes.json"
    stored = json.loads(path.read_text())
    stored["texts"][1][0] += change
    path.write_text(json.dumps(stored))


def preprocessing(files: Path) -> None:
    path = export_of(files) / "open_clip_config.json"
    content = json.loads(path.read_text())
    content["preprocess_cfg"]["mean"] = [0.5, 0.5, 0.5]
    path.write_text(json.dumps(content))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights of NaN": (
        lambda files: weights_become(files, lambda tensor: torch.full_like(tensor, torch.nan)),
        r"open_clip_model\.safetensors .*not finite",
    ),
    "other weights": (
        lambda files: weights_become(files, lambda tensor: tensor + 1),
        "fingerprint",
    ),
    "no weights": (
        lambda files: (export_of(files) / "open_clip_model.safetensors").unlink(),
        r"open_clip_model\.safetensors",
    ),
    "half the weights": (
        lambda files: (export_of(files) / "open_clip_model.safetensors").write_bytes(b"half"),
        "open_clip_model.safetensors",
    ),
    "weights that open_clip prefers": (
        lambda files: second_file(files, "open_clip_pytorch_model.bin"),
        r"open_clip_pytorch_model\.bin is a \.bin file",
    ),
    "a pickle": (
        lambda files: second_file(files, "evidence/model.pkl"),
        r"evidence/model\.pkl is a \.pkl file",
    ),
    "more code": (
        lambda files: second_file(files, "tokenizer.py"),
        r"tokenizer\.py is a \.py file",
    ),
    "other code": (lambda files: line(files, "model.py", "\nimport os\n"), r"model\.py"),
    "another decoder": (
        lambda files: line(files, "code/compo_decoding.py", "\nimport os\n"),
        r"code/compo_decoding\.py",
    ),
    "more code beside the decoder": (
        lambda files: second_file(files, "../../code/os.py"),
        r"code/os\.py is a \.py file",
    ),
    "no export": (
        lambda files: (export_of(files) / "open_clip_config.json").unlink(),
        "artifacts has 0 folders with open_clip_config.json",
    ),
    "a second export": (
        lambda files: shutil.copytree(export_of(files), files / "artifacts" / "b"),
        "artifacts has 2 folders",
    ),
    "no evidence": (
        lambda files: shutil.rmtree(export_of(files) / "evidence"),
        r"evidence/evidence\.json",
    ),
    "damaged evidence": (
        lambda files: line(export_of(files), "evidence/evidence.json", "}"),
        r"evidence\.json is not valid JSON",
    ),
    "an overlap without numbers": (lambda files: overlap(files, images=None), "images"),
    "another preprocessing": (preprocessing, r"open_clip_config\.json is damaged"),
    "other embeddings": (lambda files: probe(files, 0.01), r"probe texts .*probes\.json"),
    "no number": (lambda files: probe(files, float("nan")), r"probe texts"),
    "no probes": (lambda files: (export_of(files) / "probes.json").unlink(), r"probes\.json"),
}


@pytest.mark.parametrize("place", ["@champion", "/1"])
def test_a_version_is_loaded_by_its_uri(version: ModelVersion, place: str) -> None:
    model = ModelSettings(name=f"models:/{version.name}{place}")
    assert load_model(model, "cpu", UNSIGNED).fingerprint == version.tags["fingerprint"]


def test_a_version_that_was_changed_is_not_loaded_by_its_uri(
    version: ModelVersion, files: Path
) -> None:
    weights_become(files, lambda weights: weights + 1)
    with pytest.raises(VersionError):
        load_model(ModelSettings(name=f"models:/{version.name}@previous"), "cpu", UNSIGNED)


@pytest.mark.parametrize("place", ["@champio", "/9", ""])
def test_a_uri_of_no_version_names_the_key(version: ModelVersion, place: str) -> None:
    with pytest.raises(SettingsError, match=r"^model\.name: "):
        load_model(ModelSettings(name=f"models:/{version.name}{place}"), "cpu", UNSIGNED)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_version_is_not_used_even_if_its_digests_are_forged(
    version: ModelVersion,
    files: Path,
    sealed: Callable[..., ModelVersion],
    tmp_path: Path,
    change: str,
) -> None:
    make, named = CHANGES[change]
    make(files)
    forged = sealed(version, forge=True)
    with pytest.raises(VersionError, match=rf"{version.name} version 1 .*{named}") as refusal:
        verified(forged, tmp_path / "copy", UNSIGNED).load()
    assert str(tmp_path / "copy") not in refusal.value.message
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize(
    "name",
    [
        *("MLmodel", "requirements.txt", "artifacts/*/compo.json"),
        *("artifacts/*/evidence/evidence.json", "artifacts/*/evidence/scores.parquet"),
    ],
)
def test_a_changed_byte_of_any_file_counts(
    version: ModelVersion, files: Path, tmp_path: Path, name: str
) -> None:
    (path,) = files.glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(VersionError, match=rf"version 1 .*{path.name} was changed"):
        verified(version, tmp_path / "copy", UNSIGNED).load()


def test_a_file_that_was_added_or_removed_counts(
    version: ModelVersion, files: Path, tmp_path: Path
) -> None:
    (export_of(files) / "README.md").touch()
    with pytest.raises(VersionError, match=r"README\.md was added"):
        verified(version, tmp_path / "added", UNSIGNED).load()
    (export_of(files) / "README.md").unlink()
    edit(files, "lineage.json", '"digests": {', '"digests": {"README.md": "d0",')
    with pytest.raises(VersionError, match=r"README\.md is missing"):
        verified(version, tmp_path / "removed", UNSIGNED).load()


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "is missing: its registration"), ("{}", "has no digests"), ("{", "not valid JSON")],
)
def test_a_version_without_lineage_is_not_used(
    version: ModelVersion, files: Path, tmp_path: Path, content: str | None, named: str
) -> None:
    (files / "lineage.json").unlink()
    if content is not None:
        (files / "lineage.json").write_text(content)
    with pytest.raises(VersionError, match=rf"lineage\.json {named}|lineage\.json is {named}"):
        verified(version, tmp_path / "copy", UNSIGNED).load()


def test_a_probe_may_differ_by_rounding(
    version: ModelVersion,
    files: Path,
    sealed: Callable[..., ModelVersion],
    tmp_path: Path,
) -> None:
    probe(files, 5e-5)
    assert verified(sealed(version, forge=True), tmp_path / "copy", UNSIGNED).load()


def test_no_alias_moves_to_a_changed_version(
    version: ModelVersion, files: Path, tmp_path: Path
) -> None:
    weights_become(files, lambda tensor: tensor + 1)
    client, name = mlflow.MlflowClient(), version.name
    before = client.get_registered_model(name).aliases
    gate = Gate(version=1, rules={"itt": GateRule("rise", figure="sugar_crepe_pp/itt/swap_att")})
    settings = PromotionSettings(gate=gate)
    for dry_run in (True, False):
        with pytest.raises(VersionError, match="safetensors was changed"):
            roll_back(name, replace(settings, dry_run=dry_run), UNSIGNED)
    assert client.get_registered_model(name).aliases == before


@pytest.fixture
def signing(key_pair: KeyPair) -> SigningSettings:
    return key_pair("ours")


@pytest.fixture
def signed(version: ModelVersion, files: Path, signing: SigningSettings) -> ModelVersion:
    """The version, its files signed."""
    write_lineage(version, files, signing)
    return version


def test_a_signed_version_is_verified_with_the_public_key_alone(
    signed: ModelVersion, signing: SigningSettings, tmp_path: Path
) -> None:
    assert verified(signed, tmp_path / "copy", SigningSettings(signing.public_key)).load()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda files: (files / "conda.yaml").unlink(), r"conda\.yaml is missing"),
        (lambda files: (files / ".gitignore").touch(), r"\.gitignore was added"),
        (lambda files: line(files, "model.py", "\n"), r"model\.py"),
        (lambda files: (files / "model.sig").unlink(), r"model\.sig is missing.*registration"),
        (lambda files: line(files, "lineage.json", " "), r"lineage\.json was changed"),
    ],
)
def test_a_file_that_differs_from_the_signed_one_is_named(
    signed: ModelVersion,
    files: Path,
    signing: SigningSettings,
    tmp_path: Path,
    change: Callable[[Path], object],
    named: str,
) -> None:
    change(files)
    with pytest.raises(VersionError, match=rf"version 1 .*{named}") as refusal:
        verified(signed, tmp_path / "copy", signing).load()
    assert "\n" not in refusal.value.message


def test_a_signature_of_another_key_is_refused(
    signed: ModelVersion, key_pair: KeyPair, tmp_path: Path
) -> None:
    with pytest.raises(VersionError, match=r"model\.sig"):
        verified(signed, tmp_path / "copy", key_pair("theirs")).load()


def test_signed_code_may_be_of_another_version_of_this_program(
    version: ModelVersion,
    files: Path,
    sealed: Callable[..., ModelVersion],
    signing: SigningSettings,
    tmp_path: Path,
) -> None:
    line(files, "model.py", "# earlier\n")
    with pytest.raises(ValueError, match=r"model\.py"):
        sealed(version, signing)
    earlier = sealed(version, forge=True)
    write_lineage(earlier, files, signing)
    assert verified(earlier, tmp_path / "copy", signing).load()


def test_other_files_than_were_logged_are_not_signed(
    version: ModelVersion,
    files: Path,
    sealed: Callable[..., ModelVersion],
    signing: SigningSettings,
) -> None:
    weights_become(files, lambda tensor: tensor + 1)
    with pytest.raises(ValueError, match="fingerprint"):
        sealed(version, signing)
    assert not (files / "model.sig").exists()


def replaced_by(version: ModelVersion, other: ModelVersion, files: Path) -> ModelVersion:
    """A version whose folder and tags are now those of another one."""
    shutil.rmtree(files)
    shutil.copytree(other.source, files)
    client = mlflow.MlflowClient()
    for name, value in other.tags.items():
        client.set_model_version_tag(version.name, version.version, name, value)
    return client.get_model_version(version.name, version.version)


def test_the_signed_folder_of_another_version_is_refused(
    signed: ModelVersion,
    files: Path,
    sealed: Callable[..., ModelVersion],
    signing: SigningSettings,
    tmp_path: Path,
) -> None:
    second = sealed(mlflow.MlflowClient().get_model_version(signed.name, "2"), signing)
    assert verified(second, tmp_path / "second", signing).load()
    forged = replaced_by(signed, second, files)
    with pytest.raises(VersionError, match=r"names the version 2, the registry names 1"):
        verified(forged, tmp_path / "copy", signing).load()


def test_the_signed_folder_of_another_model_is_refused(
    signed: ModelVersion,
    files: Path,
    sealed: Callable[..., ModelVersion],
    signing: SigningSettings,
    tmp_path: Path,
) -> None:
    client, name = mlflow.MlflowClient(), "another-verified"
    client.create_registered_model(name)
    folder = shutil.copytree(files, tmp_path / "other")
    made = client.create_model_version(name, str(folder), signed.run_id, tags=signed.tags)
    other = sealed(made, signing)
    assert verified(other, tmp_path / "theirs", signing).load()
    with pytest.raises(VersionError, match=rf"names the name {name}, the registry names"):
        verified(replaced_by(signed, other, files), tmp_path / "copy", signing).load()


def test_a_copy_of_a_version_is_that_version(
    signed: ModelVersion, files: Path, signing: SigningSettings, tmp_path: Path
) -> None:
    """MLflow's own copy, and a copy of the copy; no other version with these files and tags."""
    client, name = mlflow.MlflowClient(), "copied-verified"
    copy = client.copy_model_version(f"models:/{signed.name}/{signed.version}", name)
    again = client.copy_model_version(f"models:/{name}/{copy.version}", f"{name}-again")
    for number, each in enumerate((copy, again)):
        found = verified(each, tmp_path / f"{number}", signing)
        assert (found.lineage.name, found.load().fingerprint) == (
            signed.name,
            signed.tags["fingerprint"],
        )
    other = client.create_model_version(name, str(files), signed.run_id, tags=signed.tags)
    with pytest.raises(VersionError, match=rf"names the name {signed.name}"):
        verified(other, tmp_path / "other", signing)
    weights_become(files, lambda tensor: tensor + 1)
    with pytest.raises(VersionError, match="safetensors"):
        verified(copy, tmp_path / "changed", signing)


@pytest.mark.parametrize(
    ("tag", "keys"), [("fingerprint", False), ("base_fingerprint", True), ("files", False)]
)
def test_a_tag_that_is_not_the_lineage_is_refused(
    signed: ModelVersion, signing: SigningSettings, tmp_path: Path, tag: str, keys: bool
) -> None:
    client = mlflow.MlflowClient()
    client.set_model_version_tag(signed.name, signed.version, tag, "other")
    changed = client.get_model_version(signed.name, signed.version)
    with pytest.raises(VersionError, match=rf"names the {tag} \w+, the registry names other"):
        verified(changed, tmp_path / "copy", signing if keys else UNSIGNED).load()


def test_a_version_of_another_run_is_refused(
    signed: ModelVersion, signing: SigningSettings, tmp_path: Path
) -> None:
    signed._run_id = "0" * 32
    with pytest.raises(VersionError, match=r"names the run_id \w+, the registry names 0000"):
        verified(signed, tmp_path / "copy", signing).load()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"private_key": Path("missing.pem")}, "private_key: .*missing.pem"),
        ({"public_key": Path(__file__)}, "public_key: .*test_verification"),
    ],
)
def test_unusable_keys_are_named(
    signing: SigningSettings, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError, match=rf"^registration\.signing\.{key}") as refusal:
        check_keys(replace(signing, **changes), signs=True)
    assert "\n" not in refusal.value.message


def test_a_key_with_a_password_is_refused(signing: SigningSettings, tmp_path: Path) -> None:
    assert signing.private_key is not None
    key = load_pem_private_key(signing.private_key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    encryption = BestAvailableEncryption(b"secret words")
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    with pytest.raises(SettingsError, match=r"locked\.pem' \(.*openssl pkey -in"):
        check_keys(replace(signing, private_key=locked), signs=True)


def test_keys_that_are_no_pair_are_refused(signing: SigningSettings, key_pair: KeyPair) -> None:
    other = key_pair("another")
    mixed = replace(signing, public_key=other.public_key)
    with pytest.raises(SettingsError, match=r"^registration\.signing\.public_key: "):
        check_keys(mixed, signs=True)


def test_a_private_key_needs_its_public_key() -> None:
    with pytest.raises(SettingsError, match=r"registration\.signing\.public_key: expected"):
        parse(SigningSettings, {"private_key": "a.pem"}, "registration.signing")


def test_bytecode_that_python_writes_when_mlflow_loads_a_version_is_not_taken(
    version: ModelVersion, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    mlflow.pyfunc.load_model(f"models:/{version.name}/{version.version}")
    assert list((files / "__pycache__").iterdir())
    (files / "code" / "__pycache__").mkdir(exist_ok=True)
    (files / "code" / "__pycache__" / "compo_decoding.pyc").touch()
    copy = verified(version, tmp_path / "copy", UNSIGNED).folder
    assert not list(copy.rglob("__pycache__"))
    (files / "__pycache__").rename(export_of(files) / "__pycache__")
    with pytest.raises(VersionError, match=r"__pycache__/.* is a \.pyc file"):
        verified(version, tmp_path / "other", UNSIGNED).load()
