"""What the workflow for continuous integration runs exists."""

import pytest
from tests.processes import ran


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
    done = ran(command, tmp_path)
    assert (done.returncode == 0) == (said == "") and said in done.stdout
    (tmp_path / "CHANGELOG.md").write_text(log.replace("[9.9.9]", "[9.9.0]"))
    done = ran(command, tmp_path)
    assert done.returncode != 0
