"""The recipes of the papers: every number is the paper's, and all of it parses."""

from functools import cache
from typing import Any

import pytest
import torch

from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.benchmarks.suites import enabled_sets
from compo_pipeline.core import settings as configuration
from compo_pipeline.core import variants
from compo_pipeline.core.settings import SettingsError, parse, speed_paths
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.methods.registry import METHODS, build, method_type
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.project.settings import all_values, loader_of
from compo_pipeline.training.optimisation import learning_rate
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings

# Whose values no paper gives, or that say where and how a run proceeds.
OF_NO_PAPER = {
    f"training.{name}" for name in (*speed_paths(TrainingSettings), "precision", "max_steps")
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
CLIC = {
    "method": "clic",
    "model.name": "ViT-B-32-quickgelu",
    "model.pretrained": "openai",
    "data.format": "coco_captions",
    "data.sample.rows": None,
    "ingest.sentences.whole": False,
    "ingest.sentences.least_words": 4,
    "ingest.sentences.most_words": 34,
    "validation.rules.enough_sentences.least": 2,
    "validation.rules.shortest_sentence.least": 4,
    "validation.rules.longest_sentence.most": 34,
    "views.epochs": 5,
    "clic.views.images": "composite",
    "clic.views.partners": "random",
    "clic.views.swap": "across",
    "clic.views.occurrence": "drawn",
    "clic.views.careful": False,
    "clic.objective.positives": 4,
    "clic.objective.weights.contrastive": 0.5,
    "clic.objective.weights.s_neg": 0.5,
    "clic.objective.weights.unimodal": 1.0,
    "clic.objective.unimodal_norm": "squared",
    "clic.objective.clip_steps": True,
    "clic.objective.trains": ["text"],
    "training.epochs": 5,
    "training.batch_size": 4 * 200,
    "training.contrast_group": None,
    "training.optimizer.lr": 1e-6,
    "training.optimizer.lr_start": 1e-7,
    "training.optimizer.lr_end": 1e-8,
    "training.optimizer.warmup": 0.2,
    "training.optimizer.warmup_steps": None,
    "training.optimizer.betas": [0.9, 0.98],
    "training.optimizer.eps": 1e-8,
    "training.optimizer.weight_decay": 0.1,
    "training.optimizer.clip_norm": None,
    "training.crop_scale": None,
    "training.lora.rank": None,
}
# Of whole captions, fine-tuned as FSC-CLIP's and C2LIP's code does.
WHOLE = {
    "ingest.sentences.whole": True,
    "ingest.sentences.least_words": 1,
    "ingest.sentences.most_words": 77,
    "validation.rules.enough_sentences.least": 1,
    "validation.rules.shortest_sentence.least": 1,
    "validation.rules.longest_sentence.most": 77,
    "training.epochs": 5,
    "training.contrast_group": None,
    "training.optimizer.lr_end": 0.0,
    "training.optimizer.warmup_steps": 50,
    "training.optimizer.betas": [0.9, 0.98],
    "training.optimizer.eps": 1e-6,
    "training.optimizer.weight_decay": 0.1,
    "training.optimizer.clip_norm": None,
    "training.crop_scale": [0.9, 1.0],
    "training.lora.rank": None,
}
FSC = {
    **WHOLE,
    "method": "fsc_clip",
    "model.name": "ViT-B-32-quickgelu",
    "model.pretrained": "openai",
    "data.sample.rows": 100_000,
    "views.epochs": 5,
    "fsc_clip.views.generators": ["negclip", "replace", "bigram"],
    "fsc_clip.views.careful": False,
    "fsc_clip.views.replacements": "wordnet_cousins",
    "fsc_clip.objective.weights.contrastive": 1.0,
    "fsc_clip.objective.weights.global_hn": 0.5,
    "fsc_clip.objective.weights.local_hn": 0.2,
    "fsc_clip.objective.gamma": 2.0,
    "fsc_clip.objective.beta": 0.02,
    "fsc_clip.objective.attention": "minmax",
    "fsc_clip.objective.trains": ["image", "text"],
    "negclip.views.generators": ["negclip"],
    "negclip.objective.trains": ["image", "text"],
    "clip.objective.trains": ["image", "text"],
    "training.batch_size": 256,
    "training.optimizer.lr": 5e-6,
    "training.optimizer.lr_start": 1e-7,  # the first of fifty steps
}
C2LIP = {
    **WHOLE,
    "method": "c2lip",
    "model.name": "ViT-B-16-SigLIP",
    "model.pretrained": "webli",
    "data.format": "img2dataset",
    "data.captions.caption": "shortLLA_captions",
    "data.sample.rows": None,
    "views.epochs": 1,
    "c2lip.objective.weights.contrastive": 1.0,
    "c2lip.objective.weights.npc": 1.0,
    "c2lip.objective.weights.xac": 0.01,
    "c2lip.objective.phrases": "text",
    "c2lip.objective.bias": -30.0,  # of bases that have none
    "c2lip.objective.trains": ["image", "text"],
    "siglip.objective.bias": -30.0,
    "siglip.objective.trains": ["image", "text"],
    "clip.objective.trains": ["image", "text"],
    "training.batch_size": 8 * 96,
    "training.optimizer.lr": 1e-5,
    "training.optimizer.lr_start": 2e-7,  # the first of fifty steps
    "training.precision": "bf16",
}
SPARCL = {
    "method": "sparcl",
    "model.name": "ViT-B-32-quickgelu",
    "model.pretrained": "openai",
    "data.format": "coco_captions",
    "data.splits.train": "train2014",
    "data.sample.rows": None,
    "ingest.sentences.whole": True,
    "validation.rules.enough_sentences.least": 1,
    "counterfactuals.sentences": 1,
    "counterfactuals.image_generator": "diffusion",
    "counterfactuals.diffusion.steps": 8,
    "counterfactuals.diffusion.height": 768,
    "counterfactuals.diffusion.width": 768,
    "counterfactuals.diffusion.guidance": 7.5,
    "counterfactuals.diffusion.injection": True,
    "counterfactuals.diffusion.adain.weight": 0.5,
    "views.epochs": 5,
    "sparcl.objective.weights.contrastive": 1.0,
    "sparcl.objective.weights.margin": 0.01,
    "sparcl.objective.margins.m0": 0.5,
    "sparcl.objective.margins.beta": -2.0,
    "sparcl.objective.margins.gamma": 4.0,
    "sparcl.objective.margins.alpha": 10.0,
    "sparcl.objective.margins.adaptive": True,
    "sparcl.objective.images": True,
    "sparcl.objective.bias": -30.0,
    "sparcl.objective.trains": ["image", "text"],
    "triplet_clip.objective.trains": ["image", "text"],
    "training.epochs": 5,
    "training.max_steps": 384_000 // 128,
    "training.batch_size": 2 * 64,
    "training.contrast_group": 64,
    "training.precision": "fp32",
    "training.optimizer.lr": 0.01 * 128 / 512,
    "training.optimizer.lr_start": 0.01 * 128 / 512,
    "training.optimizer.lr_end": 0.0,
    "training.optimizer.warmup": 0.0,
    "training.optimizer.warmup_steps": None,
    "training.optimizer.betas": [0.9, 0.999],
    "training.optimizer.eps": 1e-6,
    "training.optimizer.weight_decay": 0.5,
    "training.optimizer.clip_norm": None,
    "training.crop_scale": None,
    "training.lora.rank": 16,
    "training.lora.convolution": "loralib",
}
ONE_PASS = {
    **CLIC,
    "data.format": "table",
    "data.columns.caption": "vlm_caption",
    "views.epochs": 1,
    "training.epochs": 1,
}
RECIPES = {
    "coco": CLIC,
    "redcaps": ONE_PASS,
    "cc12m": ONE_PASS,
    "laion": {**ONE_PASS, "data.format": "cogvlm_laion", "data.columns.caption": None},
    "fsc_coco": {**FSC, "data.format": "neg_clip", "data.sample.rows": None},
    "fsc_cc3m": {
        **FSC,
        "data.format": "img2dataset",
        "data.columns.caption": "coca_captions",
        "fsc_clip.objective.weights.global_hn": 1.0,
    },
    "fsc_laion_coco": {**FSC, "data.format": "img2dataset", "data.columns.caption": "caption"},
    "siglip_cc3m": C2LIP,
    "sparcl_coco": SPARCL,
}
ADAPTERS = {"training.lora.rank": 4, "training.lora.convolution": "loralib"}
FSC_ADAPTERS = {
    **ADAPTERS,
    "training.optimizer.lr": 5e-5,
    "training.optimizer.lr_start": 1e-6,
}
DATACOMP = {"model.name": "ViT-B-32", "model.pretrained": "datacomp_xl_s13b_b90k"}
FSC_B16 = {
    "model.name": "ViT-B-16-quickgelu",
    "training.batch_size": 128,
    "fsc_clip.objective.weights.local_hn": 0.5,
}
# The bases of CLIC's Table 14; the batch stays at 4 x 200 whatever the base is.
CLIC_BASES = {
    "openai_b16": {"model.name": "ViT-B-16-quickgelu"},
    "openai_l14": {"model.name": "ViT-L-14-quickgelu"},
    "clipa_l14": {"model.name": "ViT-L-14-CLIPA", "model.pretrained": "datacomp1b"},
    "eva02_l14": {"model.name": "EVA02-L-14", "model.pretrained": "merged2b_s4b_b131k"},
}
VARIANTS = {
    "coco": {"lora": ADAPTERS},
    "laion": CLIC_BASES,
    "redcaps": CLIC_BASES,
    "fsc_laion_coco": {
        "lora": FSC_ADAPTERS,
        "datacomp": DATACOMP,
        "openai_b16": FSC_B16,
        "datacomp+lora": DATACOMP | FSC_ADAPTERS,
        "openai_b16+lora": FSC_B16 | FSC_ADAPTERS,
        "lora+openai_b16": FSC_B16 | FSC_ADAPTERS,
        "no_focal+lora": {"fsc_clip.objective.gamma": 0.0} | FSC_ADAPTERS,
    },
    "fsc_coco": {
        "lora": FSC_ADAPTERS,
        "openai_l14": {
            "model.name": "ViT-L-14-quickgelu",
            "fsc_clip.objective.weights.local_hn": 0.5,
        },
        "no_focal": {"fsc_clip.objective.gamma": 0.0},
    },
    "siglip_cc3m": {
        "npc": {"c2lip.objective.weights.xac": 0.0},
        "npc0.5_xac0.1": {"c2lip.objective.weights.npc": 0.5, "c2lip.objective.weights.xac": 0.1},
    },
    "sparcl_coco": {
        "no_images": {"counterfactuals.image_generator": None, "sparcl.objective.images": False},
        "no_injection": {"counterfactuals.diffusion.injection": False},
        "no_adain": {"counterfactuals.diffusion.adain.space": "none"},
        "fixed_margin": {"sparcl.objective.margins.adaptive": False},
        "openai_l14": {
            "model.name": "ViT-L-14-quickgelu",
            "training.max_steps": 15000,
            "training.epochs": 24,
            "views.epochs": 24,
        },
    },
}


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


@pytest.mark.parametrize(
    ("env", "variant"), [(env, variant) for env, given in VARIANTS.items() for variant in given]
)
def test_variants_of_the_recipes_change_just_what_the_papers_say(parameters, env, variant):
    plain = parameters(env)
    assert changes(plain, with_variant(plain, variant, env)) == VARIANTS[env][variant]


PUBLISHED = {
    "ce_clip": (
        "fsc_coco",
        {
            "training.epochs": 10,
            "views.epochs": 10,
            "ce_clip.objective.weights.intra_modal": 0.3,
            "ce_clip.objective.intra_modal_negatives": "first",
            "ce_clip.objective.reset_thresholds": True,
        },
    ),
    "cs_clip": (
        "fsc_coco",
        {
            "training.batch_size": 128,
            "training.optimizer.lr": 5e-7,
            "training.optimizer.lr_start": 5e-7,
            "training.optimizer.lr_end": 5.1e-7,
            "training.optimizer.warmup_steps": 0,
            "training.optimizer.weight_decay": 0.01,
            "training.optimizer.clip_norm": 1.0,
            "training.crop_scale": None,
        },
    ),
    "svlc_r": (
        "fsc_cc3m",
        {
            **ADAPTERS,
            "svlc_r.objective.weights.positive": 0.0,
            "training.batch_size": 128,
            "training.optimizer.warmup_steps": 10_000,
        },
    ),
    "dac_mil": (
        "fsc_cc3m",
        {
            **ADAPTERS,
            "dac_mil.views.sentences": 10,
            "training.batch_size": 32,
            "training.optimizer.warmup_steps": 10_000,
        },
    ),
}


@pytest.mark.parametrize("method", PUBLISHED)
def test_baselines_as_published(parameters, method):
    env, values = PUBLISHED[method]
    plain = {**parameters(env), "method": method}
    changed = with_variant(plain, "published", env)
    assert changes(plain, changed) == {**values, "views.split": ["train", "carved"]}
    assert changed[method]["objective"]["trains"] == ["image", "text"]
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
    listed = variants.named(plain, method)
    adapted = {
        f"{base}+lora": listed[base] | listed["lora"] | listed.get(f"{base}+lora", {})
        for base in plain["variants"]["all"]
        if base != "lora"
    }
    for name, values in (listed | adapted).items():
        assert values.keys() <= leaves(plain).keys()
        params = variants.applied({**plain, "variant": name}, {})
        found = leaves(params)
        assert {key: found[key] for key in values} == values
        parse(TrainingSettings, params["training"], "training")
        parse(ModelSettings, params["model"], "model")
        parse(CounterfactualSettings, params["counterfactuals"], "counterfactuals")
        chosen = method_type(method)
        parse(chosen.views_type, params[method]["views"], f"{method}.views")
        parse(chosen.objective_type, params[method]["objective"], f"{method}.objective")


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
    found = changes(plain, changed)
    assert found.pop("views.split") == ["train", "carved"]
    if plain["method"] not in PUBLISHED:
        assert not found


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
    assert changes(plain, with_variant(plain, "fsc_scenes+lora", "fsc_scenes")) == FSC_ADAPTERS


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
