"""AdaIN in VGG's features, with random weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images import style as vgg


@pytest.fixture(scope="module", autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_layers_stand_where_files_of_the_paper_have_them() -> None:
    shapes = {name: tuple(one.shape) for name, one in vgg.encoder().state_dict().items()}
    convolutions = {
        int(name.split(".")[0]): shape for name, shape in shapes.items() if len(shape) == 4
    }
    assert [*convolutions] == [0, 2, 5, 9, 12, 16, 19, 22, 25, 29]
    assert convolutions[0] == (3, 3, 1, 1) and convolutions[29] == (512, 256, 3, 3)
    back = [name for name in vgg.decoder().state_dict() if name.endswith("weight")]
    assert back == [f"{at}.weight" for at in (1, 5, 8, 11, 14, 18, 21, 25, 28)]


def test_statistics_of_features_move_by_weight() -> None:
    encode, decode = vgg.encoder(), torch.nn.Identity()
    content, style = torch.rand(2, 3, 32, 32), 0.2 * torch.rand(2, 3, 48, 24)
    with torch.no_grad():
        plain, wanted = encode(content), encode(style)
        styled = vgg.restyled(content, style, 1.0, encode, decode)
        half = vgg.restyled(content, style, 0.5, encode, decode)
    varied = plain.flatten(2).std(-1) > 1e-6
    mean, spread = (getattr(styled.flatten(2), name)(-1) for name in ("mean", "std"))
    torch.testing.assert_close(mean[varied], wanted.mean((2, 3))[varied], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(mean[varied], plain.mean((2, 3))[varied], atol=1e-4)
    assert spread.isfinite().all()
    torch.testing.assert_close(half, (plain + styled) / 2)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_file_with_deeper_layers_is_read(tmp_path: Path, suffix: str) -> None:
    source = vgg.encoder().state_dict()
    file = tmp_path / f"vgg{suffix}"
    state = source | {"32.weight": torch.zeros(2)}
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    loaded = vgg.load(vgg.encoder(), file, "key").state_dict()
    assert all(torch.equal(loaded[name], source[name]) for name in source)


def test_files_that_do_not_fit_are_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="^a.key: there is no file"):
        vgg.load(vgg.encoder(), tmp_path / "none.pth", "a.key")
    for name, content in (("text.pth", b"text"), ("text.safetensors", b"text")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SettingsError, match=r"^a.key: expected the state dict of 31 layers"):
            vgg.load(vgg.encoder(), tmp_path / name, "a.key")
    save_file(vgg.decoder().state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(SettingsError, match="^a.key: expected"):
        vgg.load(vgg.encoder(), tmp_path / "other.safetensors", "a.key")


class Runs:
    """Pickled, it would write a file when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save({"0.weight": Runs(tmp_path / "ran")}, tmp_path / "bad.pth")
    with pytest.raises(SettingsError, match="^a.key: expected"):
        vgg.load(vgg.encoder(), tmp_path / "bad.pth", "a.key")
    assert not (tmp_path / "ran").exists()
