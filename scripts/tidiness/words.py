"""Checks that texts and names use the project's vocabulary: words.py [-v]

Words that comments, messages and pages avoid have a standard term, which is named. Names of types and functions avoid
participles, pronouns and private words. `word` in budgets.toml allows an area some; it may only fall. -v prints all."""

import re
import sys
import tomllib
from collections import defaultdict

from texts import BUDGETS, ROOT, area, files, texts

# The word, as a regular expression, and its standard term.
WORDS = {
    r"look-ups?": "lookup",
    r"obituar(y|ies)": "removal reason",
    r"greetings?": "handshake",
    r"hand-?overs?|hands? over|handed over|handing over": "leadership transfer",
    r"go(es)? on|going on|went on": "continue",
    r"st(an|oo)ds? still": "pause",
    r"for want of": "because ... is unavailable",
    r"seldom": "rate-limited, rarely",
    r"obey(s|ed)?": "follow",
    r"desks?": "worker",
    r"has_until": "acknowledged watermark",
    r"does not belong (there|here)": "unexpected",
    r"not what it should be": "corrupt",
}
# Names of types.
TYPES = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) "
    r"(Told|Came|Begun|Landed|Elsewhere|What|Who|Gone|Whole|Asked|Taken|Given|Known|Turn|Beat|Greeting|Bell|Desk|Division|"
    r"HandOver|Handover|Obituary|Mark|Place|Copy|Wish|Passed|Routed|Came|Went|Left|Shown|Seen)\b",
    re.MULTILINE,
)
# Names of functions, tests and modules.
FUNCTIONS = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))? )?(?:async )?(?:fn|def|mod) "
    r"(\w*(?:nobody|somebody|whoever|hand_over|handover|obituar|greeting|elsewhere|meanwhile|anew|stands_still|stood_still)"
    r"\w*|(?:test_)?(?:what|who|that|those|it)_\w+)",
    re.MULTILINE,
)
ALLOWED_NAMES = set()
WORD_PATTERNS = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), term) for word, term in WORDS.items()]


def line_of(content, at):
    return content.count("\n", 0, at) + 1


def occurrences(path):
    """What is wrong with a file: the number of the line, the word, and the advice."""
    for text in texts(path):
        for word, term in WORD_PATTERNS:
            found = word.search(text.text)
            if found:
                yield text.number, found[0], f"write {term}"
    if path.endswith((".rs", ".py")):
        content = (ROOT / path).read_text()
        for pattern in (TYPES, FUNCTIONS):
            for found in pattern.finditer(content):
                if found[1] not in ALLOWED_NAMES:
                    advice = "name a type by a noun, a function by a verb, and a test by the behaviour"
                    yield line_of(content, found.start(1)), found[1], advice


def main():
    found = defaultdict(list)
    for path in files():
        if not path.startswith("scripts/tidiness/"):
            found[area(path)] += [f"{path}:{line}: “{word}”: {advice}" for line, word, advice in occurrences(path)]
    if sys.argv[1:] == ["-v"]:
        print("\n".join(line for lines in found.values() for line in lines))
        return 0
    budgets = {of: budget.get("word", 0) for of, budget in tomllib.loads(BUDGETS.read_text()).items()}
    failed = False
    for of in sorted(set(found) | set(budgets)):
        if len(found[of]) > budgets.get(of, 0):
            print("\n".join(found[of]))
            failed = True
        elif len(found[of]) < budgets.get(of, 0):
            print(f"budgets.toml allows {of} {budgets[of]} words: lower it to {len(found[of])}, or delete it")
    return failed


if __name__ == "__main__":
    sys.exit(main())
