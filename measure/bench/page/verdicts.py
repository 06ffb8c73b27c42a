"""Builds rows of the table of targets: figure, limit, results, and whether the results are within the limit.

Without results, a row has the text "not measured" and no verdict."""

# Rows for comparison have no target.
VERDICT = {True: "yes", False: "**no**", None: ""}
NOT_MEASURED = "not measured"


def beside(figure, values, unit=" ×"):
    return figure, "", "; ".join(f"{v:.2f}" for v in values) + unit if values else NOT_MEASURED, None


def at_most(figure, limit, values, unit=" ×"):
    if not values:
        return figure, f"≤ {limit}{unit}", NOT_MEASURED, None
    shown = (f"{v:,}" if isinstance(v, int) else f"{v:.2f}" for v in values)
    return figure, f"≤ {limit}{unit}", "; ".join(shown) + unit, max(values) <= limit


def at_least(figure, limit, values, unit=" ×"):
    if not values:
        return figure, f"≥ {limit}{unit}", NOT_MEASURED, None
    return figure, f"≥ {limit}{unit}", "; ".join(f"{v:.2f}" for v in values) + unit, min(values) >= limit
