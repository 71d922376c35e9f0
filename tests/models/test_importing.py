"""`compo-pipeline import-model`: a folder of open_clip that is the source, or nothing."""

import hashlib
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from kedro.framework.cli.cli import KedroCLI
from safetensors.torch import load_file, save_file

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.models.importing import ImportRequest, import_model
from compo_pipeline.models.loading import LoadedModel, export, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record

pytestmark = pytest.mark.usefixtures("architectures")
TEXTS = ["A red cube, left of the sphere!", "blue", "the dog"]


@pytest.fixture
def file(tiny_clip: Path, tmp_path: Path) -> Path:
    """A published checkpoint: NegCLIP's layout."""
    state = load_file(tiny_clip / "open_clip_model.safetensors")
    named = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"epoch": 3, "state_dict": named}, tmp_path / "negclip.pt")
    return tmp_path / "negclip.pt"


@pytest.fixture
def request_(file: Path) -> ImportRequest:
    return ImportRequest("Tiny-16-quickgelu", str(file), layout="negclip")


def test_open_clip_alone_loads_what_was_written_and_the_record_says_from_where(
    request_: ImportRequest, file: Path, tmp_path: Path
) -> None:
    import_model(request_, tmp_path / "negclip")
    name = f"local-dir:{tmp_path / 'negclip'}"
    model = open_clip.create_model(name)
    state = torch.load(file, weights_only=True)["state_dict"]
    assert all(torch.equal(state[f"module.{k}"], each) for k, each in model.state_dict().items())
    assert open_clip.get_model_config(name)["quick_gelu"]
    assert load(ModelSettings(name)).name == "negclip"
    found = read_record(tmp_path / "negclip")["imported"]
    assert found["sha256"] == {"weights": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert (found["source"], found["weights"]) == ("Tiny-16-quickgelu", str(file))
    assert found["layout"] == "negclip"
    assert found["versions"]["torch"] == torch.__version__.partition("+")[0]


def test_an_import_takes_the_place_of_another(request_: ImportRequest, tmp_path: Path) -> None:
    folder = tmp_path / "negclip"
    import_model(request_, folder)
    before = {path.name: file_hash(path) for path in folder.iterdir()}
    import_model(request_, folder)
    assert {path.name: file_hash(path) for path in folder.iterdir()} == before
    import_model(replace(request_, context_length=64), folder)
    assert load(folder).context_length == 64


def test_a_folder_of_something_else_stays(request_: ImportRequest, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("kept")
    for place in (tmp_path / "notes", tmp_path / "notes" / "a.txt"):
        with pytest.raises(SettingsError, match=r"^FOLDER: .* of no import; name a new one"):
            import_model(request_, place)
    assert (tmp_path / "notes" / "a.txt").read_text() == "kept"


KILLED = """
import os, signal
import open_clip
from compo_pipeline.models import importing
open_clip.add_model_config(architecture)
importing.load = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
request = importing.ImportRequest("Tiny-16", str(file), quick_gelu=False)
importing.import_model(request, folder)
"""


def test_a_killed_import_leaves_nothing_that_loads(
    tiny_clip: Path, file: Path, tmp_path: Path, imported: ForkServerContext
) -> None:
    """It is killed when all files are written, before they are verified."""
    config = json.loads((tiny_clip / "open_clip_config.json").read_text())["model_cfg"]
    architecture, folder = tmp_path / "Tiny-16.json", tmp_path / "new" / "model"
    architecture.write_text(json.dumps(config))
    given = {"architecture": architecture, "file": file, "folder": folder}
    process = imported.Process(target=exec, args=(KILLED, given))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not folder.exists()
    import_model(ImportRequest("Tiny-16", str(file), quick_gelu=False), folder)
    assert [each.name for each in folder.parent.iterdir()] == ["model"], "leftovers are removed"


def test_a_model_that_was_written_otherwise_is_refused(
    request_: ImportRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(state: Any, path: Path, header: Any) -> None:
        save_file({**state, "visual.proj": state["visual.proj"] + 1e-6}, path, header)

    monkeypatch.setattr("compo_pipeline.models.weights.write", spoilt)
    with pytest.raises(DamagedFileError, match="fingerprint"):
        import_model(request_, tmp_path / "negclip")
    assert not (tmp_path / "negclip").exists()


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (
            "Tiny-61",
            {"weights": "a.pt"},
            "SOURCE: 'Tiny-61' is no folder .*mean 'Tiny-16'",
        ),
        ("Tiny-16", {}, "--weights: expected a file or a tag of Tiny-16, .* got none"),
        ("Tiny-16", {"weights": "x"}, "--weights: 'x' is no tag of Tiny-16 and no file"),
        ("Tiny-16", {"seed": 1, "mixed_with": "openai"}, "--mixed-with: expected --layout .*clove"),
        ("{folder}", {"layout": "dac"}, "--layout: expected an architecture of open_clip"),
        ("{folder}", {"context_length": 64}, "--context-length: .* states it; leave the option"),
        ("{empty}", {}, r"no open_clip_config\.json in "),
    ],
)
def test_what_cannot_be_imported_is_told_by_option(
    tiny_clip: Path, file: Path, tmp_path: Path, source: str, options: dict[str, Any], told: str
) -> None:
    (tmp_path / "empty").mkdir()
    source = source.format(file=file, folder=tiny_clip, empty=tmp_path / "empty")
    with pytest.raises(SettingsError, match=told) as refusal:
        import_model(ImportRequest(source, **options), tmp_path / "new")
    assert "\n" not in refusal.value.message and "model.name" not in refusal.value.message
    assert not (tmp_path / "new").exists()


def test_a_repository_of_transformers_is_imported(
    tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose weights are fetched where it has no configuration of open_clip alone."""
    from compo_pipeline.models.hf_export import to_hugging_face

    pytest.importorskip("transformers")
    whole = to_hugging_face(tiny_clip, tmp_path / "hf")
    described = tmp_path / "described"
    shutil.copytree(whole, described, ignore=shutil.ignore_patterns("*.safetensors"))

    def cached(repository: str, allow_patterns: list[str], **given: object) -> str:
        return str(whole if "model.safetensors" in allow_patterns else described)

    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    with pytest.raises(SettingsError, match=r"has no weights that are fetched.*import-model"):
        load(ModelSettings("hf-hub:someone/model"))
    import_model(ImportRequest("hf-hub:someone/model"), tmp_path / "new")
    found, expected = (load(each).model.state_dict() for each in (tmp_path / "new", tiny_clip))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.fixture
def command(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    run = CliRunner().invoke
    return lambda *arguments: run(KedroCLI(workspace), ["import-model", *map(str, arguments)])


def test_the_command_prints_the_lines_that_use_the_folder(
    command: Callable[..., Result], file: Path
) -> None:
    arguments = ("Tiny-16-quickgelu", "models/neg clip", "--weights", file, "--layout", "negclip")
    done = command(*arguments)
    assert done.exit_code == 0, done.output
    assert "Written: models/neg clip. Read again, it is the source" in done.stderr
    values = yaml.safe_load(done.stdout)["model"]
    assert values == {"name": "local-dir:models/neg clip", "pretrained": None}
    assert load(parse(ModelSettings, values, "model")).quick_gelu


def test_a_tokenizer_of_ones_own_travels_with_the_export(
    tiny_siglip: Path,
    siglip_tokenizer: Path,
    tmp_path: Path,
    imported_model: Callable[..., LoadedModel],
) -> None:
    """The model's folder came without tokenizer."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        shutil.copy(tiny_siglip / name, folder)
    shutil.copytree(siglip_tokenizer, tmp_path / "tokenizer")
    loaded = imported_model(folder, tokenizer=str(tmp_path / "tokenizer"))
    assert torch.equal(loaded.tokenize(TEXTS), load(tiny_siglip).tokenize(TEXTS))

    again = export(loaded, tmp_path / "export")
    shutil.rmtree(tmp_path / "tokenizer")

    assert torch.equal(load(again).tokenize(TEXTS), loaded.tokenize(TEXTS))
    assert load(again).config == loaded.config
