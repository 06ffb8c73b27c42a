#!/usr/bin/env python3
"""A preprocessor for mdBook that redirects links to files outside docs/ to the repository on the web. docs/book.toml
runs it."""

import json
import posixpath
import re
import sys

REPOSITORY = "https://github.com/larder-cache/larder/blob/main/"
LINK = re.compile(r"\]\((?P<path>\.\./[^)\s]+)\)")


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "supports":
        sys.exit(0)
    _, book = json.load(sys.stdin)
    for item in book.get("items", book.get("sections", ())):
        rewrite(item)
    json.dump(book, sys.stdout)


def rewrite(item):
    chapter = item.get("Chapter") if isinstance(item, dict) else None
    if chapter is None:
        return
    folder = posixpath.dirname(posixpath.join("docs", chapter["path"] or ""))

    def repository_link(match):
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        return match[0] if path.startswith("docs/") else f"]({REPOSITORY}{path})"

    chapter["content"] = LINK.sub(repository_link, chapter["content"])
    for inner in chapter["sub_items"]:
        rewrite(inner)


if __name__ == "__main__":
    main()
