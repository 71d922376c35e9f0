"""A new project: a folder with configuration, DVC stages and a method of its own, to run Kedro in.

Only the installed package is needed, no checkout of its repository.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

from compo_pipeline import __version__
from compo_pipeline.core.files import atomic_folder, write_text
from compo_pipeline.core.settings import SettingsError

_PACKAGE = Path(__file__).parents[1]
_TEMPLATES = _PACKAGE / "resources" / "project"
# Configuration and DVC stages: of an installed package, and of a checkout.
_ORIGINS = _TEMPLATES, _PACKAGE.parents[1]
STAGES = ("dvc.yaml", "recipes/dvc.yaml", "recipes/recipes.yml")
# What stages of a checkout depend on, and those of a project of the installed package.
_OUR_CODE = re.compile(r"(?:^( *- )src/compo_\S+\n)+", re.MULTILINE)
_OWN_CODE = r"\1requirements.txt\n\1src\n"
_METHOD = "cyclip.py"
_LOCAL = "local"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def create(folder: Path) -> Path:
    """Write a new project into a folder, named after the folder.

    Returns:
        The folder.

    Raises:
        SettingsError: the folder has files, or its name cannot be a package's.
    """
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"'{name}' cannot be a package's name: expected letters, digits, - and _"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} exists already; name a folder that is new or empty")
    values = {
        "name": name,
        "package": name.replace("-", "_").lower(),
        "version": __version__,
        "kedro": version("kedro"),
    }
    with atomic_folder(folder) as made:
        for path, text in _project_files(values):
            write_text(made / path, text)
        origin = next(each for each in _ORIGINS if (each / "dvc.yaml").is_file())
        local = shutil.ignore_patterns(_LOCAL)
        shutil.copytree(origin / "conf", made / "conf", ignore=local, dirs_exist_ok=True)
        for path in STAGES:
            text = (origin / path).read_text(encoding="utf-8")
            write_text(made / path, _OUR_CODE.sub(_OWN_CODE, text))
    return folder


def _project_files(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of the new project's files, from the templates."""
    package = f"src/{values['package']}"
    for name in ("README.md", "pyproject.toml", "requirements.txt"):
        yield name, Template((_TEMPLATES / name).read_text("utf-8")).substitute(values)
    yield f"{package}/{_METHOD}", (_TEMPLATES / _METHOD).read_text("utf-8")
    yield f"{package}/__init__.py", f'"""Parts of {values["name"]} that compo_pipeline finds."""\n'
    yield ".gitignore", (_TEMPLATES / "gitignore").read_text("utf-8")
    yield f"conf/{_LOCAL}/.gitkeep", ""
    yield ".dvc/config", "[core]\n    analytics = false\n    check_update = false\n"
    yield ".dvc/.gitignore", "/config.local\n/tmp\n/cache\n"
    yield ".dvcignore", ".venv\nmlruns\n__pycache__\n*.egg-info\n"
