"""Fingerprints of source code: of modules, and of the modules of this project that they import."""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import grimp

_DIGITS = 16
_OWN = __name__.partition(".")[0]


def code_fingerprint(*modules: str) -> str:
    """Hash (16 hexadecimal digits) of the code of modules and of the modules that they import.

    A package stands for all its modules. Imports in functions count, those for type checkers do
    not; what a registry names by its path must be named here too. Comments, docstrings and layout
    do not count.
    """
    hashed = hashlib.sha256()
    for name in sorted(imported(*modules)):
        file = file_of(name)
        text = _code_without_docs(file, file.stat().st_mtime_ns)
        hashed.update(f"{name}\n{text}\n".encode())
    return hashed.hexdigest()[:_DIGITS]


def imported(*modules: str) -> set[str]:
    """Names of modules, and of all modules they import from their package or compo_pipeline."""
    return set[str]().union(*map(_modules_with_imports, modules))


@cache
def _modules_with_imports(module: str) -> frozenset[str]:
    """Names of a module, its imports from its package or compo_pipeline, and all their packages."""
    package = module.partition(".")[0]
    if _package_folder(package) is None:
        return frozenset({module})
    graph = _import_graph(*dict.fromkeys((package, _OWN)))
    names = {module} | graph.find_descendants(module)
    if module != package:
        names |= graph.find_upstream_modules(module, as_package=True)
    names |= {name[:place] for name in names for place, sign in enumerate(name) if sign == "."}
    return frozenset(names)


@cache
def _import_graph(*packages: str) -> grimp.ImportGraph:
    """Graph of the imports between the modules of packages."""
    # Its cache would be a folder in the working directory.
    return grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    """Path of the source file of a module or package."""
    package, _, rest = module.partition(".")
    folder = _package_folder(package)
    if folder is None:
        return Path(str(sys.modules[module].__file__))
    place = folder.joinpath(*rest.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _package_folder(package: str) -> Path | None:
    """Folder of a package; None for a module that is no package, such as a script."""
    if package in sys.modules and not hasattr(sys.modules[package], "__path__"):
        return None
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


@cache
def _code_without_docs(file: Path, _changed: int) -> str:
    """Normalised source of a file, without comments and docstrings."""
    tree = ast.parse(file.read_bytes(), file)
    for node in ast.walk(tree):
        for name, block in ast.iter_fields(node):
            if isinstance(block, list):
                setattr(node, name, [each for each in block if not _is_string_statement(each)])
    return ast.unparse(tree)


def _is_string_statement(node: object) -> bool:
    """Whether a syntax node is a statement of a string alone, such as a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
