"""Formats figures and Markdown tables, and replaces sections of pages."""

import re
from statistics import median

from bench.servers import ROOT

PLOTS = ROOT / "docs/plots"


def replaced(text, name, found):
    """Replaces the section between two markers of a text."""
    marked = f"<!-- {name} -->\n\n{found.strip()}\n\n<!-- end of {name} -->"
    pattern = f"<!-- {name} -->.*<!-- end of {name} -->"
    assert re.search(pattern, text, re.S), f"the page has no section <!-- {name} -->"
    return re.sub(pattern, lambda _: marked, text, flags=re.S)


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def spread(values, unit=""):
    """Returns the median, with minimum and maximum in brackets."""
    low, mid, high = (short(value) for value in (min(values), median(values), max(values)))
    return f"{mid}{unit} ({low}–{high})"


def short(value):
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def mib(count):
    return f"{count / 2**20:,.0f}"
