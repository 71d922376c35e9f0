"""Trade-off plot, axes and table of a WiSE-FT sweep, whatever sets were scored."""

from collections.abc import Callable

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
