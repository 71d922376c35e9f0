"""The part `language` of the pipeline `shipped` as Kedro runs it, on a tiny treebank."""

from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog, DatasetError, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset
from spacy.util import load_config
from thinc.api import Config

from compo_pipeline.core.files import causes
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.language.parsing import load
from compo_scenes.language_model import compo_en
from compo_scenes.pipelines.shipped import create_pipeline
from compo_scenes.settings import LanguageModelSettings

PARSER = create_pipeline().filter(node_namespaces=["language"])
SENTENCE = """\
# sent_id = {number}
# text = The dog eats {number} cakes
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tdog\tdog\tNOUN\tNN\t_\t3\tnsubj\t_\t_
3\teats\teat\tVERB\tVBZ\t_\t0\troot\t_\t_
4\t{number}\t{number}\tNUM\tCD\t_\t5\tnummod\t_\t_
5\tcakes\tcake\tNOUN\tNNS\t_\t3\tobj\t_\t_

"""


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("treebank")
    for split in ("train", "dev", "test"):
        text = "".join(SENTENCE.format(number=number) for number in range(40))
        (folder / f"en_x-ud-{split}.conllu").write_text(text, encoding="utf-8")
    return folder


def catalog(root: Path, folder: Path) -> DataCatalog:
    """The pipeline's datasets, everything under one folder."""
    parameters: dict[str, Any] = {
        "params:language_model.treebank": str(root),
        "params:language_model": LanguageModelSettings(),
    }
    return DataCatalog(
        {
            **{name: MemoryDataset(value) for name, value in parameters.items()},
            "treebank": FolderDataset(filepath=str(folder / "treebank")),
            "language_networks": FolderDataset(filepath=str(folder / "trained")),
            "language_pipeline": FolderDataset(filepath=str(folder / "pipeline")),
            "language_accuracy": JSONDataset(filepath=str(folder / "accuracy.json")),
        }
    )


@pytest.mark.slow
def test_a_treebank_becomes_a_pipeline_with_its_accuracy(
    treebank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, overrides: dict[str, Any]) -> Config:
        short = {"training.max_steps": 2, "training.eval_frequency": 1}
        return load_config(path, {**overrides, **short})

    monkeypatch.setattr(compo_en, "load_config", read)
    datasets = catalog(treebank, tmp_path)
    SequentialRunner().run(PARSER, datasets)
    nlp = load(str(tmp_path / "pipeline"))
    assert nlp.pipe_names[-3:] == ["lexicon", "neighbours", "parser"]
    assert nlp.meta["license"] == "CC BY-SA 4.0"
    assert str(tmp_path) not in (tmp_path / "pipeline/config.cfg").read_text(encoding="utf-8")
    figures = datasets["language_accuracy"].load()
    assert set(figures["treebank"]) == {"upos", "xpos", "uas", "las"}
    assert set(figures["captions"]) > {"upos", "noun_phrase_f1"}


def test_without_a_treebank_the_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        SequentialRunner().run(PARSER, catalog(tmp_path / "absent", tmp_path))
    (cause,) = (error for error in causes(caught.value) if isinstance(error, SettingsError))
    assert "language_model.treebank" in str(cause)
