"""Keys that conf/base does not name are refused, in environments and on the command line."""

import pytest
import yaml

from compo_pipeline.configuration import SettingsError
from compo_pipeline.parameters import keys

BASE = {
    "parameters.yml": {
        "seed": "${globals:seed}",
        "data": {"root": None, "splits": {"train": "train"}},
        "_open": ["data.splits"],
    },
    "parameters_methods/clic.yml": {"clic": {"loss": {"cont": 0.5, "uni": 1.0}}},
    "parameters_training.yml": {"training": {"epochs": 1, "schedule": {"warmup": 0.2}}},
    "globals.yml": {"seed": 0, "data": {"root": "x"}},
    "catalog.yml": {"captions": {"type": "a"}, "_json": {"type": "b"}},
}


@pytest.fixture
def conf(tmp_path):
    for name, values in BASE.items():
        path = tmp_path / "base" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(values))
    return tmp_path


def write(conf, name, values):
    path = conf / "smoke" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))


def refusal(conf, environment="base", **runtime):
    with pytest.raises(SettingsError) as error:
        keys.check(conf, environment, runtime)
    return str(error.value)


def test_known_keys_pass(conf):
    write(conf, "parameters.yml", {"training": {"schedule": {"warmup": 0.1}}, "_note": 1})
    write(conf, "globals.yml", {"data": {"root": "y"}})
    write(conf, "catalog.yml", {"captions": {"type": "c", "anything": 1}})
    runtime = {"seed": 1, "clic": {"loss": {"uni": 2}}, "data": {"root": None}}
    assert keys.check(conf, "smoke", runtime) == {"data.splits"}


@pytest.mark.parametrize(
    ("runtime", "path", "suggestion"),
    [
        ({"sed": 1}, "sed", "seed"),
        ({"clic": {"loss": {"unni": 1}}}, "clic.loss.unni", "uni"),
        ({"training": {"schedule": {"warm": 1}}}, "training.schedule.warm", "warmup"),
        # A right name in the wrong place.
        ({"warmup": 1}, "warmup", "training.schedule.warmup"),
        ({"data": {"cont": 1}}, "data.cont", "clic.loss.cont"),
    ],
)
def test_unknown_parameter_names_the_nearest(conf, runtime, path, suggestion):
    message = refusal(conf, **runtime)
    assert message.startswith(f"--params: unknown key '{path}'; did you mean '{suggestion}'?")


def test_open_mapping_takes_any_key(conf):
    keys.check(conf, "base", {"data": {"splits": {"mine": "theirs", "deep": {"er": 1}}}})
    assert "data.split" in refusal(conf, data={"split": {"mine": 1}})


def test_every_file_of_an_environment_is_checked(conf):
    write(conf, "parameters_training.yml", {"training": {"epoch": 2}})
    write(conf, "globals.yml", {"sede": 2})
    write(conf, "catalog.yml", {"caption": {"type": "a"}})
    lines = refusal(conf, "smoke").splitlines()
    assert [line.split(" (known")[0] for line in lines] == [
        "conf/smoke/parameters_training.yml: unknown key 'training.epoch'; did you mean 'epochs'?",
        "conf/smoke/catalog.yml: unknown key 'caption'; did you mean 'captions'?",
        "conf/smoke/globals.yml: unknown key 'sede'; did you mean 'seed'?",
    ]


def test_a_value_is_no_mapping_and_a_mapping_no_value(conf):
    assert "'seed' is a single value, got the keys a under it" in refusal(conf, seed={"a": 1})
    message = refusal(conf, clic={"loss": 3})
    assert "'clic.loss' is a mapping, got 3: set one of clic.loss.cont, clic.loss.uni" in message


def test_null_takes_a_name_out_of_an_open_mapping_only():
    values = {"data": {"root": None, "splits": {"train": "a", "val": None}}, "seed": None}
    assert keys.without_null(values, {"data.splits"}) == {
        "data": {"root": None, "splits": {"train": "a"}},
        "seed": None,
    }


@pytest.mark.parametrize("name", ["parameters.yaml", "parameters.json", "deeper/parameters_x.yml"])
def test_files_of_every_name_that_kedro_reads_are_checked(conf, name):
    write(conf, name, {"sede": 1})
    assert f"conf/smoke/{name}: unknown key 'sede'" in refusal(conf, "smoke")


@pytest.mark.parametrize("environment", ["..", "../conf/base", "base/..", ".", "", "/tmp"])
def test_an_environment_is_a_folder_of_conf_itself(conf, environment):
    write(conf, "globals.yml", {})
    assert refusal(conf, environment).startswith("--env: there is no folder conf/")


def test_a_file_that_is_no_yaml_is_named(conf):
    for content in (b"a: [", b"a: \xff", b"a: " + b"[" * 5000):
        write(conf, "parameters.yml", {})
        (conf / "smoke" / "parameters.yml").write_bytes(content)
        assert "smoke/parameters.yml: " in refusal(conf, "smoke")


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
    assert message.startswith(f"{file}: the key data.splits.x is given twice")
    assert "\n" not in message


def test_anchors_and_merged_keys_are_no_repeated_keys(conf):
    write(conf, "parameters.yml", {})
    text = "data: &d\n  splits: {a: b}\n_other:\n  <<: *d\n  <<: *d\n  splits: {a: b}\n"
    (conf / "smoke" / "parameters.yml").write_text(text)
    assert keys.check(conf, "smoke", {}) == {"data.splits"}


def test_an_unknown_environment_names_the_nearest(conf):
    write(conf, "globals.yml", {})
    message = refusal(conf, "smok")
    assert (
        message == "--env: there is no folder conf/smok; did you mean 'smoke'? (known: base, smoke)"
    )
