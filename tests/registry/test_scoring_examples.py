"""The scoring example of every document gives what the served model gives."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from mlflow.pyfunc.model import PythonModelContext
from PIL import Image

from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.registry.model import ImageTextModel
from compo_pipeline.registry.registration import write_card
from compo_pipeline.registry.settings import RegistrationSettings
from compo_scenes import scenes_base

PROJECT = Path(__file__).parents[2]
# Its image tower drops paths and normalises over batches: in training mode it scores otherwise.
BASE = scenes_base()
DOCUMENTS = (PROJECT / "docs/how-to/export.md", BASE / "README.md")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.png"
    Image.radial_gradient("L").resize((90, 70)).convert("RGB").save(path)
    return path


@pytest.fixture(scope="module")
def served(image: Path) -> Callable[[list[str]], list[float]]:
    """What the served model answers about the image and captions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPO_CLIP_IMAGE_ROOT", str(image.parent))
        model = ImageTextModel()
        context = PythonModelContext(artifacts={"model": str(BASE)}, model_config={})
        model.load_context(context)

    def similarities(captions: list[str]) -> list[float]:
        table = pd.DataFrame({"image": [image.name]})
        return cast(
            "list[float]", model.predict(context, table, {"texts": captions})["similarities"][0]
        )

    return similarities


@pytest.fixture
def documents(comparison: Comparison, tmp_path: Path) -> list[str]:
    """The pages, and a card."""
    (tmp_path / "compo.json").write_text(
        '{"name": "scenes-base", "method": "clic", "variant": "default", "seed": 0, '
        '"precision": "fp32", "checkpoint_sha256": "c"}'
    )
    manifest = {"data_hash": "d", "count": 1}
    card = write_card(tmp_path, RegistrationSettings(), manifest, (), comparison, "run")
    return [path.read_text(encoding="utf-8") for path in (*DOCUMENTS, card)]


def example(document: str, image: Path) -> str:
    """The code of the document's example, of the base and an image."""
    blocks = re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)
    (code,) = [block for block in blocks if "open_clip.create_model" in block]
    for pattern, place in ((r'"local-dir:[^"]*"', f"local-dir:{BASE}"),
                           (r'(?<=Image\.open\()"[^"]*"', str(image))):  # fmt: skip
        code, replaced = re.subn(pattern, lambda _, place=place: repr(place), code)
        assert replaced == 1
    return code


def test_the_examples_score_as_the_served_model(
    documents: list[str], image: Path, served: Callable[[list[str]], list[float]]
) -> None:
    for code in {example(document, image) for document in documents}:
        names: dict[str, Any] = {}
        exec(code, names)
        assert len(names["captions"]) == 2
        assert names["cosines"] == pytest.approx(served(names["captions"]), abs=1e-5)
