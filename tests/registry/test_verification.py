"""A version is used only if its files are those that were registered or, with keys, signed."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
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
Sealed = Callable[..., ModelVersion]
Change = Callable[[Path], object]
OVERLAP = Overlap("sugar_crepe_pp", "swap_att", 9, 1, 0, 9, 0)
# In tags and record of a version.
SAME = {"checkpoint_sha256": "c" * 64, "precision": "fp32"}
NAME = "verified"
WEIGHTS = "open_clip_model.safetensors"


@pytest.fixture(scope="module")
def registered(
    version_files: Callable[..., dict[str, str]],
    tiny_model: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    mlflow_project: Path,
    sealed: Sealed,
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


def opened(version: ModelVersion, keys: SigningSettings = UNSIGNED) -> str:
    """Verify a version and load its model, whose fingerprint is returned."""
    with TemporaryDirectory() as folder:
        return verified(version, Path(folder), keys).load().fingerprint


def refusal(version: ModelVersion, keys: SigningSettings = UNSIGNED) -> str:
    """The line that refuses a version."""
    with TemporaryDirectory() as folder:
        with pytest.raises(VersionError, match=f"{version.name} version") as refused:
            verified(version, Path(folder), keys).load()
        assert folder not in refused.value.message and "\n" not in refused.value.message
    return refused.value.message


def export_of(files: Path) -> Path:
    (folder,) = (files / "artifacts").iterdir()
    return folder


def weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def make(files: Path) -> None:
        path = export_of(files) / WEIGHTS
        save_file({name: change(tensor) for name, tensor in load_file(path).items()}, path)

    return make


def added(name: str) -> Change:
    return lambda files: shutil.copyfile(export_of(files) / WEIGHTS, export_of(files) / name)


def removed(name: str) -> Change:
    return lambda files: (export_of(files) / name).unlink()


def longer(name: str, text: str) -> Change:
    return lambda files: (files / name).write_text((files / name).read_text() + text)


def edited(name: str, change: Callable[[Any], object]) -> Change:
    def make(files: Path) -> None:
        path = export_of(files) / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return make


def probe(value: float) -> Change:
    def change(probes: Any) -> None:
        probes["texts"][1][0] += value

    return edited("probes.json", change)


EVIDENCE = "evidence/evidence.json"
CONFIG = "open_clip_config.json"
# Changes, and what the refusal names.
CHANGES: list[tuple[Change, str]] = [
    (weights(lambda tensor: torch.full_like(tensor, torch.nan)), WEIGHTS),
    (weights(lambda tensor: tensor + 1), "fingerprint"),
    (removed(WEIGHTS), WEIGHTS),
    (lambda files: (export_of(files) / WEIGHTS).write_bytes(b"half"), WEIGHTS),
    # open_clip would prefer it.
    (added("open_clip_pytorch_model.bin"), "open_clip_pytorch_model.bin"),
    (added("evidence/model.pkl"), "evidence/model.pkl"),
    (added("tokenizer.py"), "tokenizer.py"),
    (added("../../code/os.py"), "code/os.py"),
    (longer("model.py", "\nimport os\n"), "model.py"),
    (longer("code/compo_decoding.py", "\nimport os\n"), "code/compo_decoding.py"),
    (removed(CONFIG), f"artifacts has 0 folders with {CONFIG}"),
    (
        lambda files: shutil.copytree(export_of(files), files / "artifacts" / "b"),
        "artifacts has 2 folders",
    ),
    (lambda files: shutil.rmtree(export_of(files) / "evidence"), EVIDENCE),
    (lambda files: longer(EVIDENCE, "}")(export_of(files)), EVIDENCE),
    (edited(EVIDENCE, lambda found: found["overlaps"][0].update(images=None)), "images"),
    (edited(CONFIG, lambda found: found["preprocess_cfg"].update(mean=[0.5] * 3)), CONFIG),
    (probe(0.01), "probe texts"),
    (probe(float("nan")), "probe texts"),
    (removed("probes.json"), "probes.json"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_changed_version_is_not_used_even_if_its_digests_are_forged(
    version: ModelVersion, files: Path, sealed: Sealed, change: Change, named: str
) -> None:
    change(files)
    assert named in refusal(sealed(version, forge=True))


def test_a_probe_may_differ_by_rounding(version: ModelVersion, files: Path, sealed: Sealed) -> None:
    probe(5e-5)(files)
    assert opened(sealed(version, forge=True))


@pytest.mark.parametrize("place", ["@champion", "/1"])
def test_a_version_is_loaded_by_its_uri(version: ModelVersion, place: str) -> None:
    model = ModelSettings(name=f"models:/{NAME}{place}")
    assert load_model(model, "cpu", UNSIGNED).fingerprint == version.tags["fingerprint"]


@pytest.mark.usefixtures("version")
def test_a_version_that_was_changed_is_not_loaded_by_its_uri(files: Path) -> None:
    weights(lambda tensor: tensor + 1)(files)
    with pytest.raises(VersionError):
        load_model(ModelSettings(name=f"models:/{NAME}@previous"), "cpu", UNSIGNED)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("place", ["@champio", "/9", ""])
def test_a_uri_of_no_version_names_the_key(place: str) -> None:
    with pytest.raises(SettingsError, match=r"^model\.name: "):
        load_model(ModelSettings(name=f"models:/{NAME}{place}"), "cpu", UNSIGNED)


@pytest.mark.parametrize(
    "name", ["MLmodel", "requirements.txt", "artifacts/*/compo.json", "artifacts/*/evidence/*"]
)
def test_a_changed_byte_of_any_file_counts(version: ModelVersion, files: Path, name: str) -> None:
    path = sorted(files.glob(name))[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert f"{path.name} was changed" in refusal(version)


def test_a_file_that_was_added_or_removed_counts(version: ModelVersion, files: Path) -> None:
    (export_of(files) / "README.md").touch()
    assert "README.md was added" in refusal(version)
    (export_of(files) / "README.md").unlink()
    (export_of(files) / "compo.json").unlink()
    assert "compo.json is missing" in refusal(version)


@pytest.mark.parametrize("content", [None, "{}", "{"])
def test_a_version_without_lineage_is_not_used(
    version: ModelVersion, files: Path, content: str | None
) -> None:
    (files / "lineage.json").unlink()
    if content is not None:
        (files / "lineage.json").write_text(content)
    assert "lineage.json" in refusal(version)


@pytest.mark.usefixtures("version")
def test_no_alias_moves_to_a_changed_version(files: Path) -> None:
    weights(lambda tensor: tensor + 1)(files)
    client = mlflow.MlflowClient()
    before = client.get_registered_model(NAME).aliases
    gate = Gate(version=1, rules={"itt": GateRule("rise", figure="sugar_crepe_pp/itt/swap_att")})
    settings = PromotionSettings(gate=gate)
    for dry_run in (True, False):
        with pytest.raises(VersionError, match="safetensors was changed"):
            roll_back(NAME, replace(settings, dry_run=dry_run), UNSIGNED)
    assert client.get_registered_model(NAME).aliases == before


@pytest.fixture
def signing(key_pair: KeyPair) -> SigningSettings:
    return key_pair("ours")


@pytest.fixture
def signed(version: ModelVersion, files: Path, signing: SigningSettings) -> ModelVersion:
    """The version, its files signed."""
    write_lineage(version, files, signing)
    return version


def test_a_signed_version_needs_the_public_key_alone_and_no_other(
    signed: ModelVersion, signing: SigningSettings, key_pair: KeyPair
) -> None:
    assert opened(signed, SigningSettings(signing.public_key))
    assert "model.sig" in refusal(signed, key_pair("theirs"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda files: (files / "conda.yaml").unlink(), "conda.yaml is missing"),
        (lambda files: (files / ".gitignore").touch(), ".gitignore was added"),
        (longer("model.py", "\n"), "model.py"),
        (lambda files: (files / "model.sig").unlink(), "model.sig is missing"),
        (longer("lineage.json", " "), "lineage.json was changed"),
    ],
)
def test_a_file_that_differs_from_the_signed_one_is_named(
    signed: ModelVersion, files: Path, signing: SigningSettings, change: Change, named: str
) -> None:
    change(files)
    assert named in refusal(signed, signing)


def test_signed_code_may_be_of_another_version_of_this_program(
    version: ModelVersion, files: Path, sealed: Sealed, signing: SigningSettings
) -> None:
    longer("model.py", "# earlier\n")(files)
    with pytest.raises(ValueError, match=r"model\.py"):
        sealed(version, signing)
    earlier = sealed(version, forge=True)
    write_lineage(earlier, files, signing)
    assert opened(earlier, signing)


def test_other_files_than_were_logged_are_not_signed(
    version: ModelVersion, files: Path, sealed: Sealed, signing: SigningSettings
) -> None:
    weights(lambda tensor: tensor + 1)(files)
    with pytest.raises(ValueError, match="fingerprint"):
        sealed(version, signing)
    assert not (files / "model.sig").exists()


def test_the_signed_folder_and_tags_of_another_version_or_model_are_refused(
    signed: ModelVersion, files: Path, sealed: Sealed, signing: SigningSettings, tmp_path: Path
) -> None:
    client = mlflow.MlflowClient()
    client.create_registered_model("another-verified")
    folder = str(shutil.copytree(files, tmp_path / "other"))
    made = client.create_model_version("another-verified", folder, signed.run_id, tags=signed.tags)
    others = [
        (client.get_model_version(NAME, "2"), "names the version 2, the registry names 1"),
        (made, "names the name another-verified, the registry names"),
    ]
    for other, named in others:
        sealed(other, signing)
        assert opened(other, signing)
        shutil.rmtree(files)
        shutil.copytree(other.source, files)
        for tag, value in other.tags.items():
            client.set_model_version_tag(NAME, "1", tag, value)
        assert named in refusal(client.get_model_version(NAME, "1"), signing)


def test_a_copy_of_a_version_is_that_version(
    signed: ModelVersion, files: Path, signing: SigningSettings
) -> None:
    """MLflow's own copy, and a copy of the copy; no other version with these files and tags."""
    client, name = mlflow.MlflowClient(), "copied-verified"
    copy = client.copy_model_version(f"models:/{NAME}/{signed.version}", name)
    again = client.copy_model_version(f"models:/{name}/{copy.version}", f"{name}-again")
    for each in (copy, again):
        assert opened(each, signing) == signed.tags["fingerprint"]
    other = client.create_model_version(name, str(files), signed.run_id, tags=signed.tags)
    assert f"names the name {NAME}" in refusal(other, signing)
    weights(lambda tensor: tensor + 1)(files)
    assert "safetensors" in refusal(copy, signing)


@pytest.mark.parametrize(
    ("tag", "keys"), [("fingerprint", False), ("base_fingerprint", True), ("files", False)]
)
def test_a_tag_that_is_not_the_lineage_is_refused(
    signed: ModelVersion, signing: SigningSettings, tag: str, keys: bool
) -> None:
    client = mlflow.MlflowClient()
    client.set_model_version_tag(NAME, "1", tag, "other")
    changed = client.get_model_version(NAME, "1")
    assert f"names the {tag} " in refusal(changed, signing if keys else UNSIGNED)


def test_a_version_of_another_run_is_refused(
    signed: ModelVersion, signing: SigningSettings
) -> None:
    signed._run_id = "0" * 32
    assert "names the run_id " in refusal(signed, signing)


def test_unusable_keys_are_named(
    signing: SigningSettings, key_pair: KeyPair, tmp_path: Path
) -> None:
    assert signing.private_key is not None
    key = load_pem_private_key(signing.private_key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    encryption = BestAvailableEncryption(b"secret words")
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    for changes, named in (
        ({"private_key": Path("missing.pem")}, "private_key: .*missing.pem"),
        ({"private_key": locked}, "private_key: .*locked.pem.*openssl pkey -in"),
        ({"public_key": Path(__file__)}, "public_key: .*test_verification"),
        ({"public_key": key_pair("another").public_key}, "public_key: "),
    ):
        with pytest.raises(SettingsError, match=rf"^registration\.signing\.{named}") as refused:
            check_keys(replace(signing, **changes), signs=True)
        assert "\n" not in refused.value.message


def test_a_private_key_needs_its_public_key() -> None:
    with pytest.raises(SettingsError, match=r"registration\.signing\.public_key: expected"):
        parse(SigningSettings, {"private_key": "a.pem"}, "registration.signing")


def test_bytecode_that_python_writes_when_mlflow_loads_a_version_is_not_taken(
    version: ModelVersion, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    mlflow.pyfunc.load_model(f"models:/{NAME}/1")
    assert list((files / "__pycache__").iterdir())
    (files / "code" / "__pycache__").mkdir(exist_ok=True)
    (files / "code" / "__pycache__" / "compo_decoding.pyc").touch()
    copy = verified(version, tmp_path / "copy", UNSIGNED).folder
    assert not list(copy.rglob("__pycache__"))
    (files / "__pycache__").rename(export_of(files) / "__pycache__")
    assert ".pyc file" in refusal(version)
