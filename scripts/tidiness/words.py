"""Checks that texts and names use the project's vocabulary: words.py

Words that comments, messages and pages avoid have a standard term, which is named. Names of types and functions avoid
participles, pronouns and private words."""

import re
import sys

from texts import ROOT, files, texts

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


def line_of(content, at):
    return content.count("\n", 0, at) + 1


def main():
    failed = False
    words = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), term) for word, term in WORDS.items()]
    for path in files():
        if path.startswith("scripts/tidiness/"):
            continue
        for text in texts(path):
            for word, term in words:
                found = word.search(text.text)
                if found:
                    print(f"{path}:{text.number}: “{found[0]}”: write {term}")
                    failed = True
        if path.endswith((".rs", ".py")):
            content = (ROOT / path).read_text()
            for pattern in (TYPES, FUNCTIONS):
                for found in pattern.finditer(content):
                    if found[1] not in ALLOWED_NAMES:
                        print(f"{path}:{line_of(content, found.start(1))}: “{found[1]}”: use a noun for a type, a verb"
                              " for a function, and the behaviour for a test")
                        failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
