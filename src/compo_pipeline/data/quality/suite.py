"""Rules over `facts`, checked by Great Expectations, which also writes its Data Docs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.checkpoint.actions import UpdateDataDocsAction
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.expectations.expectation import Expectation

from compo_pipeline.data.quality.settings import RowRule

_SITE = "captions"
_SIZES = ["width", "height"]


def check(facts: pd.DataFrame, rules: Mapping[str, RowRule], docs: Path) -> dict[str, list[int]]:
    """Check all rows against the rules with Great Expectations, and write its Data Docs.

    Args:
        facts: one row per caption row; `row` numbers them.
        rules: by name.
        docs: folder for the Data Docs.

    Returns:
        Per rule the numbers of the rows that break it, ascending.
    """
    context = gx.get_context(mode="ephemeral", project_config=_context_configuration(docs))
    # Without an explicit text column, one that is all empty would lose its type.
    frame = facts.assign(decode_error=facts["decode_error"].fillna("").astype("str"))
    # Sizes that were not measured break no rule: Great Expectations passes over nulls.
    frame[_SIZES] = frame[_SIZES].astype("Int64").mask(frame["decode_error"] != "")
    batch = (
        context.data_sources.add_pandas("captions")
        .add_dataframe_asset("facts")
        .add_batch_definition_whole_dataframe("all rows")
    )
    suite = context.suites.add(gx.ExpectationSuite("rules"))
    for name, rule in rules.items():
        suite.add_expectation(_expectation(name, rule))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="captions", data=batch, suite=suite)
    )
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name="captions",
            validation_definitions=[definition],
            actions=[UpdateDataDocsAction(name="docs", site_names=[_SITE])],
            result_format={
                "result_format": "COMPLETE",
                "unexpected_index_column_names": ["row"],
                "return_unexpected_index_query": False,
            },
        )
    )
    (result,) = checkpoint.run(batch_parameters={"dataframe": frame}).run_results.values()
    return dict(_broken_rows(checked) for checked in result.results)


def _expectation(name: str, rule: RowRule) -> Expectation:
    """Great Expectations' expectation for a rule."""
    common: dict[str, Any] = {
        "column": rule.column,
        "meta": {"rule": name},
        "notes": f"**{name}**: {rule.means}",
    }
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


def _context_configuration(docs: Path) -> DataContextConfig:
    """Configuration of an in-memory Great Expectations context, with a site of Data Docs."""
    site = {
        "class_name": "SiteBuilder",
        "site_name": _SITE,
        "show_how_to_buttons": False,
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(docs.resolve()),
        },
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    return DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        data_docs_sites={_SITE: site},
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
