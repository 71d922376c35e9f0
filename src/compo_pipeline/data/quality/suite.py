"""Rules over `facts`, checked by Great Expectations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.expectations.expectation import Expectation

from compo_pipeline.data.quality.settings import RowRule

_SIZES = ["width", "height"]


def check(facts: pd.DataFrame, rules: Mapping[str, RowRule]) -> pd.DataFrame:
    """Check all rows against the rules with Great Expectations.

    Args:
        facts: one row per caption row; `row` numbers them.
        rules: rules by name.

    Returns:
        `row`, `rule` and `column` of each fault, in the order of the rules. Of a row and a column
        the first alone counts: an image that is missing is not also one that does not decode.
    """
    # Without an explicit text column, one that is all empty would lose its type.
    frame = facts.assign(decode_error=facts["decode_error"].fillna("").astype("str"))
    # Sizes that were not measured break no rule: Great Expectations passes over nulls.
    frame[_SIZES] = frame[_SIZES].astype("Int64").mask(frame["decode_error"] != "")
    configuration = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    context = gx.get_context(mode="ephemeral", project_config=configuration)
    suite = gx.ExpectationSuite("rules")
    for name, rule in rules.items():
        suite.add_expectation(_expectation(name, rule))
    result = context.data_sources.pandas_default.read_dataframe(frame).validate(
        suite,
        result_format={
            "result_format": "COMPLETE",
            "unexpected_index_column_names": ["row"],
            "return_unexpected_index_query": False,
        },
    )
    rows_of = dict(_broken_rows(checked) for checked in result.results)
    faults = [(row, name, rule.column) for name, rule in rules.items() for row in rows_of[name]]
    return pd.DataFrame(faults, columns=["row", "rule", "column"]).drop_duplicates(
        ["row", "column"]
    )


def _expectation(name: str, rule: RowRule) -> Expectation:
    """Great Expectations' expectation for a rule."""
    common: dict[str, Any] = {"column": rule.column, "meta": {"rule": name}}
    if rule.values:
        return gxe.ExpectColumnValuesToBeInSet(value_set=list(rule.values), **common)
    if rule.pattern:
        return gxe.ExpectColumnValuesToNotMatchRegex(regex=rule.pattern, **common)
    return gxe.ExpectColumnValuesToBeBetween(min_value=rule.least, max_value=rule.most, **common)


def _broken_rows(checked: Any) -> tuple[str, list[int]]:
    """Name of a checked rule, and the numbers of the rows that break it.

    Raises:
        RuntimeError: the rule could not be evaluated.
    """
    name = checked.expectation_config.meta["rule"]
    failure = checked.exception_info
    if failure and failure.get("raised_exception"):
        raise RuntimeError(
            f"validation.rules.{name} could not be evaluated: {failure['exception_message']}"
        )
    found = checked.result.get("unexpected_index_list") or []
    return name, sorted(int(place["row"]) for place in found)
