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
    """Sixteen hexadecimal digits of modules and of what they import of their package and this one.

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
    """Modules and what they import of their package and this one, as `code_fingerprint` does."""
    return set[str]().union(*map(_imported, modules))


@cache
def _imported(module: str) -> frozenset[str]:
    """A module, what it imports of its package and this one, and the packages that these are in."""
    package = module.partition(".")[0]
    if _folder(package) is None:
        return frozenset({module})
    graph = _graph(*dict.fromkeys((package, _OWN)))
    names = {module} | graph.find_descendants(module)
    if module != package:
        names |= graph.find_upstream_modules(module, as_package=True)
    names |= {name[:place] for name in names for place, sign in enumerate(name) if sign == "."}
    return frozenset(names)


@cache
def _graph(*packages: str) -> grimp.ImportGraph:
    """Which module imports which."""
    # Its cache would be a folder in the working directory.
    return grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    """The file of a module or package."""
    package, _, rest = module.partition(".")
    folder = _folder(package)
    if folder is None:
        return Path(str(sys.modules[module].__file__))
    place = folder.joinpath(*rest.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _folder(package: str) -> Path | None:
    """The folder of a package; None for a module that is none, such as a script."""
    if package in sys.modules and not hasattr(sys.modules[package], "__path__"):
        return None
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


@cache
def _code_without_docs(file: Path, _changed: int) -> str:
    """The source of a file in one layout, without comments and string statements."""
    tree = ast.parse(file.read_bytes(), file)
    for node in ast.walk(tree):
        for name, block in ast.iter_fields(node):
            if isinstance(block, list):
                setattr(node, name, [each for each in block if not _is_string_statement(each)])
    return ast.unparse(tree)


def _is_string_statement(node: object) -> bool:
    """Whether a statement is a string alone, such as a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
