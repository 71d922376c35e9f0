"""The recipes of the papers: every number is the paper's, and all of it parses."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.benchmarks.suites import enabled_sets
from compo_pipeline.core import settings as configuration
from compo_pipeline.core import variants
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.settings import SettingsError, parse, speed_keys
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.methods.registry import METHODS, build, method_type
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.project.settings import all_values, loader_of
from compo_pipeline.training.optimisation import learning_rate
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings
from compo_pipeline.tuning.cells import find_cells

# Whose values no paper gives, or that say where and how a run proceeds.
OF_NO_PAPER = {
    f"training.{name}" for name in (*speed_keys(TrainingSettings), "precision", "max_steps")
} | {
    "training.compile",
    "training.gradient_checkpointing",
    "training.cache_features",
    "training.frozen",
    "training.keep",
    "training.wise_ft.ratio",
    *("training.curriculum.kinds", "training.curriculum.epochs"),
    *(f"sparcl.objective.{name}" for name in ("contrast", "scale", "weights.pairs")),
}
PAPERS = yaml.safe_load(Path(__file__).with_name("papers.yml").read_text())
RECIPES = PAPERS["recipes"]
CONF = Path(__file__).parents[2] / "conf"
SETS = yaml.safe_load((CONF / "base/parameters_comparison.yml").read_text())["comparison_sets"]


@pytest.fixture(scope="module")
def parameters(bootstrapped):
    """Parameters of an environment as nodes get them, with the settings of all methods."""
    return cache(lambda env: all_values(loader_of(bootstrapped / "conf", env, {})))


def leaves(values: dict[str, Any]) -> dict[str, Any]:
    """Single values by their dotted names."""
    return dict(configuration.leaves(values))


@pytest.mark.parametrize("env", RECIPES)
def test_every_value_is_the_papers(parameters, env):
    table = RECIPES[env]
    found = leaves(parameters(env))
    assert {key: found[key] for key in table} == table
    # Nothing that trains is left out of the table.
    trains = ("training", f"{table['method']}.views", f"{table['method']}.objective")
    keys = {key for key in found if key.startswith(tuple(f"{name}." for name in trains))}
    # Validation chooses nothing: the papers train to the end.
    assert (found["training.keep"], found["training.early_stopping.patience"]) == ("last", None)
    apart = ("training.validation.", "training.early_", "training.distributed.")
    keys -= {key for key in keys if key.startswith(apart)}
    unread = set() if table["training.lora.rank"] else {"training.lora.convolution"}
    if table["training.optimizer.warmup_steps"] is not None:
        unread.add("training.optimizer.warmup")
    assert keys - set(table) - OF_NO_PAPER - unread == set()


def steps_of(env: str, rows: int, batch: int) -> int:
    """Full batches of each pass, by a loop; SPARCL's paper gives the number."""
    done = 0
    for _ in range(RECIPES[env]["training.epochs"]):
        left = rows
        while left >= batch:
            left, done = left - batch, done + 1
    return min(done, RECIPES[env].get("training.max_steps", done))


def test_the_table_of_recipes_has_the_steps_of_its_rows(project):
    page = (project / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [line[0].strip("`") for line in lines] == sorted(RECIPES)
    for env, _, _, rows, epochs, steps, *_ in lines:
        name = env.strip("`")
        batch = RECIPES[name]["training.batch_size"]
        shown = 82_783 if name == "sparcl_coco" else int(rows.replace(",", ""))
        assert int(epochs) == RECIPES[name]["training.epochs"]
        assert int(steps.replace(",", "")) == steps_of(name, shown, batch)


@pytest.mark.parametrize("env", RECIPES)
def test_nothing_of_the_demos_own_recipe_is_inherited(parameters, env):
    found = leaves(parameters(env))
    assert (found["training.frozen"], found["training.wise_ft.ratio"]) == ([], 1.0)
    # -12 is of the small base of the scenes; others have a scale of 100.
    assert {found[f"{name}.objective.bias"] for name in ("c2lip", "siglip", "sparcl")} == {-30.0}


@pytest.mark.parametrize("env", RECIPES)
def test_benchmarks_of_every_role_of_the_gate_can_be_scored(context, env):
    """Without keys besides folders, as a recipe waives nothing."""
    settings = context(env).settings
    asked = {rule.role for rule in settings.promotion.gate.rules.values()} - {None}
    files = {BENCHMARKS[name].role for name in enabled_sets(settings.benchmarks)}
    assert settings.promotion.waive == () and asked <= files


@pytest.mark.parametrize("env", RECIPES)
def test_all_settings_fit_together(parameters, env):
    params = parameters(env)
    rules, sentences = params["validation"]["rules"], params["ingest"]["sentences"]
    assert rules["shortest_sentence"]["least"] == sentences["least_words"]
    assert rules["longest_sentence"]["most"] == sentences["most_words"]
    training = params["training"]
    # One table serves each epoch of a method that draws nothing.
    drawn = 1 if params["method"] == "c2lip" else training["epochs"]
    assert params["views"]["epochs"] == drawn
    assert params["benchmarks"]["retrieval"]["split"] in (None, *params["data"]["splits"])
    chosen = build(params["method"], **params[params["method"]])
    assert not (training["cache_features"] and "image" in chosen.trains)


def with_variant(plain: dict[str, Any], name: str, env: str, **own: Any) -> dict[str, Any]:
    """Parameters of an environment, as `--params variant=<name>` and values of one's own change
    them in the test of the session below.
    """
    return variants.applied({**plain, "variant": name}, {"variant": name, **own}, env)


DERIVED = ("paths.", "command.", "site.", "method_settings.", "tuning.study.name", "variant", "_")


def changes(plain: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """What a variant changes, but for what follows from its name."""
    before, after = leaves(plain), leaves(changed)
    return {
        key: value
        for key, value in after.items()
        if not key.startswith(DERIVED) and value != before[key]
    }


def listed(kind: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Environments and names of a section of the papers' values, with what they change."""
    return [(env, name, own) for env, given in PAPERS[kind].items() for name, own in given.items()]


@pytest.mark.parametrize(("env", "variant", "values"), listed("variants"))
def test_variants_of_the_recipes_change_just_what_the_papers_say(parameters, env, variant, values):
    plain = parameters(env)
    assert changes(plain, with_variant(plain, variant, env)) == values


@pytest.mark.parametrize(("env", "method", "values"), listed("published"))
def test_baselines_as_published(parameters, env, method, values):
    plain = {**parameters(env), "method": method}
    changed = with_variant(plain, "published", env)
    assert changes(plain, changed) == {**values, "views.split": ["train", "carved"]}
    towers = ["text"] if method == "lab_clip" else ["image", "text"]
    assert changed[method]["objective"]["trains"] == towers
    assert changed["training"]["optimizer"]["lr"] == values.get("training.optimizer.lr", 5e-6)


def cs_clip_schedule(parameters, variant: str) -> tuple[OptimizerSettings, int]:
    plain = {**parameters("fsc_coco"), "method": "cs_clip"}
    changed = with_variant(plain, variant, "fsc_coco")
    settings = parse(TrainingSettings, changed["training"], "training")
    return settings.optimizer, settings.epochs


def test_cs_clip_as_published_has_the_rates_of_a_warm_up_of_one_step_an_epoch(parameters) -> None:
    """torch's own linear warm-up over three of five epochs, stepped as in the authors' loop."""
    (code, epochs), (config, _) = (
        cs_clip_schedule(parameters, name) for name in ("published", "published_config")
    )
    steps = 414_113 // 128  # captions of the Karpathy split
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
    warmup = torch.optim.lr_scheduler.LinearLR(
        optimizer, config.lr_start / config.lr, total_iters=3 * steps
    )
    for epoch in range(epochs):
        theirs = warmup.get_last_lr()[0]
        for step in (epoch * steps, (epoch + 1) * steps - 1):
            assert learning_rate(step, epochs * steps, code) == pytest.approx(theirs, rel=0.02)
        optimizer.step()
        warmup.step()


def test_cs_clip_as_configured_has_the_rates_of_the_authors_scheduler(parameters) -> None:
    """Of torch's schedulers in a sequence, of which the cosine is built at the warm-up's start."""
    config, epochs = cs_clip_schedule(parameters, "published_config")
    steps, rising = 1000 * epochs, 3000
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5e-6)
    schedulers = torch.optim.lr_scheduler
    warmup = schedulers.LambdaLR(optimizer, lambda step: min(1.0, 0.1 + 0.9 * step / rising))
    least = 0.01 * optimizer.param_groups[0]["lr"]
    cosine = schedulers.CosineAnnealingLR(optimizer, steps - rising, eta_min=least)
    both = schedulers.SequentialLR(optimizer, [warmup, cosine], [rising])
    for step in range(steps):
        theirs = both.get_last_lr()[0]
        assert learning_rate(step, steps, config) == pytest.approx(theirs, rel=0.002)
        optimizer.step()
        both.step()


@pytest.mark.parametrize("method", METHODS)
def test_every_named_variant_can_be_used(parameters, method):
    """On the recipe that its method belongs to: of known keys, and with settings that parse."""
    env = {"fsc_clip": "fsc_coco", "c2lip": "siglip_cc3m", "sparcl": "sparcl_coco"}
    plain = {**parameters(env.get(method, "coco")), "method": method}
    general, own = (plain["variants"].get(owner, {}) for owner in ("all", method))
    named = {name: general.get(name, {}) | own.get(name, {}) for name in (*general, *own)}
    adapted = {
        f"{base}+lora": named[base] | named["lora"] | named.get(f"{base}+lora", {})
        for base in plain["variants"]["all"]
        if base != "lora"
    }
    for name, values in (named | adapted).items():
        own_keys = {key for key in values if not key.startswith("model.config.")}
        assert own_keys <= leaves(plain).keys()
        params = variants.applied({**plain, "variant": name}, {})
        found = leaves(params)
        assert {key: found[key] for key in values} == values
        refuse_unusable(params, method)


def refuse_unusable(params: dict[str, Any], method: str) -> None:
    """Raise an error if a training's settings do not parse."""
    parse(TrainingSettings, params["training"], "training")
    parse(ModelSettings, params["model"], "model")
    parse(CounterfactualSettings, params["counterfactuals"], "counterfactuals")
    chosen = method_type(method)
    parse(chosen.views_type, params[method]["views"], f"{method}.views")
    parse(chosen.objective_type, params[method]["objective"], f"{method}.objective")


@pytest.mark.parametrize("name", SETS)
def test_every_cell_of_the_shipped_sets_can_be_trained(parameters, bootstrapped, monkeypatch, name):
    """On one dataset, by a known method under named variants or the environment's own recipe."""
    monkeypatch.chdir(bootstrapped)
    envs = {cell.get("env") for cell in SETS[name]["cells"].values()}
    env = next(iter(sorted(envs - {None})), "base")
    dataset = parameters(env)["dataset"]
    for label, cell in find_cells(name, SETS, dataset, CommandOptions(env)).cells.items():
        method, variant = cell["params"]["method"], cell["params"]["variant"]
        plain = {**parameters(cell["env"]), "method": method, "variant": variant}
        named = {*plain["variants"]["all"], *plain["variants"].get(method, {}), "default"}
        own = parameters(cell["env"])["variant"]
        assert variant == own or {*variant.split("+")} <= named, label
        refuse_unusable(variants.applied(plain, {}, cell["env"]), method)


def test_explicit_parameters_override_a_variant(context):
    def resolved(**runtime: Any) -> dict[str, Any]:
        params = context("coco", **runtime).params
        own = build("clic", **params["method_settings"])
        return {**params, "clic": own.configuration}

    own = {"variant": "c1", "clic": {"objective": {"positives": 3}}}
    assert changes(resolved(), resolved(**own)) == {
        "clic.objective.positives": 3,
        "clic.objective.weights.s_neg": 0.0,
        "clic.objective.weights.unimodal": 0.0,
        "clic.objective.clip_steps": False,
    }


def test_other_names_are_labels_unless_they_are_close_to_one(parameters):
    plain = parameters("coco")
    assert changes(plain, with_variant(plain, "mine", "coco")) == {}
    for label in ("mine", "positives33"):
        own = {"clic": {"objective": {"positives": 3}}}
        assert changes(plain, with_variant(plain, label, "coco", **own)) == {}
    with pytest.raises(SettingsError, match=r"^variant: .*'positives33'.*'positives3'"):
        with_variant(plain, "positives33", "coco")
    with pytest.raises(
        SettingsError, match=r"^variant: there is no 'no_local' of clic; fsc_clip has one"
    ):
        with_variant(plain, "no_local", "coco")


@pytest.mark.parametrize("env", [*RECIPES, "table"])
def test_images_that_select_are_not_reported(parameters, env):
    """By split: foils of the set that tunes are of none that retrieval or reported foils have."""
    plain = parameters(env)
    tuned, reported = plain["tuning"]["benchmarks"], plain["benchmarks"]
    sets = plain["foils"]["splits"]
    assert (tuned["foils"]["split"], reported["foils"]["split"]) == ("val", "test")
    assert sets["val"] != reported["retrieval"]["split"]
    # Two sets of held-out rows have other images by the hash of their content.
    assert sets["val"] != sets["test"] or sets["val"] == "held_out"


CARVING = "coco laion redcaps cc12m fsc_cc3m fsc_laion_coco sparcl_coco siglip_cc3m".split()


@pytest.mark.parametrize("env", CARVING)
def test_recipes_without_held_out_rows_make_some_and_published_trains_on_all(parameters, env):
    plain = parameters(env)
    assert plain["foils"]["carve"] == 2000
    assert plain["foils"]["splits"] == {"val": "held_out", "test": "held_out"}
    assert plain["benchmarks"]["foils"]["split"] == "test"
    changed = with_variant(plain, "published", env)
    assert changes(plain, changed) == {"views.split": ["train", "carved"]}


@pytest.mark.parametrize("owner", ["all", "clic"])
def test_variants_with_keys_that_cannot_be_set_are_refused(parameters, owner):
    listed = {"all": {}, "clic": {}, owner: {"odd": {"data.sample.rows": 10}}}
    plain = {**parameters("coco"), "variants": listed, "variant": "odd"}
    problem = f"^variants.{owner}.odd: 'data.sample.rows' is shared by all variants"
    with pytest.raises(SettingsError, match=problem):
        variants.applied(plain, {})


def combined(parameters, own: dict[str, Any], name: str = "a+b", **given: Any) -> dict[str, Any]:
    """CLIC's positives and the learning rate under a variant of listed ones of one's own."""
    plain = {**parameters("coco"), "variants": {"all": {}, "clic": {}} | own}
    found = leaves(with_variant(plain, name, "coco", **given))
    return {key: found[key] for key in ("clic.objective.positives", "training.optimizer.lr")}


POSITIVES, RATE = "clic.objective.positives", "training.optimizer.lr"


def test_values_of_a_method_are_added_to_those_of_all_and_override_them(parameters):
    listed = {"all": {"a": {POSITIVES: 2, RATE: 1.0}}, "clic": {"a": {RATE: 2.0}}}
    assert combined(parameters, listed, "a") == {POSITIVES: 2, RATE: 2.0}
    # In a combination too, whichever of its parts they are of.
    listed["all"]["b"] = {RATE: 3.0}
    for name in ("a+b", "b+a"):
        assert combined(parameters, listed, name) == {POSITIVES: 2, RATE: 2.0}


def test_of_two_values_of_one_key_the_later_holds(parameters):
    listed: dict[str, Any] = {"all": {"a": {RATE: 1.0}, "b": {RATE: 2.0, POSITIVES: 2}}}
    assert combined(parameters, listed, "a+b") == {POSITIVES: 2, RATE: 2.0}
    assert combined(parameters, listed, "b+a") == {POSITIVES: 2, RATE: 1.0}
    by_hand = {"training": {"optimizer": {"lr": 3.0}}}
    assert combined(parameters, listed, **by_hand)[POSITIVES] == 2
    listed["clic"] = {"a+b": {RATE: 4.0}}
    assert combined(parameters, listed) == {POSITIVES: 2, RATE: 4.0}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("openai_b61+lora", r"'openai_b61'.*mean 'openai_b16'"),
        ("openai_b16+mine", r"there is no 'mine' of clic"),
        ("lora+no_local", r"there is no 'no_local' of clic; fsc_clip has one"),
    ],
)
def test_a_combination_is_of_named_variants(parameters, name, problem):
    for own in ({}, {"clic": {"objective": {"positives": 3}}}):
        with pytest.raises(SettingsError, match=f"^variant: .*{problem}"):
            with_variant(parameters("coco"), name, "coco", **own)


def test_the_variant_of_a_study_keeps_the_values_of_the_one_it_tuned(parameters):
    listed: dict[str, Any] = {"all": {"a": {RATE: 1.0}, "b": {RATE: 2.0, POSITIVES: 2}}}
    listed["clic"] = {"a+b": {RATE: 3.0}}
    kept = {POSITIVES: 2, RATE: 3.0}
    for name in ("a+b+tuned", "a+b+tuned-wide", "a+b+tuned+tuned"):
        assert combined(parameters, listed, name) == kept
    assert combined(parameters, listed, "a+tuned")[RATE] == 1.0
    # Values of its own override them, another study's do not.
    listed["clic"]["a+b+tuned"] = {POSITIVES: 4}
    assert combined(parameters, listed, "a+b+tuned") == {POSITIVES: 4, RATE: 3.0}
    assert combined(parameters, listed, "a+b+tuned-wide") == kept
    # A label of one's own, with what it stands for, is tuned too; a misspelt variant is refused.
    own = {"clic": {"objective": {"positives": 5}}}
    plain = combined(parameters, {}, "mine", **own)
    assert combined(parameters, listed, "mine+tuned", **own) == plain
    with pytest.raises(SettingsError, match=r"there is no 'c' of clic"):
        combined(parameters, listed, "a+c+tuned")
    # A named variant of that name is a variant as any other.
    listed["clic"]["tuned"] = {POSITIVES: 1}
    assert combined(parameters, listed, "a+tuned")[POSITIVES] == 1


def test_the_environments_own_label_can_be_combined(parameters):
    plain = parameters("fsc_scenes")
    assert (
        changes(plain, with_variant(plain, "fsc_scenes+lora", "fsc_scenes"))
        == PAPERS["variants"]["fsc_coco"]["lora"]
    )


def test_an_error_in_a_value_names_the_variant_that_gives_it(context):
    wrong = {"variants": {"clic": {"wrong": {"training.batch_size": 1}}}}
    problem = r"variants\.clic\.wrong: training\.batch_size"
    with pytest.raises(SettingsError, match=problem):
        _ = context("coco", variant="openai_b16+wrong", **wrong).params


def test_folders_and_names_of_a_combination_are_its_own(context):
    found = context("coco", variant="openai_b16+lora")
    assert found.params["variant"] == "openai_b16+lora"
    assert found.params["tuning"]["study"]["name"] == "coco-clic-openai_b16+lora-seed0"
    path = found.catalog["checkpoint"]._describe()["filepath"]
    assert str(path).endswith("/coco/clic/openai_b16+lora/seed=0/checkpoint")
