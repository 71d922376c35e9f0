"""Examples are items of the benchmarks with images that can be shown."""

import json
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.evaluation.settings import BenchmarksSettings
from compo_pipeline.ui.examples import Example, draw


@pytest.fixture
def benchmarks(tmp_path: Path) -> BenchmarksSettings:
    """Two subtasks of three items each; of the second no image can be read."""
    images = tmp_path / "images"
    images.mkdir()
    for name in ("swap_obj", "swap_att"):
        items = {}
        for number in range(3):
            file = f"{name}{number}.png"
            items[str(number)] = {
                "filename": file,
                "caption": f"right {file}",
                "negative_caption": f"wrong {file}",
            }
            if name == "swap_obj":
                Image.new("RGB", (8, 8)).save(images / file)
            else:
                (images / file).write_text("broken")
        (tmp_path / "sugar_crepe").mkdir(exist_ok=True)
        (tmp_path / "sugar_crepe" / f"{name}.json").write_text(json.dumps(items))
    return BenchmarksSettings(str(tmp_path), str(images), sugar_crepe_pp=False)


def test_an_example_of_each_subtask_that_has_one(benchmarks: BenchmarksSettings) -> None:
    (example,) = draw(benchmarks, 6)
    file = example.image.name
    assert example == Example(Path(benchmarks.images) / file, (f"right {file}", f"wrong {file}"))
    assert draw(benchmarks, 0) == []
    drawn = {draw(benchmarks, 6, seed)[0].image.name for seed in range(10)}
    assert len(drawn) == 3


def test_without_files_there_are_no_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert draw(BenchmarksSettings(str(tmp_path), str(tmp_path)), 6) == []
    assert "no examples: benchmarks.sugar_crepe is on" in caplog.text
