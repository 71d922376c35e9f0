"""What the workflow for continuous integration runs exists."""

import re
import shlex
import subprocess

import pytest
import yaml

from compo_pipeline.pipeline_registry import register_pipelines


@pytest.fixture
def commands(project):
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [shlex.split(step["run"]) for step in steps if "run" in step]


def test_tests_the_chain_and_a_dry_promotion_are_run(commands, project):
    assert [".ci/run"] in commands
    assert ["make", "test-all"] in commands
    assert re.search(r"^test-all:", (project / "Makefile").read_text(), re.MULTILINE)
    runs = [command for command in commands if command[0].endswith("kedro") and command[1] == "run"]
    options = [dict(re.findall(r"--(\w+)=(\S+)", " ".join(run))) for run in runs]
    assert [each["pipeline"] for each in options] == ["train_eval", "promotion"]
    assert {each["pipeline"] for each in options} <= register_pipelines().keys()
    assert all((project / "conf" / each["env"]).is_dir() for each in options)
    assert runs[-1][-2:] == ["--params", "promotion.dry_run=true"]


def test_every_supported_python_is_tested(project):
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    supported = re.findall(r'Python :: (3\.\d+)"', (project / "pyproject.toml").read_text())
    assert tested == supported


def test_a_release_is_checked_built_and_attested_and_not_published(project):
    text = (project / ".github" / "workflows" / "release.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["build"]["steps"]
    done = [step.get("run", step.get("uses", "")).partition("@")[0] for step in steps]
    order = [
        'make release-check TAG="$GITHUB_REF_NAME"',
        "make wheel-check",
        "actions/attest-build-provenance",
        "actions/upload-artifact",
    ]
    assert [name for name in done if name in order] == order
    assert "pypi" not in text.lower()
    targets = set(re.findall(r"^([a-z-]+):", (project / "Makefile").read_text(), re.MULTILINE))
    assert {name.split()[1] for name in done if name.startswith("make ")} <= targets


@pytest.mark.parametrize(
    ("tag", "unreleased", "said"),
    [
        ("v9.9.9", "", ""),
        ("v9.9.8", "", "TAG is 'v9.9.8'"),
        ("v9.9.9", "- A line.\n", "lines under [Unreleased]"),
    ],
)
def test_a_tag_must_fit_version_and_changelog(project, tmp_path, tag, unreleased, said):
    (tmp_path / "src" / "compo_pipeline").mkdir(parents=True)
    (tmp_path / "src" / "compo_pipeline" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    log = f"# Changelog\n\n## [Unreleased]\n\n{unreleased}\n## [9.9.9]\n\n- Another line.\n"
    (tmp_path / "CHANGELOG.md").write_text(log)
    command = ["make", "-f", str(project / "Makefile"), "release-check", f"TAG={tag}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (said == "") and said in done.stdout
    (tmp_path / "CHANGELOG.md").write_text(log.replace("[9.9.9]", "[9.9.0]"))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
