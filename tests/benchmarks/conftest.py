"""The small worlds of the evaluation's tests."""

from tests.evaluation.conftest import embedded

__all__ = ["embedded"]
