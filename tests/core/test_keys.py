"""Keys that nothing has are refused, in environments, on the command line and in variants."""

import shutil
from contextlib import suppress

import pytest
import yaml
from kedro.config import MissingConfigException
from kedro.framework.project import pipelines

from compo_pipeline.core import keys
from compo_pipeline.core.settings import SettingsError, plain
from compo_pipeline.project.settings import check_settings, loader_of, place_of, read_settings

BASE = {
    "parameters.yml": {"data": {"root": None, "splits": {"train": "train"}}},
    "globals.yml": {"seed": 0, "data": {"root": "x"}},
    "catalog.yml": {"captions": {"type": "a"}, "_json": {"type": "b"}},
}


@pytest.fixture
def conf(tmp_path, bootstrapped):
    for name, values in BASE.items():
        path = tmp_path / "base" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(values))
    return tmp_path


def write(conf, name, values):
    path = conf / "smoke" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))


def read_all(conf, environment):
    loader = loader_of(conf, environment, {})
    for kind in loader.config_patterns:
        with suppress(MissingConfigException):
            loader[kind]
    keys.refuse_unknown(conf, environment)


def refusal(conf, environment="base"):
    with pytest.raises(SettingsError) as error:
        read_all(conf, environment)
    return str(error.value)


def test_globals_of_an_environment_have_the_names_of_base(conf):
    write(conf, "globals.yml", {"sede": 2, "data": {"rooot": "y"}})
    known = "(known: data.root, seed)"
    assert refusal(conf, "smoke").splitlines() == [
        f"conf/smoke/globals.yml: data.rooot: unknown key; did you mean 'data.root'? {known}",
        f"conf/smoke/globals.yml: sede: unknown key; did you mean 'seed'? {known}",
    ]


@pytest.mark.parametrize("environment", ["..", "../conf/base", "base/..", ".", "", "/tmp"])
def test_an_environment_is_a_folder_of_conf_itself(conf, environment):
    write(conf, "globals.yml", {})
    assert refusal(conf, environment).startswith("--env: there is no folder conf/")


def test_a_file_that_is_no_yaml_is_named(conf):
    for content in (b"a: [", b"a: \xff", b"a: " + b"[" * 5000):
        write(conf, "parameters.yml", {})
        (conf / "smoke" / "parameters.yml").write_bytes(content)
        assert "smoke/parameters.yml: " in refusal(conf, "smoke")


@pytest.mark.parametrize("kind", ["parameters", "catalog", "globals", "credentials"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('data:\n  root: "${oops"', ""),
        ('data: {splits: ["${a:"]}', ""),
        ("- data", "expected keys with values, got a list"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(conf, kind, text, problem):
    write(conf, "parameters.yml", {})
    file = conf / "smoke" / f"{kind}.yml"
    file.write_text(text)
    message = refusal(conf, "smoke")
    assert message.startswith(f"{file}: {problem}") and "\n" not in message


@pytest.mark.parametrize("kind", ["parameters", "catalog"])
def test_what_names_nothing_is_one_line(project_conf, kind):
    (project_conf / "mine").mkdir()
    (project_conf / "mine" / f"{kind}.yml").write_text('foils: {seed: "${nothing:1}"}')
    with pytest.raises(SettingsError) as caught:
        loader_of(project_conf, "mine", {})[kind]
    message = caught.value.message
    assert message.startswith(f"conf/mine, {kind}: ") and "nothing" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "data:\n  root: a\n  splits:\n    x: 1\n    y: 2\n    x: 3\n",
        "data: {root: a, splits: {x: 1, y: 2, x: 1}}\n",
    ],
)
def test_a_key_that_is_given_twice_is_named(conf, text):
    write(conf, "parameters.yml", {})
    file = conf / "smoke" / "parameters.yml"
    file.write_text(text)
    message = refusal(conf, "smoke")
    assert message.startswith(f"{file}: ") and "found duplicate key x" in message
    assert "\n" not in message


@pytest.fixture
def project_conf(bootstrapped, tmp_path):
    """The project's conf/base, beside which a test may write an environment."""
    shutil.copytree(bootstrapped / "conf" / "base", tmp_path / "conf" / "base")
    return tmp_path / "conf"


@pytest.fixture
def configured(project_conf):
    """Parameters of an environment of that folder, as the hook reads them."""

    def load(env="base", **runtime):
        return plain(read_settings(loader_of(project_conf, env, runtime)))

    return load


@pytest.fixture
def refused(configured):
    """Lines of the refusal of an environment and `--params`."""

    def load(env="base", **runtime):
        with pytest.raises(SettingsError) as error:
            configured(env, **runtime)
        return str(error.value).splitlines()

    return load


@pytest.mark.parametrize(
    ("runtime", "path", "suggestions"),
    [
        ({"sed": 1}, "sed", ["seed"]),
        ({"training": {"optimizer": {"warm": 1}}}, "training.optimizer.warm", ["warmup"]),
        # A right name in the wrong place comes before a near one in the right place.
        ({"rank": 1}, "rank", ["training.lora.rank"]),
    ],
)
def test_unknown_parameter_names_the_nearest(refused, runtime, path, suggestions):
    (line,) = refused(**runtime)
    meant = " or ".join(f"'{each}'" for each in suggestions)
    assert line.startswith(f"--params: {path}: unknown key; did you mean {meant}? (known: ")


def test_all_errors_of_all_places_are_told_at_once(project_conf, refused):
    write(project_conf, "parameters_training.yml", {"training": {"epoch": 2, "batch_size": 0}})
    write(project_conf, "parameters.yml", {"data": {"sample": {"rows": "many"}}})
    lines = refused("smoke", seed="x", trainig={})
    assert sorted(line.rpartition(" (")[0] for line in lines) == [
        "--params: seed: Input should be a valid integer",
        "--params: trainig: unknown key; did you mean 'training'?",
        "conf/smoke/parameters.yml: data.sample.rows: Input should be a valid integer",
        "conf/smoke/parameters_training.yml: training.batch_size: Input should be greater than or "
        "equal to 2",
        "conf/smoke/parameters_training.yml: training.epoch: unknown key; did you mean 'epochs'?",
    ]


def test_the_place_of_an_error_is_the_one_that_counts(project_conf, refused):
    write(project_conf, "parameters.yml", {"training": {"epochs": 0}})
    (line,) = refused("smoke")
    assert line.startswith("conf/smoke/parameters.yml: training.epochs: ")
    (line,) = refused("smoke", training={"epochs": -1})
    assert line.startswith("--params: training.epochs: ") and line.endswith("(got -1)")
    file = project_conf / "base" / "parameters_training.yml"
    file.write_text(file.read_text().replace("epochs: 12", "epochs: twelve"))
    (line,) = refused()
    assert line.startswith("conf/base/parameters_training.yml: training.epochs: ")


@pytest.mark.parametrize(
    ("owner", "values", "expected"),
    [
        ("clic", {"training.epoch": 1}, "training.epoch: unknown key; did you mean 'epochs'?"),
        ("all", {"training.epochs": 0}, "training.epochs: Input should be greater than 0"),
    ],
)
def test_an_error_of_a_named_variant_names_it(configured, refused, owner, values, expected):
    variants = {owner: {"odd": values}}
    (line,) = refused(variant="odd", variants=variants)
    assert line.startswith(f"variants.{owner}.odd: {expected}")
    # Those of variants that are not named are no matter.
    assert configured(variants=variants)["training"]["epochs"] == 12


@pytest.mark.parametrize("name", ["parameters.json", "deeper/parameters_x.yml"])
def test_files_of_every_name_that_kedro_reads_are_checked(project_conf, refused, name):
    write(project_conf, name, {"sede": 1})
    (line,) = refused("smoke")
    assert line.startswith(f"conf/smoke/{name}: sede: unknown key; did you mean 'seed'?")


def test_a_setting_that_changes_results_is_not_for_the_file_that_dvc_does_not_read(
    project_conf, configured, refused
):
    file = project_conf / "base" / "parameters_compute.yml"
    file.write_text("training: {workers: 3, save_every: 9}\nprepare: {workers: 2}\n")
    assert configured()["training"]["workers"] == 3
    file.write_text("training: {workers: 3, max_steps: 2}\n")
    (message,) = refused()
    assert message.startswith("conf/base/parameters_compute.yml: training.max_steps may change")
    assert "training.workers" in message.partition("expected")[2]


def test_an_error_in_the_settings_of_the_method_names_its_place(project_conf):
    write(project_conf, "parameters.yml", {"clic": {"objective": {"positivs": 2}}})
    given = {"clic": {"objective": {"positivs": 3}}}
    for runtime, place in (({}, "conf/smoke/parameters.yml"), (given, "--params")):
        loader = loader_of(project_conf, "smoke", runtime)
        read = read_settings(loader)
        with pytest.raises(SettingsError) as error:
            check_settings(read, pipelines["views"], place_of(loader))
        expected = f"{place}: clic.objective.positivs: unknown key; did you mean 'positives'?"
        assert str(error.value).startswith(expected)
