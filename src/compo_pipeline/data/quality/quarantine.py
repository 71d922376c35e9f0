"""Rules over `facts`, checked by Great Expectations; quarantine, and a limit on its share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compo_pipeline.core.records import Caption, Rejected
from compo_pipeline.core.settings import PlainError
from compo_pipeline.core.tables import CARVED, HELD_OUT, Table
from compo_pipeline.data.quality.settings import DataValidationSettings, RowRule
from compo_pipeline.data.readers.record import NOT_BAD, UNPARSEABLE

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation


_SIZES = ["width", "height"]
_SHOWN = 20  # bad rows of a rule that results and errors name
_FIX = "Fix the data"
# By the column of a rule that no setting may lift: such rows are useless whatever the rules are.
_REMEDIES = {
    "decode_error": "Download the images that are missing or damaged and run the same command, "
    "which measures no other image again",
    "leaks": "Give each split images of its own, or name the same file for several splits "
    "(data.splits), which data.shares divides",
    "sentences": "Change ingest.sentences.least_words or ingest.sentences.most_words",
}
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


class TooManyBadRows(PlainError, ValueError):
    """Error: more records are bad than `validation.tolerated_share` allows."""


def broken_rules(facts: pd.DataFrame, rules: Mapping[str, RowRule]) -> pd.DataFrame:
    """Check all rows against the rules with Great Expectations.

    Args:
        facts: one row per caption row; `row` numbers them.
        rules: rules by name.

    Returns:
        `row`, `rule` and `column` of each fault, in the order of the rules. Of a row and a column
        the first alone counts: an image that is missing is not also one that does not decode.
    """
    import great_expectations as gx  # takes five seconds
    import pandas as pd
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

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
    import great_expectations.expectations as gxe

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


def quarantined(
    facts: pd.DataFrame, broken: pd.DataFrame, rules: Mapping[str, RowRule]
) -> list[Rejected]:
    """One quarantine entry per bad row, under the first rule that the row breaks.

    The detail says what was found, what was expected, and which other rules the row breaks.

    Args:
        facts: one row per caption row, in order.
        broken: rows with the rules that they break, of `broken_rules`.
        rules: rules by name.
    """
    of_row = broken.groupby("row")["rule"].agg(list)
    entries = []
    for values in facts.loc[facts["row"].isin(of_row.index)].to_dict("records"):
        first, *others = of_row[values["row"]]
        rule = rules[first]
        means = f" ({rule.means})" if rule.means else ""
        also = f"; also breaks {', '.join(others)}" if others else ""
        entries.append(
            Rejected(
                row=values["row"],
                sample_id=values["sample_id"],
                image=values["image"],
                rule=first,
                detail=f"{rule.column} is {values[rule.column]!r}, expected {rule.expected}"
                f"{means}{also}",
            )
        )
    return entries


def summary(
    rows: int,
    entries: Sequence[Rejected],
    broken: pd.DataFrame,
    settings: DataValidationSettings,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Number of bad records, in total and by rule, for results and errors.

    Records that were never downloaded, and images without a caption, are counted apart: they do not
    use up the tolerated share.

    Args:
        rows: caption rows that were checked.
        entries: quarantine, unparseable records included.
        broken: rows with the rules that they break, of `broken_rules`.
        settings: the rules.
        warnings: warnings of the captions as a whole.
    """
    absent = {rule: sum(entry.rule == rule for entry in entries) for rule in NOT_BAD}
    unused = sum(absent.values())
    rows_of = {str(name): own.tolist() for name, own in broken.groupby("rule")["row"]}
    examples: dict[str, str] = {}
    for entry in entries:
        examples.setdefault(entry.rule, f"{entry.image or entry.sample_id}: {entry.detail}")
    unparseable = sum(entry.row < 0 for entry in entries) - unused
    records, bad = rows + unparseable, len(entries) - unused
    return {
        "records": records,
        "bad": bad,
        "bad_share": bad / records if records else 0.0,
        "tolerated_share": settings.tolerated_share,
        "warnings": list(warnings),
        UNPARSEABLE: unparseable,
        "examples": examples,
        **absent,
        "rules": {
            name: {
                "column": rule.column,
                "means": rule.means,
                "broken_by": len(rows_of.get(name, ())),
                "rows": rows_of.get(name, [])[:_SHOWN],
            }
            for name, rule in settings.rules.items()
        },
    }


def most_frequent(entries: Sequence[Rejected]) -> str:
    """The most frequent reason of bad records, with one of them.

    Details are alike that differ in numbers and quoted values alone.
    """
    kinds = [(entry.rule, _VALUES.sub("", entry.detail)) for entry in entries]
    ((kind, count),) = Counter(kinds).most_common(1)
    example = entries[kinds.index(kind)]
    return f"{count} for the same reason, such as {example.sample_id}: {example.detail}"


def valid_captions(
    captions: Sequence[Caption], quarantine: Iterable[Rejected], result: Mapping[str, Any]
) -> Table[Caption]:
    """Caption rows that are not in quarantine, in their order.

    Args:
        captions: all rows.
        quarantine: the bad rows.
        result: the summary of the same validation.

    Raises:
        TooManyBadRows: more are bad than the settings tolerate, or all of them, or of a split.
        ValueError: the result is of other rows.
    """
    checked = result["records"] - result[UNPARSEABLE]
    if checked != len(captions):
        raise ValueError(
            f"{len(captions)} caption rows, but {checked} were validated: run ingest and "
            "validation again"
        )
    refuse_too_many(result)
    table, good = Table.of(captions, Caption), np.ones(len(captions), bool)
    bad = [entry for entry in quarantine if entry.row >= 0]
    good[[entry.row for entry in bad]] = False
    valid = table.where(good)
    there, left = (set(each.column("split").unique().to_pylist()) for each in (table, valid))
    for split in sorted(there - left - {CARVED, HELD_OUT}):
        reason = most_frequent([entry for entry in bad if table[entry.row].split == split])
        raise TooManyBadRows(f"data.splits.{split}: none of its rows is valid; {reason}")
    return valid


def refuse_too_many(result: Mapping[str, Any]) -> None:
    """Raise an error if more records are bad than `validation.tolerated_share` allows.

    Raises:
        TooManyBadRows: naming rules and rows, and where to look.
    """
    if result["records"] == 0:
        raise TooManyBadRows(
            "validation: the source holds no record whose image was downloaded; look at data.root"
        )
    if result["bad"] < result["records"] and result["bad_share"] <= result["tolerated_share"]:
        return
    found = {name: rule["broken_by"] for name, rule in result["rules"].items()}
    found[UNPARSEABLE] = result[UNPARSEABLE]
    lines = [
        f"  {name}: {count} records, such as {result['examples'].get(name, 'rows of other rules')}"
        for name, count in found.items()
        if count
    ]
    lines += [f"  {warning}" for warning in result["warnings"]]
    raise TooManyBadRows(
        f"validation: {result['bad']} of {result['records']} records are bad "
        f"({result['bad_share']:.1%}), validation.tolerated_share allows "
        f"{result['tolerated_share']:.1%}:\n" + "\n".join(lines) + "\n"
        f"Quarantine lists each with its reason, the Data Docs show them. {_advice(result)}"
    )


def _advice(result: Mapping[str, Any]) -> str:
    """Sentence on how to change data or settings so that the data pass the checks."""
    broken = {name: rule for name, rule in result["rules"].items() if rule["broken_by"]}
    ways = dict.fromkeys(_REMEDIES.get(rule["column"], _FIX) for rule in broken.values()) or {_FIX}
    advice = "; or ".join(ways)
    if optional := [name for name, rule in broken.items() if rule["column"] not in _REMEDIES]:
        name = max(optional, key=lambda name: broken[name]["broken_by"])
        advice += f"; or loosen or remove a rule (--params validation.rules.{name}=null)"
    if result["bad"] == result["records"]:
        return (
            f"{advice}. Raising validation.tolerated_share does not help: no record is left to "
            "train on."
        )
    share = math.ceil(100 * result["bad_share"]) / 100
    return f"{advice}; or tolerate more (validation.tolerated_share={share:g})."
