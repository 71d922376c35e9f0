"""Layout of a version's folder: the files that it may have, and what MLflow would do with them.

MLflow installs and runs what MLmodel, conda.yaml, python_env.yaml and requirements.txt name. They
must be those that MLflow writes for this program's served model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from compo_pipeline.models.tokenizing import TOKENIZER_FILES
from compo_pipeline.models.weights import CONFIG_FILE, RECORD_FILE, WEIGHTS_FILE
from compo_pipeline.storage.untrusted import read_json, read_yaml, shown
from compo_pipeline.versions.evidence import EVIDENCE_FILES, EVIDENCE_FOLDER
from compo_pipeline.versions.lineage import LINEAGE_FILE
from compo_pipeline.versions.signing import UNSIGNED_FILES

# The code that MLflow runs for a version (models from code).
SERVED_CODE = Path(__file__).with_name("model.py")
# Packages that it imports. MLflow's own inference would load the model in a new process and look
# packages up.
SERVING_PACKAGES = (
    "mlflow",
    "numpy",
    "open_clip_torch",
    "pandas",
    "pillow",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
)
# Of models with a tokenizer of Hugging Face.
TOKENIZER_PACKAGE = "transformers"
# Name of the exported folder among the logged model's artefacts.
ARTEFACT = "model"
PROBES_FILE = "probes.json"
# What readers and other programs read of a version; this program does not.
CARD, BOM_FILE, CROISSANT_FILE = "README.md", "bom.cdx.json", "croissant.json"
_MLMODEL, _CODE = "MLmodel", SERVED_CODE.name
_CONDA, _VIRTUALENV, _PIP = "conda.yaml", "python_env.yaml", "requirements.txt"
_EXAMPLES = {
    "artifact_path": "input_example.json",
    "serving_input_path": "serving_input_example.json",
}
_NEEDED = frozenset({_MLMODEL, _CODE, _CONDA, _VIRTUALENV, _PIP})
_TOP = _NEEDED | {LINEAGE_FILE, *UNSIGNED_FILES, *_EXAMPLES.values()}
_ABOUT = frozenset({CARD, BOM_FILE, CROISSANT_FILE})
_EXPORT = frozenset({WEIGHTS_FILE, CONFIG_FILE, RECORD_FILE, PROBES_FILE}) | _ABOUT
_FLAVOR = "python_function"
# What MLflow writes about a model from code; other keys name further code or a pickled model.
_FLAVOR_KEYS = {
    "artifacts",
    "cloudpickle_version",
    "env",
    "loader_module",
    "model_code_path",
    "python_version",
    "streamable",
}
_LOADER = "mlflow.pyfunc.loaders.code_model"
_ENVIRONMENTS = {"conda": _CONDA, "virtualenv": _VIRTUALENV}
_CHANNELS, _ENVIRONMENT = ["conda-forge"], "mlflow-env"
_PYTHON = re.compile(r"\d+\.\d+(\.\d+)?")
_BUILD_TOOLS = re.compile(r"(pip|setuptools|wheel)((==|<=)[\d.]+)?")
_DISTRIBUTION = "compo-pipeline"


def exported_folder(files: Path) -> Path:
    """Path of the exported open_clip folder within a version's MLflow model folder.

    Raises:
        ValueError: MLmodel names another one.
    """
    artefacts = _read_flavors(files)[_FLAVOR].get("artifacts")
    if not isinstance(artefacts, dict) or set(artefacts) != {ARTEFACT}:
        named = sorted(artefacts) if isinstance(artefacts, dict) else shown(artefacts)
        raise ValueError(f"{_MLMODEL} names the artefacts {named}, not '{ARTEFACT}' alone")
    path = str(artefacts[ARTEFACT].get("path"))
    parent, _, name = path.rpartition("/")
    export = files / path
    if parent != "artifacts" or name in ("", ".", "..") or not export.is_dir():
        raise ValueError(f"{_MLMODEL} names the folder '{path}'; there is none in artifacts")
    return export


def check_files(files: Path) -> Path:
    """Check that a version's folder has all files it needs and no file this program does not write.

    Returns:
        The exported folder in it.

    Raises:
        ValueError: a file is missing, or there is another file or folder; names it.
    """
    export = exported_folder(files)
    allowed = _EXPORT | (set(TOKENIZER_FILES) if _uses_tokenizer_files(export) else set())
    evidence = export / EVIDENCE_FOLDER
    if not evidence.is_dir():
        raise ValueError(f"{evidence.relative_to(files)} is missing")
    folders = (files / "artifacts", export, evidence)
    for folder, names in zip(
        (files, *folders), (_TOP, frozenset(), allowed, EVIDENCE_FILES), strict=True
    ):
        for path in sorted(folder.iterdir()):
            if path in folders or (path.is_file() and path.name in names):
                continue
            kind = "folder" if path.is_dir() else "file"
            raise ValueError(
                f"{path.relative_to(files)} is a {kind} that this program does not write"
            )
    for folder, names in (
        (files, _NEEDED),
        (export, _EXPORT - _ABOUT),
        (evidence, EVIDENCE_FILES),
    ):
        for name in sorted(names):
            if not (folder / name).is_file():
                raise ValueError(f"{(folder / name).relative_to(files)} is missing")
    return export


def _uses_tokenizer_files(export: Path) -> bool:
    """Whether the exported model has a Hugging Face tokenizer, which needs files of its own."""
    config = read_json(export / CONFIG_FILE)
    return bool(config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"))


def check_code(files: Path) -> None:
    """Check that MLflow would run only this program's code for a version, in its pinned packages.

    Raises:
        ValueError: it would not; names the file and what was found.
    """
    flavors = _read_flavors(files)
    flavor = {key: value for key, value in flavors[_FLAVOR].items() if value is not None}
    foreign = sorted({*(set(flavors) - {_FLAVOR}), *(set(flavor) - _FLAVOR_KEYS)})
    if foreign:
        raise ValueError(f"{_MLMODEL} has {', '.join(foreign)}, which this program does not write")
    for key, expected in (("loader_module", _LOADER), ("env", _ENVIRONMENTS)):
        if flavor.get(key) != expected:
            raise ValueError(
                f"{_MLMODEL}: {key} is {shown(flavor.get(key))}, expected {shown(expected)}"
            )
    # MLflow takes the last part, which is empty after a trailing slash.
    code = str(flavor.get("model_code_path")).rpartition("/")[2]
    if code != _CODE:
        raise ValueError(f"{_MLMODEL}: model_code_path is of the file '{code}', expected {_CODE}")
    if (files / _CODE).read_bytes() != SERVED_CODE.read_bytes():
        raise ValueError(f"{_CODE} is not the code of this program's version, and is not signed")
    pins = _check_pins(files)
    _check_conda(files, pins)
    _check_virtualenv(files)


def _read_flavors(files: Path) -> dict[str, Any]:
    """Read the `flavors` mapping of a version's MLmodel file; refuses unexpected content."""
    if not (files / _MLMODEL).is_file():
        raise ValueError(f"{_MLMODEL} is missing")
    content = read_yaml(files / _MLMODEL)
    if not isinstance(content, dict) or not isinstance(content.get("flavors"), dict):
        raise ValueError(f"{_MLMODEL} names no flavors")
    flavors: dict[str, Any] = content["flavors"]
    if not isinstance(flavors.get(_FLAVOR), dict):
        raise ValueError(f"{_MLMODEL} has no flavor {_FLAVOR}")
    examples = content.get("saved_input_example_info") or {}
    for key, name in _EXAMPLES.items():
        if examples.get(key, name) != name:
            raise ValueError(f"{_MLMODEL}: {key} is {shown(examples[key])}, expected {name}")
    return flavors


def _check_pins(files: Path) -> list[str]:
    """Check that requirements.txt pins exactly the packages for serving, in supported versions."""
    bounds = {each.name.replace("-", "_"): each for each in _declared_requirements()}
    lines = (files / _PIP).read_text("utf-8").splitlines()
    found = []
    for line in lines:
        name, _, pinned = line.partition("==")
        if name not in (*SERVING_PACKAGES, TOKENIZER_PACKAGE):
            raise ValueError(f"{_PIP} requires '{line}', which the served model does not need")
        try:
            wanted = Version(pinned)
        except InvalidVersion:
            raise ValueError(f"{_PIP} requires '{line}', expected {name}==<version>") from None
        newest = Version(version(name).partition("+")[0])
        bound = bounds[name].specifier
        if not bound.contains(wanted, prereleases=True) or wanted > newest:
            raise ValueError(f"{_PIP} requires '{line}', expected {name}{bound}, up to {newest}")
        found.append(name)
    if sorted({*found, TOKENIZER_PACKAGE}) != sorted({*SERVING_PACKAGES, TOKENIZER_PACKAGE}):
        raise ValueError(f"{_PIP} lacks {', '.join(sorted(set(SERVING_PACKAGES) - set(found)))}")
    return lines


def _declared_requirements() -> Iterator[Requirement]:
    """The requirements in this program's package metadata, including requirements of its extras."""
    return map(Requirement, requires(_DISTRIBUTION) or ())


def _check_conda(files: Path, pins: list[str]) -> None:
    """Refuse a conda.yaml that requires more than Python, pip and the pinned packages."""
    content = read_yaml(files / _CONDA)
    if not isinstance(content, dict) or set(content) != {"channels", "dependencies", "name"}:
        named = shown(sorted(content) if isinstance(content, dict) else content)
        raise ValueError(f"{_CONDA} has {named}, expected channels, dependencies and name")
    for key, expected in (("channels", _CHANNELS), ("name", _ENVIRONMENT)):
        if content[key] != expected:
            raise ValueError(f"{_CONDA}: {key} is {shown(content[key])}, expected {expected}")
    plain = [each for each in content["dependencies"] if not isinstance(each, Mapping)]
    for entry in plain:
        name, _, wanted = str(entry).partition("=")
        if not (
            _BUILD_TOOLS.fullmatch(str(entry)) or (name == "python" and _PYTHON.fullmatch(wanted))
        ):
            raise ValueError(f"{_CONDA} requires {shown(entry)}, expected python and pip")
    listed = [each for each in content["dependencies"] if isinstance(each, Mapping)]
    if listed != [{"pip": pins}]:
        raise ValueError(f"{_CONDA} requires by pip other packages than {_PIP}")


def _check_virtualenv(files: Path) -> None:
    """Refuse a python_env.yaml that requires more than Python, pip's tools and requirements.txt."""
    content = read_yaml(files / _VIRTUALENV)
    keys = {"python", "build_dependencies", "dependencies"}
    if not isinstance(content, dict) or set(content) != keys:
        named = shown(sorted(content) if isinstance(content, dict) else content)
        raise ValueError(f"{_VIRTUALENV} has {named}, expected {', '.join(sorted(keys))}")
    if not _PYTHON.fullmatch(str(content["python"])):
        raise ValueError(f"{_VIRTUALENV}: python is {shown(content['python'])}")
    for entry in content["build_dependencies"]:
        if not _BUILD_TOOLS.fullmatch(str(entry)):
            raise ValueError(
                f"{_VIRTUALENV} requires {shown(entry)} to build, expected pip's tools"
            )
    if content["dependencies"] != [f"-r {_PIP}"]:
        raise ValueError(
            f"{_VIRTUALENV} requires {shown(content['dependencies'])}, expected {_PIP} alone"
        )
