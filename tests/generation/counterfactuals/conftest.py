"""The worker that tests run in their own process, or in one that they kill."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="session")
def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("counterfactuals_worker", WORKER)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
