"""Trade-off plot, axes and table of a WiSE-FT sweep, whatever sets were scored."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from compo_pipeline.pages import wise_ft_page

STARTS = {"composition": 50.0, "zero_shot": 70.0, "retrieval": 35.0}
SETS = {
    "composition": "SugarCrepe++ ITT average, Winoground group score",
    "zero_shot": "Zero-shot pets top-1",
    "retrieval": "COCO retrieval image to text R@5",
}


def frame(*roles: str) -> pd.DataFrame:
    """Means of some roles at three ratios, with a metric that is in none."""
    rows = [
        (ratio, "roles", "mean", role, STARTS[role] + step, SETS[role])
        for ratio, step in ((0.0, 0.0), (0.5, 3.0), (1.0, 4.0))
        for role in roles
    ]
    rows += [(ratio, "zero_shot", "top5", "pets", 99.0, "") for ratio in (0.0, 0.5, 1.0)]
    columns = ["ratio", "benchmark", "metric", "name", "value", "sets"]
    made = pd.DataFrame(rows, columns=columns)
    return made.assign(
        label=made.metric + " " + made["name"],
        low=made.value - 1,
        high=made.value + 1,
        measured_on="reported",
    )


def test_the_trade_off_is_the_means_of_the_roles() -> None:
    means = wise_ft_page.means_by_ratio(frame("retrieval", "composition", "zero_shot"))
    assert list(means.index) == [0.0, 0.5, 1.0]
    assert list(means.columns) == ["composition", "zero_shot", "retrieval"]
    assert list(means.loc[0.5]) == [53.0, 73.0, 38.0]


def test_the_page(approved: Callable[[str, str], None]) -> None:
    given = frame("composition", "retrieval").assign(headline=False, significance="above")
    given = given.assign(against_base=1.0, against_base_low=0.5, against_base_high=1.5)
    page = wise_ft_page.wise_ft_page(given, {"command": "kedro run"}, [], "")
    approved("wise_ft", str(page.files("wise_ft.html")["wise_ft.html"]))
    assert "there are none (tuning.benchmarks" in page.summary[0]


def test_the_chosen_ratio_costs_no_main_figure_on_the_validation_items() -> None:
    def figure(ratio: float, benchmark: str, gain: float, sure: bool) -> dict[str, Any]:
        metric, name = {"roles": ("mean", "composition"), "zero_shot": ("top1", "things")}[
            benchmark
        ]
        spread = 0.5 if sure else 9.0
        return {
            "ratio": ratio, "benchmark": benchmark, "metric": metric, "name": name,
            "headline": True, "against_base": gain, "measured_on": "validation",
            "against_base_low": gain - spread, "against_base_high": gain + spread,
            "significance": "above" if gain > spread else "level",
        }  # fmt: skip

    rows = [
        figure(0.2, "roles", 1.0, sure=True),
        figure(0.2, "zero_shot", 0.0, sure=True),
        figure(0.5, "roles", 3.0, sure=True),
        figure(0.5, "zero_shot", -2.0, sure=False),
        figure(1.0, "roles", 5.0, sure=True),
        figure(1.0, "zero_shot", -2.0, sure=True),
    ]
    # On the reported items another ratio is the best, which chooses nothing.
    reported = [
        {**row, "measured_on": "reported", "against_base": 9 - 2 * row["ratio"]}
        for row in rows
        if row["benchmark"] == "roles"
    ]
    chosen = wise_ft_page.describe_choice(pd.DataFrame([*rows, *reported]))
    assert chosen.startswith("Ratio 0.5, chosen on the validation items: there it is 3.0 points")
    assert chosen.endswith("On the reported items its composition is +8.0 [+2.5, +3.5]")
    assert wise_ft_page.describe_choice(pd.DataFrame(rows[-2:])).endswith(
        "no headline metric below the base"
    )
    assert "no set of composition" in wise_ft_page.describe_choice(pd.DataFrame(rows[1::2]))
    assert "there are none (tuning.benchmarks" in wise_ft_page.describe_choice(
        pd.DataFrame(reported)
    )
