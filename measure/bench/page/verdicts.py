"""Rows of the table of targets: figure, limit, results, and whether they are within the limit."""

# Rows for comparison have no target.
VERDICT = {True: "yes", False: "**no**", None: ""}


def beside(what, values, unit=" ×"):
    return what, "", "; ".join(f"{v:.2f}" for v in values) + unit, None


def at_most(what, limit, values, unit=" ×"):
    shown = (f"{v:,}" if isinstance(v, int) else f"{v:.2f}" for v in values)
    return what, f"≤ {limit}{unit}", "; ".join(shown) + unit, max(values) <= limit


def at_least(what, limit, values, unit=" ×"):
    return what, f"≥ {limit}{unit}", "; ".join(f"{v:.2f}" for v in values) + unit, min(values) >= limit
