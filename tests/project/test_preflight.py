"""What is missing outside the project is reported before the first node, all of it at once."""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from kedro.framework.project import pipelines
from pydantic import TypeAdapter, ValidationError

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.remote import refresh_all
from compo_pipeline.core.settings import SettingsError, parse, with_values
from compo_pipeline.project.problems import MissingInput, check_inputs, check_resources
from compo_pipeline.project.settings import Parameters, check_settings, completed, read_parameters

# The lines that refuse a pipeline, with other values at dotted keys.
Problems = Callable[..., list[str]]
Changes = dict[str, Any]
Context = Callable[..., Any]


def changed(parameters: dict[str, Any], changes: Changes) -> dict[str, Any]:
    return with_values({each.name: parameters[each.name] for each in fields(Parameters)}, changes)


def read(parameters: dict[str, Any], changes: Changes) -> Parameters:
    """The settings of a run with such changes."""
    return completed(parse(Parameters, changed(parameters, changes)))


@pytest.mark.parametrize(
    ("pipeline", "changes", "expected"),
    [
        ("train_eval", {"training.precision": "fp16"}, "training.precision: 'fp16' is not"),
        ("tuning", {"training.device": "cuda:99"}, "training.device: 'cuda:99' cannot"),
        (
            "ingest",
            {"recaption.captioner": "transformers", "recaption.transformers": {"foldr": "f"}},
            "recaption.transformers.folder: ",
        ),
    ],
)
def test_settings_of_later_nodes_are_refused_first(
    context: Context, pipeline: str, changes: Changes, expected: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}") as caught:
        check_settings(read(context().params, changes), pipelines[pipeline])
    assert "Value error" not in caught.value.message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"registration.alias": "champion"}, "registration.alias"),
        ({"counterfactuals.caption_editor": "rules"}, "counterfactuals.image_generator"),
    ],
)
def test_a_wrong_value_is_refused_in_every_pipeline(
    context: Context, changes: Changes, key: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(key)}: ") as caught:
        read(context().params, changes)
    assert "Value error" not in caught.value.message


def test_the_projects_own_settings_pass(context: Context) -> None:
    settings = context().settings
    assert len(pipelines) > 12
    for name in pipelines:
        check_settings(settings, pipelines[name])


def test_every_node_gets_parameters_of_the_types_that_it_declares(context: Context) -> None:
    settings = context("relations_scenes").objects

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
    told = f"  checkpoint: {place}, written by `kedro run --pipeline=training`\n"
    assert told in caught.value.message
    check_inputs(pipelines["train_eval"], catalog)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "captions.csv").write_text("image,caption\na.jpg,A dog on a sofa.\n")
    (folder / "a.jpg").touch()
    return folder


@pytest.fixture
def problems(
    context: Context, photos: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Problems:
    """Checks a run on the photos, with the parameters of conf/table."""
    monkeypatch.chdir(project)

    def found(changes: Changes, pipeline: str = "train_eval") -> list[str]:
        sane = {"data.root": str(photos), "model.name": "scenes-base"}
        given = read(context("table").params, sane | changes)
        try:
            check_resources(given, CommandOptions(), pipelines[pipeline])
        except SettingsError as error:
            return error.message.splitlines()
        return []

    return found


def test_a_folder_of_photos_and_a_table_is_enough(problems: Problems) -> None:
    assert problems({}) == []


FIGURE = {"training.validation.every": 5}
NO_IMAGES = {"counterfactuals.caption_editor": "rules", "counterfactuals.image_generator": None}
NO_TABLE = {"views.from_table": {"file": "no/such/folder/t.tsv", "layout": "neg_clip"}}
NO_MODEL = {
    **NO_IMAGES,
    "counterfactuals.image_generator": "diffusion",
    "counterfactuals.diffusion.model": "no/such/folder",
}
NO_SCORES = {"benchmarks.retrieval.split": None, "benchmarks.foils.split": None}
THREE = {"training.batch_size": 16, "training.distributed.nproc_per_node": 3}
REPORTED = {
    **FIGURE,
    "training.validation.figure": "foils/accuracy/average",
    "foils.splits": {"val": "test", "test": "test", "dev": "val"},
    "benchmarks.foils.split": "val",
}


@pytest.mark.parametrize(
    ("pipeline", "changes", "key"),
    [
        ("train_eval", {"data.splits.train": "captoins.csv"}, "data.splits.train"),
        ("train_eval", {"views.split": "training"}, "views.split"),
        ("train_eval", NO_SCORES, "benchmarks"),
        ("train_eval", THREE, "training.distributed"),
        ("train_eval", {"method": "sparcl", **NO_MODEL}, "counterfactuals.diffusion.model"),
        ("train_eval", {"method": "negclip", **NO_TABLE}, "views.from_table.file"),
        ("foils", {"foils.splits.val": "train"}, "foils.splits.val"),
        ("foils", {"foils.splits.val": "held_out"}, "foils.splits.val"),
        ("evaluation", {"benchmarks.foils.split": "dev"}, "benchmarks.foils.split"),
        # What selects neither trains nor is reported.
        (
            "train_eval",
            {**FIGURE, "training.validation.split": "train"},
            "training.validation.split",
        ),
        (
            "tuning",
            {"tuning.benchmarks.retrieval.split": "train"},
            "tuning.benchmarks.retrieval.split",
        ),
        ("train_eval", REPORTED, "training.validation.split"),
    ],
)
def test_a_mistake_is_named_by_its_key(
    problems: Problems, pipeline: str, changes: Changes, key: str
) -> None:
    found = problems(changes, pipeline)
    assert any(line.startswith(f"{key}: ") for line in found), found


def test_several_sources_are_each_looked_at(problems: Problems, photos: Path) -> None:
    """Of two sources, each fault with the key of its source."""
    root = str(photos.parent)
    own = {"train": "captions.csv", "test": "held.csv"}
    (photos / "held.csv").write_text("image,caption\na.jpg,A dog.\n")

    def told(other: dict[str, Any], **more: Any) -> list[str]:
        web = {"root": "photos", "splits": own, **other}
        sources = {"photos": {"splits": own}, "web": web, **more}
        unused = {"foils.splits.val": None, "tuning.benchmarks.foils.split": None}
        return problems({"data.root": root, "data.sources": sources, **unused})

    assert told({}) == []
    (line,) = told({"splits": {"test": "held.csv"}})
    assert line.startswith("data.sources.web.splits: no row of test trains; expected train (vi")
    for line, name in zip(told({}, gone={}, lost={}), ("gone", "lost"), strict=True):
        assert line.startswith(f"data.sources.{name}.root: there is no folder '{root}/{name}'")
    (line,) = told({"format": "tabel"})
    assert line.startswith("data.sources.web.format: unknown format 'tabel'; did you mean 'table'")


def test_everything_that_is_wrong_is_told_at_once(problems: Problems, tmp_path: Path) -> None:
    root, split, language, model = problems(
        {
            "data.root": str(tmp_path / "nowhere"),
            "benchmarks.retrieval.split": "tset",
            "language.model": "no_such_pipeline",
            "model": {"name": "ViT-B-23", "pretrained": None},
        }
    )
    assert root.startswith("data.root: there is no folder ")
    assert split.startswith("benchmarks.retrieval.split: 'tset' is no split")
    assert "train, val, test" in split
    assert language.startswith("language.model: cannot load 'no_such_pipeline'")
    assert model.startswith("model.name: 'ViT-B-23' is unknown; did you mean 'ViT-B-32'?")


RESNET = {"model": {"name": "RN50", "pretrained": None}}
BOTH_TOWERS = {"clic.objective.trains": ["image", "text"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {**RESNET, "method": "fsc_clip"},
            ["model.name: 'RN50' gives no features of patches", "weights.local_hn to 0"],
        ),
        ({"model": "SIGLIP", "method": "fsc_clip"}, ["pools by 'last'", "weights.local_hn to 0"]),
        (
            {"model": "SIGLIP", "method": "read_clip"},
            ["objective.read.decoder: the shipped decoder"],
        ),
        ({"training.frozen": ["token_embeding"]}, ["training.frozen: ", "mean 'token_embedding'?"]),
        (
            {**RESNET, "training.lora.rank": 4, **BOTH_TOWERS},
            ["LoRA does not fit 'RN50'", "set training.lora.rank to null"],
        ),
        (
            {**FIGURE, "training.validation.figure": "retrieval/i2t_r1/rwa"},
            ["training.validation.figure: ", "mean 'retrieval/i2t_r1/raw'?"],
        ),
    ],
)
def test_what_method_and_recipe_ask_of_the_base_is_told_before_the_first_node(
    problems: Problems, tiny_siglip: Path, changes: Changes, expected: list[str]
) -> None:
    siglip = {"model": {"name": f"local-dir:{tiny_siglip}"}}
    given = changes | siglip if changes.get("model") == "SIGLIP" else changes
    (line,) = problems(given)
    assert line.startswith(("model.name: ", "training.", "read_clip."))
    assert all(part in line for part in expected)
    # Nothing of it concerns what runs before the training.
    assert problems(given, "views") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fsc_clip", "fsc_clip.objective.weights.local_hn": 0.0},
        {"method": "negclip"},
        {"training.microbatch": 4},
        {"method": "read_clip", "read_clip.objective.read.reconstruction": 0.0},
    ],
)
def test_a_resnet_is_a_base_for_what_needs_no_patches(problems: Problems, changes: Changes) -> None:
    assert problems(RESNET | changes) == []


@pytest.mark.parametrize("name", ["clic", "c2lip", "sparcl"])
def test_siglip_is_a_base_for_every_method_with_the_default_recipe(
    problems: Problems, tiny_siglip: Path, name: str
) -> None:
    """Which freezes the token embedding, and so does the demo's."""
    base = {"model.name": f"local-dir:{tiny_siglip}", "training.frozen": ["token_embedding"]}
    assert problems({**base, **NO_IMAGES, "method": name}) == []


def test_a_base_that_cannot_be_stretched_is_named_by_its_key(
    problems: Problems, tiny_siglip: Path
) -> None:
    siglip = {"name": f"local-dir:{tiny_siglip}", "context_length": 248}
    (line,) = problems({"model": siglip})
    assert line.startswith("model.context_length: 248 ") and "no_causal_mask" in line
    assert problems({"model.context_length": 248}) == []
    lines = problems({"models": "mine", "model_lists.mine": {"a": siglip}}, "benchmark")
    assert lines[-1].startswith("model_lists.mine.a.context_length: 248 ")


def test_a_scorer_without_its_key_or_its_model_ends_a_run_before_it_starts(
    problems: Problems, tiny_siglip: Path
) -> None:
    server = {"url": "http://localhost/v1", "model": "m", "key_variable": "NO_SUCH_KEY"}
    models = {
        "chat": {"scorer": "vqascore", "endpoint": server},
        "BLIP": {"name": f"local-dir:{tiny_siglip}", "scorer": "matching"},
    }
    *_, chat, blip = problems({"models": "mine", "model_lists.mine": models}, "benchmark")
    assert chat.startswith("model_lists.mine.chat.endpoint.key_variable: ")
    assert "'NO_SUCH_KEY', which is not set" in chat
    assert blip.startswith("model_lists.mine.BLIP.name: ") and str(tiny_siglip) in blip


ONE_SET = {"benchmarks.sets.sugar_crepe_pp": None, "benchmarks.sets.zero_shot": None}


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """SugarCrepe in its official layout, without the image of its only item."""
    (tmp_path / "official" / "sugar_crepe").mkdir(parents=True)
    item = {"filename": "1.jpg", "caption": "A dog.", "negative_caption": "A cat."}
    file = tmp_path / "official" / "sugar_crepe" / "swap_obj.json"
    file.write_text(json.dumps({"0": item}))
    return tmp_path / "official"


def test_images_of_a_benchmark_must_be_there(problems: Problems, official: Path) -> None:
    wanted = {"benchmarks.root": str(official), **ONE_SET}
    (line,) = problems(wanted)
    assert line.startswith("benchmarks.images: none of the 1 images")
    (official / "1.jpg").touch()
    assert problems({**wanted, "benchmarks.images": str(official)}) == []


def test_scenes_that_the_run_renders_need_not_be_there(problems: Problems, tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    scenes = {
        "data.format": "scenes",
        "data.root": str(root),
        "benchmarks.root": f"{root}/benchmarks/test",
        "benchmarks.sets.sugar_crepe": {},
    }
    assert problems(scenes) == []
    lines = problems(scenes, "evaluation")
    assert [line.split(":")[0] for line in lines] == ["data.root", "benchmarks.root"]
    assert all("`kedro run --pipeline=train_eval`" in line for line in lines)


@pytest.mark.parametrize(("method", "key"), [("c2lip", "layout"), ("sparcl", "file")])
def test_a_table_that_the_method_cannot_use_is_refused(
    problems: Problems, tmp_path: Path, method: str, key: str
) -> None:
    file = tmp_path / "train_neg_clip.tsv"
    file.write_text("title\tfilepath\tneg_caption\tneg_image\n")
    given = {"views.from_table": {"file": str(file), "layout": "neg_clip"}, **NO_IMAGES}
    (line,) = problems({**given, "method": method})
    assert line.startswith(f"views.from_table.{key}: ")
    assert problems({**given, "method": "negclip"}) == []


def test_the_api_key_is_there_before_the_first_request(
    problems: Problems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    endpoint = {"url": "http://host/v1", "model": "one", "key_variable": "NO_SUCH_KEY"}
    wanted = {
        "method": "triplet_clip",
        "dataset": "own",
        **NO_IMAGES,
        "counterfactuals.caption_editor": "endpoint",
        "counterfactuals.endpoint": endpoint,
    }
    (line,) = problems(wanted)
    assert line.startswith("counterfactuals.endpoint.key_variable: ")
    (line,) = problems(
        {"recaption.captioner": "endpoint", "recaption.endpoint": endpoint}, "ingest"
    )
    assert line.startswith("recaption.endpoint.key_variable: ")
    # Stored answers may be all that the run needs.
    stored = tmp_path / "data/04_feature/own/counterfactuals_state/endpoint.sqlite"
    stored.parent.mkdir(parents=True)
    stored.touch()
    assert problems(wanted) == []


def test_an_editor_of_scenes_reads_scenes_alone(problems: Problems) -> None:
    given = {"method": "triplet_clip", **NO_IMAGES, "counterfactuals.caption_editor": "scenes"}
    (line,) = problems(given)
    assert line.startswith("counterfactuals.caption_editor: 'scenes' reads data of the format sc")


MADE_HERE = json.dumps({"source": "made here", "titles": {"sugar_crepe": "SugarCrepe-style"}})
TUNING_SET = {f"tuning.{key}": value for key, value in ONE_SET.items()}


@pytest.mark.parametrize("pipeline", ["tuning", "train_eval"])
def test_official_test_items_select_nothing(
    problems: Problems, official: Path, pipeline: str
) -> None:
    """Items of one's own in the same format do, which `benchmarks.json` beside them says."""
    (official / "1.jpg").touch()
    files = {"tuning.benchmarks.root": str(official), "tuning.benchmarks.images": str(official)}
    changes: Changes = {**files, **TUNING_SET}
    if pipeline == "train_eval":
        changes |= {**FIGURE, "training.validation.figure": "sugar_crepe/accuracy/swap_obj"}
    (line,) = problems(changes, pipeline)
    assert line.startswith(f"tuning.benchmarks: the files of sugar_crepe below {official} are")
    (official / "benchmarks.json").write_text(MADE_HERE)
    assert problems(changes, pipeline) == []


@pytest.mark.parametrize("root", ["official", None])
def test_a_folder_of_an_official_benchmark_by_itself_selects_nothing(
    problems: Problems, official: Path, root: str | None
) -> None:
    """Whatever is beside it: such a folder may be anywhere."""
    (official / "1.jpg").touch()
    (official / "benchmarks.json").write_text(MADE_HERE)
    own = {"root": str(official / "sugar_crepe"), "images": str(official)}
    changes = {**TUNING_SET, "tuning.benchmarks.sets.sugar_crepe": own}
    changes["tuning.benchmarks.root"] = root and str(official)
    (line,) = problems(changes, "tuning")
    assert line.startswith("tuning.benchmarks: the files of sugar_crepe")


def test_a_folder_of_a_language_pipeline_is_looked_at(problems: Problems, tmp_path: Path) -> None:
    folder = tmp_path / "spacy"
    folder.mkdir()
    (line,) = problems({"language.model": str(folder)})
    assert line.startswith("language.model: ") and "config.cfg" in line
    (folder / "config.cfg").write_text('[components]\n[components.own]\nfactory = "own"\n')
    (line,) = problems({"language.model": str(folder)})
    assert line.startswith("language.model: ") and "components.own" in line


def test_a_missing_key_is_named_first(problems: Problems) -> None:
    signing = {"public_key": "missing.pub", "private_key": "missing.pem"}
    lines = problems({"registration.signing": signing}, "promotion")
    assert lines[0].startswith("registration.signing.") and "missing.p" in lines[0]


def test_rolling_back_needs_no_data(problems: Problems) -> None:
    gone = {"data.root": "/nowhere", "benchmarks.root": "/nowhere"}
    assert problems({"promotion.rollback": True, **gone}, "promotion") == []


def test_object_storage_is_reached_before_the_first_node(context: Context, bucket: Any) -> None:
    parameters = context(data={"root": "s3://no-such-bucket/scenes"}).params
    assert parameters["data"]["root"] == "data/remote/s3:/no-such-bucket/scenes"
    assert parameters["benchmarks"]["root"].startswith(parameters["data"]["root"])
    for pipeline in ("ingest", "train_eval"):  # the second one reads benchmarks below the data too
        with pytest.raises(SettingsError, match=r"^data\.root: .*s3://no-such-bucket/scenes"):
            refresh_all(parameters, read_parameters(pipelines[pipeline]))


@pytest.mark.parametrize(
    ("scored", "expected"),
    [
        ({"benchmarks.retrieval.split": "val"}, "benchmarks.retrieval.split: 'val' is that of tu"),
        ({"benchmarks.foils.split": "val"}, "benchmarks.foils.split: 'val' is that of tuning"),
        (
            {"benchmarks.sets.sugar_crepe": {"root": "made/test/../val/sugar_crepe"}},
            "benchmarks.sets.sugar_crepe: ",
        ),
    ],
)
def test_no_version_is_judged_by_items_that_select(
    problems: Problems, scored: Changes, expected: str
) -> None:
    tuning = {"tuning.benchmarks.root": "made/val", "tuning.benchmarks.foils.split": "val"}

    def found(pipeline: str, changes: Changes) -> list[str]:
        lines = problems(tuning | changes, pipeline)
        return [line for line in lines if line.startswith(expected) and "select" in line]

    no_alias = {**scored, "registration.alias": None}
    for pipeline in ("train_eval", "rescore"):
        assert found(pipeline, scored), pipeline
    assert not found("evaluation", scored)
    assert not found("registration", scored)  # it registers what an earlier evaluation has scored
    assert not found("train_eval", no_alias)
    assert found("rescore", {**no_alias, "registration.rescore": "champion"})
    assert not found("train_eval", {"benchmarks.root": "made/test"})
