"""What is missing outside the project is reported before the first node, all of it at once."""

import csv
import inspect
import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from kedro.framework.project import pipelines
from kedro.io import DataCatalog
from pydantic import TypeAdapter, ValidationError

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.remote import refresh_all
from compo_pipeline.core.settings import SettingsError, field_names
from compo_pipeline.project.problems import MissingInput, check_inputs, check_resources
from compo_pipeline.project.settings import (
    Parameters,
    RunSettings,
    check_settings,
    read_parameters,
    settings_of,
)

Problems = Callable[..., list[str]]
BOTH_TOWERS = {"clic": {"objective": {"trains": ["image", "text"]}}}
Context = Callable[..., Any]


def changed(parameters: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of parameters in which some are changed, and their siblings are not."""

    def merge(into: dict[str, Any], given: dict[str, Any]) -> None:
        for key, value in given.items():
            if isinstance(value, dict):
                merge(into.setdefault(key, {}), value)
            else:
                into[key] = value

    copy = deepcopy({name: parameters[name] for name in field_names(Parameters)})
    merge(copy, changes)
    return copy


def read(parameters: dict[str, Any], changes: dict[str, Any]) -> RunSettings:
    """The settings of a run with such changes."""
    return settings_of(changed(parameters, changes), CommandOptions())


@pytest.mark.parametrize(
    ("pipeline", "params", "expected"),
    [
        ("train_eval", {"training": {"precision": "fp16"}}, "training.precision: 'fp16' is not"),
        ("tuning", {"training": {"device": "cuda:99"}}, "training.device: 'cuda:99' cannot"),
        (
            "train_eval",
            {"clic": {"objective": {"positivs": 3}}},
            "clic.objective.positivs: unknown key; did you mean 'positives'?",
        ),
        (
            "ingest",
            {"recaption": {"captioner": "transformers", "transformers": {"foldr": "f"}}},
            "recaption.transformers.folder: ",
        ),
    ],
)
def test_settings_of_later_nodes_are_refused_first(
    context: Context, pipeline: str, params: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}") as caught:
        check_settings(read(context().params, params), pipelines[pipeline])
    assert "Value error" not in caught.value.message


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"registration": {"alias": "champion"}}, "registration.alias: 'champion'"),
        (
            {"counterfactuals": {"caption_editor": "rules"}},
            "counterfactuals.image_generator: scenes shows what",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_every_pipeline(
    context: Context, params: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}") as caught:
        read(context().params, params)
    assert "Value error" not in caught.value.message


def test_the_projects_own_settings_pass(context: Context) -> None:
    settings = context().settings
    assert len(pipelines) > 12
    for name in pipelines:
        check_settings(settings, pipelines[name])


def test_every_node_gets_parameters_of_the_types_that_it_declares(context: Context) -> None:
    settings = context("relations_scenes").settings

    def part(whole: Any, name: str) -> Any:
        return whole[name] if isinstance(whole, dict) else getattr(whole, name)

    declared = {}
    for each in {one for name in pipelines for one in pipelines[name].nodes}:
        hints = get_type_hints(each.func)
        for name, given in inspect.signature(each.func).bind(*each.inputs).arguments.items():
            if given.startswith("params:"):
                declared[f"{each.name} {name}"] = hints[name], given.removeprefix("params:")
    wrong = []
    for place, (kind, key) in declared.items():
        value = reduce(part, key.split("."), settings)
        own: Any = None if is_dataclass(kind) else {"arbitrary_types_allowed": True}
        try:
            TypeAdapter(kind, config=own).validate_python(value, strict=True)
        except ValidationError:
            wrong += [] if value is None else [f"{place}: {value!r:.80}"]
    assert len(declared) > 150 and not wrong


def test_what_was_not_made_is_named_with_its_maker(
    context: Context, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    catalog = context(variant="nobody").catalog
    with pytest.raises(MissingInput) as caught:
        check_inputs(pipelines["registration"], catalog)
    place = "data/06_models/scenes/clic/nobody/seed=0/checkpoint"
    assert (
        f"  checkpoint: {place}, written by `kedro run --pipeline=training`\n"
        in caught.value.message
    )
    check_inputs(pipelines["train_eval"], catalog)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "caption"], ["a.jpg", "A dog on a sofa."]])
    (folder / "a.jpg").touch()
    return folder


@pytest.fixture
def problems(
    context: Context, photos: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Problems:
    """Lines of the refusal of a run on the photos, with some parameters of conf/table changed."""
    monkeypatch.chdir(project)

    def found(
        pipeline: str = "train_eval", catalog: DataCatalog | None = None, **changes: Any
    ) -> list[str]:
        sane = {"data": {"root": str(photos)}, "model": {"name": "scenes-base"}}
        given = read(changed(context("table").params, sane), changes)
        try:
            check_resources(given, pipelines[pipeline], catalog or DataCatalog())
        except SettingsError as error:
            return error.message.splitlines()
        return []

    return found


def test_a_folder_of_photos_and_a_table_is_enough(problems: Problems) -> None:
    assert problems() == []


def test_several_sources_are_each_looked_at(problems: Problems, photos: Path) -> None:
    """Of two sources, each fault with the key of its source."""
    root = str(photos.parent)
    own = {"train": "captions.csv", "test": "held.csv"}
    (photos / "held.csv").write_text("image,caption\na.jpg,A dog.\n")

    def told(other: dict[str, Any], **sources: dict[str, Any]) -> list[str]:
        first = {"photos": {"splits": own}}
        both = {**first, "web": {"root": "photos", "splits": own, **other}, **sources}
        return problems(
            data={"root": root, "sources": both},
            foils={"splits": {"val": None}},
            tuning={"benchmarks": {"foils": {"split": None}}},
        )

    assert told({}) == []
    (line,) = told({"splits": {"test": "held.csv"}})
    assert line.startswith("data.sources.web.splits: no row of test trains; expected train (vi")
    (line,) = told({}, gone={})
    assert line.startswith(f"data.sources.gone.root: there is no folder '{root}/gone'")
    (line,) = told({"format": "tabel"})
    assert line.startswith("data.sources.web.format: unknown format 'tabel'; did you mean 'table'")


def test_everything_that_is_wrong_is_told_at_once(problems: Problems, tmp_path: Path) -> None:
    root, split, language, model = problems(
        data={"root": str(tmp_path / "nowhere")},
        benchmarks={"retrieval": {"split": "tset"}},
        language={"model": "no_such_pipeline"},
        model={"name": "ViT-B-23", "pretrained": None},
    )
    assert root.startswith("data.root: there is no folder ")
    assert split.startswith("benchmarks.retrieval.split: 'tset' is no split")
    assert "train, val, test" in split
    assert language.startswith("language.model: cannot load 'no_such_pipeline'")
    assert model.startswith("model.name: 'ViT-B-23' is unknown; did you mean 'ViT-B-32'?")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data": {"splits": {"train": "captoins.csv"}}}, "data.splits.train: no file below "),
        ({"views": {"split": "training"}}, "views.split: 'training' is no split"),
        (
            {"benchmarks": {"retrieval": {"split": None}, "foils": {"split": None}}},
            "benchmarks: nothing is scored",
        ),
        (
            {"training": {"validation": {"every": 5, "split": "train"}}},
            "training.validation.split: expected a split of its own, got 'train'",
        ),
        (
            {"training": {"batch_size": 16, "distributed": {"nproc_per_node": 3}}},
            "training.distributed: 3 processes cannot share a batch of 16 rows",
        ),
    ],
)
def test_a_mistake_is_named_by_its_key(
    problems: Problems, changes: dict[str, Any], expected: str
) -> None:
    found = problems(**changes)
    assert found and all(expected in line for line in found)


RANDOM_RESNET = {"name": "RN50", "pretrained": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"model": RANDOM_RESNET, "method": "fsc_clip"},
            [
                "model.name: 'RN50' gives no features of patches",
                "its image tower is a ModifiedResNet; set model.name to ",
                "or set fsc_clip.objective.weights.local_hn to 0 (method: fsc_clip)",
            ],
        ),
        (
            {"model": {"name": "SIGLIP"}, "method": "fsc_clip"},
            ["its text tower pools by 'last'", "fsc_clip.objective.weights.local_hn to 0"],
        ),
        (
            {"training": {"frozen": ["token_embeding"]}},
            ["training.frozen: ", "'token_embeding'; did you mean 'token_embedding'?"],
        ),
        (
            {"model": RANDOM_RESNET, "training": {"lora": {"rank": 4}}, **BOTH_TOWERS},
            ["LoRA does not fit 'RN50'", "set training.lora.rank to null"],
        ),
        (
            {"training": {"validation": {"every": 5, "figure": "retrieval/i2t_r1/rwa"}}},
            ["training.validation.figure: 'retrieval/i2t_r1/rwa'", "mean 'retrieval/i2t_r1/raw'?"],
        ),
    ],
)
def test_what_method_and_recipe_ask_of_the_base_is_told_before_the_first_node(
    problems: Problems, tiny_siglip: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    given = deepcopy(changes)
    if given.get("model", {}).get("name") == "SIGLIP":
        given["model"]["name"] = f"local-dir:{tiny_siglip}"
    (line,) = problems(**given)
    assert line.startswith(("model.name: ", "training."))
    assert all(part in line for part in expected)
    # Nothing of it concerns what runs before the training.
    assert problems("views", **given) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fsc_clip", "fsc_clip": {"objective": {"weights": {"local_hn": 0.0}}}},
        {"method": "negclip"},
        {"training": {"microbatch": 4}},
    ],
)
def test_a_resnet_is_a_base_for_what_needs_no_patches(
    problems: Problems, changes: dict[str, Any]
) -> None:
    assert problems(model=RANDOM_RESNET, **changes) == []


@pytest.mark.parametrize("name", ["clic", "c2lip", "sparcl"])
def test_siglip_is_a_base_for_every_method_with_the_default_recipe(
    problems: Problems, tiny_siglip: Path, name: str
) -> None:
    """Which freezes the token embedding, and so does the demo's."""
    model, frozen = {"name": f"local-dir:{tiny_siglip}"}, {"frozen": ["token_embedding"]}
    edits = {"caption_editor": "rules", "image_generator": None}
    assert problems(model=model, method=name, training=frozen, counterfactuals=edits) == []


def test_a_base_that_cannot_be_stretched_is_named_by_its_key(
    problems: Problems, tiny_siglip: Path
) -> None:
    siglip = {"name": f"local-dir:{tiny_siglip}", "context_length": 248}
    (line,) = problems(model=siglip)
    assert line.startswith("model.context_length: 248 ") and "no_causal_mask" in line
    assert problems(model={"name": "scenes-base", "context_length": 248}) == []
    lines = problems("benchmark", models="mine", model_lists={"mine": {"a": siglip}})
    assert lines[-1].startswith("model_lists.mine.a.context_length: 248 ")


def test_images_of_a_benchmark_must_be_there(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "sugar_crepe").mkdir()
    item = {"filename": "1.jpg", "caption": "A dog.", "negative_caption": "A cat."}
    (tmp_path / "sugar_crepe" / "swap_obj.json").write_text(json.dumps({"0": item}))
    wanted = {"root": str(tmp_path), "sets": {"sugar_crepe_pp": None, "zero_shot": None}}
    (line,) = problems(benchmarks=wanted)
    assert line.startswith("benchmarks.images: none of the 1 images")
    (tmp_path / "1.jpg").touch()
    assert problems(benchmarks={**wanted, "images": str(tmp_path)}) == []


def test_scenes_that_the_run_renders_need_not_be_there(problems: Problems, tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    scenes = {
        "data": {"format": "scenes", "root": str(root)},
        "benchmarks": {"root": f"{root}/benchmarks/test", "sets": {"sugar_crepe": {}}},
    }
    assert problems(**scenes) == []
    lines = problems("evaluation", **scenes)
    assert [line.split(":")[0] for line in lines] == ["data.root", "benchmarks.root"]
    assert all("`kedro run --pipeline=train_eval`" in line for line in lines)


@pytest.mark.parametrize(
    ("method", "key"),
    [("c2lip", "layout: the method c2lip has no use"), ("sparcl", "file: the texts of sparcl are")],
)
def test_a_table_that_the_method_cannot_use_is_refused(
    problems: Problems, tmp_path: Path, method: str, key: str
) -> None:
    file = tmp_path / "train_neg_clip.tsv"
    file.write_text("title\tfilepath\tneg_caption\tneg_image\n")
    table = {"file": str(file), "layout": "neg_clip"}
    edits = {"caption_editor": "rules", "image_generator": None}
    given = {"views": {"from_table": table}, "counterfactuals": edits}
    (line,) = problems(method=method, **given)
    assert line.startswith(f"views.from_table.{key}")
    assert problems(method="negclip", **given) == []


def answers(folder: Path, state: str) -> None:
    """Stored answers of an endpoint, for the dataset `own` of a project in a folder."""
    file = folder / "data" / state / "endpoint.sqlite"
    file.parent.mkdir(parents=True)
    file.touch()


def test_the_api_key_is_there_before_the_first_request(
    problems: Problems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    edits = {
        "caption_editor": "endpoint",
        "image_generator": None,
        "endpoint": {"url": "http://host/v1", "model": "one", "key_variable": "NO_SUCH_KEY"},
    }
    wanted = {"method": "triplet_clip", "dataset": "own", "counterfactuals": edits}
    (line,) = problems(**wanted)
    assert line.startswith("counterfactuals.endpoint.key_variable: ")
    # Stored answers may be all that the run needs.
    answers(tmp_path, "04_feature/own/counterfactuals_state")
    assert problems(**wanted) == []


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (
            "counterfactuals.diffusion.model",
            {
                "method": "sparcl",
                "counterfactuals": {
                    "caption_editor": "rules",
                    "image_generator": "diffusion",
                    "diffusion": {"model": "no/such/folder"},
                },
            },
        ),
        (
            "views.from_table.file",
            {
                "method": "negclip",
                "views": {"from_table": {"file": "no/such/folder/t.tsv", "layout": "neg_clip"}},
            },
        ),
    ],
)
def test_folders_and_files_must_be_there(
    problems: Problems, key: str, changes: dict[str, Any]
) -> None:
    (line,) = problems(**changes)
    assert line.startswith(f"{key}: ") and "no/such/folder" in line


@pytest.mark.parametrize(
    ("pipeline", "changes", "expected"),
    [
        (
            "foils",
            {"foils": {"splits": {"val": "train"}}},
            "foils.splits.val: 'train' is the split that trains (views.split)",
        ),
        (
            "foils",
            {"foils": {"splits": {"val": "held_out"}}},
            "foils.splits.val: no row is of the split 'held_out'; set foils.carve",
        ),
        (
            "evaluation",
            {"benchmarks": {"foils": {"split": "dev"}}},
            "benchmarks.foils.split: no foils 'dev' are built; expected a name of foils.splits",
        ),
    ],
)
def test_what_a_later_pipeline_analyses_must_be_there(
    problems: Problems, pipeline: str, changes: dict[str, Any], expected: str
) -> None:
    (line,) = problems(pipeline, **changes)
    assert line.startswith(expected)


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """SugarCrepe in its official layout, with the image of its only item."""
    (tmp_path / "official" / "sugar_crepe").mkdir(parents=True)
    item = {"filename": "1.jpg", "caption": "A dog.", "negative_caption": "A cat."}
    file = tmp_path / "official" / "sugar_crepe" / "swap_obj.json"
    file.write_text(json.dumps({"0": item}))
    (tmp_path / "official" / "1.jpg").touch()
    return tmp_path / "official"


@pytest.mark.parametrize("pipeline", ["tuning", "train_eval"])
def test_official_test_items_select_nothing(
    problems: Problems, official: Path, pipeline: str
) -> None:
    """Items of one's own in the same format do, which `benchmarks.json` beside them says."""
    files = {"root": str(official), "images": str(official)}
    sets = {"sets": {"sugar_crepe_pp": None, "zero_shot": None}}
    validation = {"every": 5, "figure": "sugar_crepe/accuracy/swap_obj"}
    changes: dict[str, Any] = {"tuning": {"benchmarks": {**files, **sets}}}
    if pipeline == "train_eval":
        changes["training"] = {"validation": validation}
    (line,) = problems(pipeline, **changes)
    told = f"tuning.benchmarks: the files of sugar_crepe below {official} are official test"
    assert line.startswith(told)
    titles = {"source": "made here", "titles": {"sugar_crepe": "SugarCrepe-style"}}
    (official / "benchmarks.json").write_text(json.dumps(titles))
    assert problems(pipeline, **changes) == []


def test_a_folder_of_an_official_benchmark_by_itself_selects_nothing(
    problems: Problems, official: Path
) -> None:
    """Whatever is beside it: such a folder may be anywhere."""
    titles = {"source": "made here", "titles": {"sugar_crepe": "SugarCrepe-style"}}
    (official / "benchmarks.json").write_text(json.dumps(titles))
    own = {"root": str(official / "sugar_crepe"), "images": str(official)}
    sets = {"sugar_crepe": own, "sugar_crepe_pp": None, "zero_shot": None}
    for root in (None, str(official)):
        (line,) = problems("tuning", tuning={"benchmarks": {"root": root, "sets": sets}})
        assert line.startswith("tuning.benchmarks: the files of sugar_crepe")


@pytest.mark.parametrize(
    ("pipeline", "changes", "expected"),
    [
        (
            "tuning",
            {"tuning": {"benchmarks": {"retrieval": {"split": "train"}}}},
            "tuning.benchmarks.retrieval.split: the split 'train' trains",
        ),
        (
            "train_eval",
            {
                "training": {"validation": {"every": 5, "figure": "foils/accuracy/average"}},
                "foils": {"splits": {"val": "test", "test": "test", "dev": "val"}},
                "benchmarks": {"foils": {"split": "val"}},
            },
            "training.validation.split: expected a split of its own, got 'val', which is reported",
        ),
    ],
)
def test_what_selects_neither_trains_nor_is_reported(
    problems: Problems, pipeline: str, changes: dict[str, Any], expected: str
) -> None:
    assert any(line.startswith(expected) for line in problems(pipeline, **changes))
    assert problems(pipeline) == []


def test_a_folder_of_a_language_pipeline_is_looked_at(problems: Problems, tmp_path: Path) -> None:
    folder = tmp_path / "spacy"
    folder.mkdir()
    (line,) = problems(language={"model": str(folder)})
    assert line.startswith("language.model: ") and "config.cfg" in line
    (folder / "config.cfg").write_text('[components]\n[components.own]\nfactory = "own"\n')
    (line,) = problems(language={"model": str(folder)})
    assert line.startswith("language.model: ") and "components.own" in line


def test_a_missing_key_is_named_first(problems: Problems) -> None:
    signing = {"public_key": "missing.pub", "private_key": "missing.pem"}
    lines = problems("promotion", registration={"signing": signing})
    assert lines[0].startswith("registration.signing.") and "missing.p" in lines[0]


def test_rolling_back_needs_no_data(problems: Problems) -> None:
    gone = {"data": {"root": "/nowhere"}, "benchmarks": {"root": "/nowhere"}}
    assert problems("promotion", promotion={"rollback": True}, **gone) == []


def test_object_storage_is_reached_before_the_first_node(context: Context, bucket: Any) -> None:
    parameters = context(data={"root": "s3://no-such-bucket/scenes"}).params
    assert parameters["data"]["root"] == "data/remote/s3:/no-such-bucket/scenes"
    assert parameters["benchmarks"]["root"].startswith(parameters["data"]["root"])
    for pipeline in ("ingest", "train_eval"):  # the second one reads benchmarks below the data too
        with pytest.raises(SettingsError, match=r"^data\.root: s3://no-such-bucket/scenes: "):
            refresh_all(parameters, read_parameters(pipelines[pipeline]))


@pytest.mark.parametrize(
    ("scored", "expected"),
    [
        ({"retrieval": {"split": "val"}}, "benchmarks.retrieval.split: 'val' is that of tuning"),
        ({"foils": {"split": "val"}}, "benchmarks.foils.split: 'val' is that of tuning"),
        (
            {"sets": {"sugar_crepe": {"root": "made/test/../val/sugar_crepe"}}},
            "benchmarks.sets.sugar_crepe: ",
        ),
    ],
)
def test_no_version_is_judged_by_items_that_select(
    problems: Problems, scored: dict[str, Any], expected: str
) -> None:
    def found(pipeline: str, scored: dict[str, Any] = scored, **settings: Any) -> list[str]:
        tuning = {"benchmarks": {"root": "made/val", "foils": {"split": "val"}}}
        lines = problems(pipeline, benchmarks=scored, tuning=tuning, **settings)
        return [line for line in lines if line.startswith(expected) and "select" in line]

    for pipeline in ("train_eval", "rescore"):
        assert found(pipeline), pipeline
    assert not found("evaluation")
    assert not found("registration")  # it registers what an earlier evaluation has scored
    assert not found("train_eval", registration={"alias": None})
    assert found("rescore", registration={"alias": None, "rescore": "champion"})
    assert not found("train_eval", scored={"root": "made/test"})
