"""A new project: a folder with configuration, DVC stages and a method of its own, to run Kedro in.

Only the installed package is needed, no checkout of its repository.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

from compo_pipeline import __version__
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.storage.files import atomic_folder, write_text

_PACKAGE = Path(__file__).parents[1]
_TEMPLATES = _PACKAGE / "resources" / "project"
# The configuration: of an installed package, and of a checkout.
_CONF = _TEMPLATES / "conf", _PACKAGE.parents[1] / "conf"
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
        conf = next(each for each in _CONF if each.is_dir())
        shutil.copytree(
            conf, made / "conf", ignore=shutil.ignore_patterns(_LOCAL), dirs_exist_ok=True
        )
    # What Kedro says of its logging is in the configuration.
    os.environ.setdefault("KEDRO_LOGGING_CONFIG", str(folder / "conf" / "logging.yml"))
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(folder.resolve())
    from compo_pipeline.project import dvc_stages

    for env in ("base", "table"):
        write_text(folder / dvc_stages.place_of(env), dvc_stages.text(folder.resolve(), env))
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
