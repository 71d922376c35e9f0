"""What the page of architecture says of packages and additions holds: its examples are executed."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BENCHMARKS, BenchmarksSettings
from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import parse
from compo_pipeline.data import readers
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.methods import registry
from compo_pipeline.methods.contract import Example, ViewContext


@pytest.fixture(scope="module")
def text(project: Path) -> str:
    return (project / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture
def example(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ModuleType]:
    """Imports the Python example below a heading as a module of a temporary package."""
    package = tmp_path / "additions"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def load(heading: str, page: str = text) -> ModuleType:
        section = re.split(rf"^##? {heading}$", page, flags=re.MULTILINE)[1]
        (code,) = re.findall(r"^```python\n(.*?)^```$", section.split("\n## ")[0], re.M | re.S)
        name = heading.split()[-1]
        (package / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        return importlib.import_module(f"additions.{name}")

    return load


def test_a_reader(
    example: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(readers.READERS, "karpathy", example("Adding a reader"))
    images = [
        {"filename": "1.jpg", "split": "train", "sentences": [{"raw": "A dog."}, {"raw": "Dog"}]},
        {"filename": "2.jpg", "split": "val", "sentences": [{"raw": "A cat."}]},
    ]
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    values = {"root": tmp_path, "format": "karpathy", "splits": {"train": "train"}, "images": "all"}
    data = parse(DataSettings, values, "data")
    rows = list(readers.read(data))
    assert [(row.image, row.own, row.further) for row in rows] == [
        ("all/1.jpg", ("A dog.",), ("Dog",)),
        ("all/1.jpg", ("Dog",), ("A dog.",)),
    ]


def test_a_benchmark(
    example: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = example("Adding a benchmark").BENCHMARK
    monkeypatch.setitem(BENCHMARKS, "foils", added)

    (tmp_path / "foils").mkdir()
    item = {"image_file": "1.jpg", "caption": "Two dogs.", "foil": "Three dogs."}
    (tmp_path / "foils" / "counting.json").write_text(json.dumps({"a": item}))
    values = {"root": str(tmp_path), "sets": {"foils": {}}}
    chosen = parse(BenchmarksSettings, values, "benchmarks")
    (task,) = from_files(chosen)
    assert (task.benchmark, task.name) == ("foils", "counting")
    assert (task.items[0].positives, task.items[0].negatives) == (("Two dogs.",), ("Three dogs.",))


def test_the_method_of_a_new_project_is_the_tutorial_s(project: Path) -> None:
    text = (project / "docs" / "tutorials" / "own-method.md").read_text(encoding="utf-8")
    template = project / "src" / "compo_pipeline" / "resources" / "project" / "cyclip.py"
    assert f"```python\n{template.read_text()}```" in text


def test_a_method(
    project: Path, example: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    tutorial = (project / "docs" / "tutorials" / "own-method.md").read_text(encoding="utf-8")
    registry.register(example("A method of your own", tutorial).ENTRY)
    method = registry.build("cyclip", {}, {"in_modal": 0.5})
    row = Caption("s", "i", "i.png", 40, 30, ("A red cube.",), "test", "train")
    (view,) = method.views([row], ViewContext({}, "", 0, 0))
    read = SimpleNamespace(images=lambda paths: torch.eye(2)[:1], tokens=lambda texts: texts)
    batch, counts = method.collate([Example(row, view)], 0, read)
    assert batch.texts == ["a red cube."] and counts == {"rows": 1}

    images = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    texts = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    encoder = SimpleNamespace(images=lambda _: images, texts=lambda _: texts, scale=torch.ones(()))
    terms = method.loss(encoder, batch)
    # The first image and second text have similarity 1, the second and first .8, both texts .6.
    assert terms["cross_modal"].value.item() == pytest.approx(2 * 0.2**2 / 2)
    assert terms["in_modal"].value.item() == pytest.approx(2 * 0.6**2 / 2)
    assert [term.weight for term in terms.values()] == [1.0, 0.25, 0.5]
