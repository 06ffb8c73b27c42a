"""Checks that texts and names use the project's vocabulary: words.py [-v | --self-test]

Comments, messages and pages avoid some words. For each of them, the output names the standard term. Names of types,
functions, fields, parameters and constants avoid participles, pronouns and private words. budgets.toml allows each area
a number of occurrences: `word` in texts and in names of types and functions, and `name` in names of fields, parameters
and constants. These numbers may only fall. -v prints all occurrences."""

import ast
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
# Participles, pronouns and private words, written like names of types.
NAME_WORDS = (
    "Told Came Begun Landed Elsewhere What Who Gone Whole Asked Taken Given Known Turn Beat Greeting Bell Desk Division"
    " HandOver Handover Obituary Mark Place Copy Wish Passed Routed Came Went Left Shown Seen Death Fetching Limbo"
    " Misuse Holdings"
).split()
# Names of types.
TYPES = re.compile(
    rf"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) ({'|'.join(NAME_WORDS)})\b",
    re.MULTILINE,
)
# The same words as parts of other names, separated by underscores. `bytes_left` and `flash_copy` are standard.
SNAKE_WORDS = "|".join(
    re.sub(r"(?<!^)(?=[A-Z])", "_", word).lower() for word in NAME_WORDS if word not in ("Left", "Copy")
)
NAME_PATTERN = re.compile(rf"(?:^|_)(?:{SNAKE_WORDS})(?:_|$)", re.IGNORECASE)
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


def rust_names(content):
    """Yields the fields, parameters and constants that Rust code declares: position and name."""
    # Comments and literals keep their length, so that positions stay valid.
    code = re.sub(
        r"//[^\n]*|r(#*)\"(?:.|\n)*?\"\1|\"(?:[^\"\\]|\\(?:.|\n))*\"|'(?:[^'\\\n]|\\[^\n]+?)'",
        lambda found: re.sub(r"[^\n]", " ", found[0]),
        content,
    )
    for found in re.finditer(r"\b(?:const|static) (?:mut )?([A-Z]\w*):", code):
        yield found.start(1), found[1]
    for found in re.finditer(r"\b(?:struct|enum|union) \w+[^;({]*\{|\bfn \w+[^;({]*\(", code):
        opening = code[found.end() - 1]
        closing = "}" if opening == "{" else ")"
        at, depth = found.end(), 1
        while depth and at < len(code):
            depth += (code[at] == opening) - (code[at] == closing)
            at += 1
        for name in re.finditer(r"(?<![\w:'])([a-z_]\w*):(?!:)", code[found.end() : at]):
            yield found.end() + name.start(1), name[1]


def python_names(content):
    """Yields the parameters and constants that Python code declares: number of the line and name."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id.isupper():
                    yield node.lineno, target.id


def unsuitable_names(path):
    """Yields the fields, parameters and constants whose names are on the list: number of the line, name, and advice."""
    if not path.endswith((".rs", ".py")):
        return
    content = (ROOT / path).read_text()
    if path.endswith(".rs"):
        names = ((line_of(content, at), name) for at, name in rust_names(content))
    else:
        names = python_names(content)
    for number, name in sorted(set(names)):
        if NAME_PATTERN.search(name):
            yield number, name, "name it by a noun of the field"


def occurrences(path):
    """Yields the unsuitable words of a file: number of the line, word, and advice."""
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


def check(key, found, budgets):
    """Prints the areas with more than their budget. Returns whether any area exceeds its budget."""
    failed = False
    for of in sorted(set(found) | set(budgets)):
        allowed = budgets.get(of, {}).get(key, 0)
        if len(found[of]) > allowed:
            print("\n".join(found[of]))
            failed = True
        elif len(found[of]) < allowed:
            print(f"budgets.toml allows {of} {key} = {allowed}: lower it to {len(found[of])}, or delete it")
    return failed


def self_test():
    rust = """
        const WISH_MAX: usize = 1; // const PLACE: usize
        struct A<T> where T: Copy { told_until: u64, b: [u8; 2] }
        enum C { D { place: u64 }, E }
        fn f(mut desk: &str, (g, h): (u8, u8)) -> A { let text = "fn i(place: u8)"; A { mark: 1 } }
    """
    names = [name for _, name in rust_names(rust)]
    assert names == ["WISH_MAX", "told_until", "b", "place", "desk"], names
    names = [name for _, name in python_names("DESK = 1\ndesk = 2\ndef f(place, *, g=1): return lambda told: 1")]
    assert sorted(names) == ["DESK", "g", "place", "told"], names
    assert NAME_PATTERN.search("told_until") and NAME_PATTERN.search("HAND_OVER") and not NAME_PATTERN.search("replace")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    words, names = defaultdict(list), defaultdict(list)
    for path in files():
        if not path.startswith("scripts/tidiness/"):
            of = area(path)
            words[of] += [f"{path}:{line}: “{word}”: {advice}" for line, word, advice in occurrences(path)]
            names[of] += [f"{path}:{line}: “{name}”: {advice}" for line, name, advice in unsuitable_names(path)]
    if sys.argv[1:] == ["-v"]:
        print("\n".join(line for found in (words, names) for lines in found.values() for line in lines))
        return 0
    budgets = tomllib.loads(BUDGETS.read_text())
    return check("word", words, budgets) | check("name", names, budgets)


if __name__ == "__main__":
    sys.exit(main())
