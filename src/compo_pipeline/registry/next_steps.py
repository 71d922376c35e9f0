"""What to do after a gate's refusal."""

from __future__ import annotations

from collections.abc import Sequence

from compo_pipeline.registry.gate import Check


def next_steps(checks: Sequence[Check]) -> list[str]:
    """What failed, by which YAML key, and the ways on; empty where nothing failed.

    Args:
        checks: of the gate.
    """
    failed = [check for check in checks if not check.passed]
    if not failed:
        return []
    steps = [_failure(check) for check in failed]
    if any(check.numbers is not None for check in failed):
        steps.append(
            "Train another version: another method (`--params method=<name>`), another recipe "
            "(`--env=<name>`), or a mixture with the base: `kedro run --pipeline=wise_ft` shows "
            "what each ratio gains and costs, `kedro run --pipeline=train_eval --params "
            "training.wise_ft.ratio=<ratio>` registers one without training again."
        )
    # Several figures of one rule share its limit: the largest lets all of them pass.
    limits = sorted((check.enough, check.key) for check in failed if check.enough is not None)
    if limits:
        params = ",".join(f"{key}={limit:g}" for key, limit in {k: v for v, k in limits}.items())
        whole = "it passes" if len(limits) == len(failed) else "these rules pass"
        steps.append(
            f"Or accept the loss: `kedro run --pipeline=promotion --params {params}` with the "
            f"--env of the training, then {whole}; without --params the gate stays as it is."
        )
    steps.append("`--params promotion.dry_run=true` decides and reports, and changes nothing.")
    return steps


def _failure(check: Check) -> str:
    key = f" ({check.key})" if check.key else ""
    subject = f"{check.rule}, {check.subject}" if check.subject else check.rule
    found = check.numbers
    if found is None:
        return f"{subject}: {check.finding}{key}."
    moved = f"{found.difference:+.1f} points [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{subject}: {moved}; {check.finding}{key}."
