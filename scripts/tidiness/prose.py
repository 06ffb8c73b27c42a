"""Checks how often habits of a private dialect occur for each 1,000 lines of comments: prose.py [-v [AREA]]

LIMITS contains the limits for every crate and page. `scripts/tidiness/budgets.toml` allows an area more. A budget may
only fall, and the output names a budget that is higher than needed. -v prints each occurrence."""

import re
import sys
import tomllib
from collections import defaultdict

from texts import BUDGETS, area, files, texts

PATTERNS = {
    # The word starts a clause where a noun would be clearer. Questions do not count.
    "what": re.compile(r"\bwhat\b(?![^.]*\?)", re.IGNORECASE),
    "who": re.compile(r"\b(who|whom|whoever|nobody|somebody|everybody|told)\b", re.IGNORECASE),
    "connective": re.compile(
        r"\b(meanwhile|anew|for want of|all the same|by itself|by themselves|beside|as long as|thereby|hence)\b",
        re.IGNORECASE,
    ),
}
LIMITS = {"what": 10, "who": 5, "connective": 0}


def count():
    """Returns the occurrences by area and pattern, and the numbers of lines by area."""
    found, lines = defaultdict(list), defaultdict(float)
    for path in files():
        if path.startswith("scripts/tidiness/"):
            continue
        for text in texts(path):
            lines[area(path)] += text.lines
            for name, pattern in PATTERNS.items():
                found[area(path), name] += [text] * len(pattern.findall(text.text))
    return found, lines


def main():
    found, lines = count()
    if sys.argv[1:2] == ["-v"]:
        wanted = sys.argv[2] if len(sys.argv) > 2 else ""
        for (of, name), texts_found in sorted(found.items()):
            if of.startswith(wanted):
                for text in texts_found:
                    print(f"{text.path}:{text.number}: {name}: {text.text.strip()}")
        return 0
    budgets = tomllib.loads(BUDGETS.read_text())
    failed = False
    for of in sorted(lines):
        for name, limit in LIMITS.items():
            occurrences = len(found[of, name])
            # One occurrence is allowed in a short page, except for the patterns that are not allowed at all.
            allowed = max(limit * lines[of] / 1000, 1 if limit else 0)
            budget = budgets.get(of, {}).get(name)
            if budget is not None and (occurrences < budget or occurrences <= allowed):
                print(f"budgets.toml allows {of} {budget} of {name}: lower it to {occurrences}, or delete it")
            elif occurrences > max(allowed, budget or 0):
                print(f"{of}: {occurrences} of {name} in {lines[of]:.0f} lines; {max(allowed, budget or 0):.0f} allowed"
                      f" (python3 scripts/tidiness/prose.py -v {of})")
                failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
