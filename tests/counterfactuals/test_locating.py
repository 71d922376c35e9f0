"""Models in folders, in the hub's cache and on the hub."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.locating import locate

KEY = "counterfactuals.diffusion.model"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What is asked of a hub that cannot be reached."""
    asked: list[dict[str, object]] = []

    def unreachable(*args: object, **how: object) -> None:
        asked.append(how)
        raise OSError("no route\nadvice")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    return asked


def test_a_folder_is_never_asked_for(tmp_path: Path, fetched: list[object]) -> None:
    assert locate(str(tmp_path), KEY) == tmp_path
    for name in ("no/such/folder", "nothing", "/no/such"):
        with pytest.raises(SettingsError, match=f"^{KEY}: '{name}' is no folder"):
            locate(name, KEY)
    assert fetched == []


def test_without_a_network_the_key_is_told(
    fetched: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compo_pipeline.models.hub.cached", lambda *_: None)
    with pytest.raises(
        SettingsError, match=f"^{KEY}: there is no folder 'owner/model'.*no route"
    ) as told:
        locate("owner/model", KEY)
    assert "advice" not in str(told.value) and len(fetched) == 1


def test_what_is_in_the_cache_is_taken_whole_or_fetched_again(
    tiny_diffusion: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny_diffusion()
    half = shutil.copytree(whole, tmp_path / "half")
    (half / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    fetched = []

    def download(name: str, allow_patterns: list[str]) -> str:
        fetched.append((name, allow_patterns))
        return str(whole)

    monkeypatch.setattr("compo_pipeline.models.hub.ask", lambda name: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("compo_pipeline.models.hub.cached", lambda *_: whole)
    assert locate("owner/model", KEY) == whole and fetched == []
    monkeypatch.setattr("compo_pipeline.models.hub.cached", lambda *_: half)
    assert locate("owner/model", KEY) == whole
    ((name, patterns),) = fetched
    assert name == "owner/model"
    assert not any(pattern.endswith((".py", ".bin", "*.safetensors")) for pattern in patterns)
