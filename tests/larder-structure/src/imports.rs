//! The imports among the files of a crate: a file imports from another file if it names an item
//! that the other file defines.
//!
//! The search follows re-exports to the file that defines the item. It ignores imports from the
//! crate's root, which lists the other files and re-exports their items.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A file as a path of module names: `["stats", "row"]` for `stats/row.rs` and `stats/row/mod.rs`.
type Module = Vec<String>;

/// The definitions and imports of a file.
#[derive(Default)]
struct File {
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
    /// Paths in its `use` declarations, one for each name.
    uses: Vec<Module>,
    /// Paths outside of `use` declarations.
    paths: Vec<Module>,
}

/// The files of a crate.
pub(crate) struct Imports(BTreeMap<Module, File>);

/// The keywords that precede the name of an item.
const ITEMS: [&str; 8] = ["struct", "enum", "union", "trait", "fn", "type", "const", "static"];

impl Imports {
    /// Reads the files below `src`, except tests, models and `main.rs`.
    pub(crate) fn read(src: &Path, files: &[std::path::PathBuf]) -> Self {
        let names = ["main", "tests", "crash_tests", "models", "loom_models"];
        let is_test = |module: &Module| module.iter().any(|part| names.contains(&part.as_str()));
        let mut modules = BTreeMap::new();
        for file in files {
            let relative = file.strip_prefix(src).unwrap().with_extension("");
            let mut module: Module =
                relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if is_test(&module) {
                continue;
            }
            module.pop_if(|last| last == "mod" || last == "lib");
            modules.insert(module, File::parse(&without_tests(&fs::read_to_string(file).unwrap())));
        }
        Self(modules)
    }

    /// Returns, for each file, the other files from which it imports, without the crate's root.
    pub(crate) fn edges(&self) -> BTreeMap<String, BTreeSet<String>> {
        let name = |module: &Module| module.join("/");
        let mut edges = BTreeMap::new();
        for (module, file) in self.0.iter().filter(|(module, _)| !module.is_empty()) {
            let targets = file.uses.iter().chain(&file.paths);
            let targets = targets.filter_map(|path| self.resolve(path, module, 0));
            let others = targets.filter(|target| target != module && !target.is_empty());
            edges.insert(name(module), others.map(|target| name(&target)).collect());
        }
        edges
    }

    /// Returns the file that defines the item at `path`, resolved relative to `from`. Returns
    /// `None` if the item belongs to another crate or was not found.
    fn resolve(&self, path: &[String], from: &Module, depth: usize) -> Option<Module> {
        let (mut module, mut rest) = (from.clone(), path);
        match rest.first()?.as_str() {
            "crate" => (module, rest) = (Module::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            _ => drop(self.child(&module, rest)?),
        }
        while let Some(child) = self.child(&module, rest) {
            (module, rest) = (child, &rest[1..]);
        }
        let Some(name) = rest.first().filter(|name| !["self", "*"].contains(&name.as_str())) else {
            return Some(module);
        };
        let file = self.0.get(&module)?;
        if file.items.contains(name) {
            return Some(module);
        }
        // Re-exports can form a cycle, so the search has a maximum depth.
        if depth > 8 {
            return None;
        }
        file.uses.iter().find_map(|path| {
            let (last, before) = path.split_last()?;
            if last == "*" {
                self.resolve(&[before, std::slice::from_ref(name)].concat(), &module, depth + 1)
            } else {
                (last == name).then(|| self.resolve(path, &module, depth + 1))?
            }
        })
    }

    fn child(&self, module: &Module, rest: &[String]) -> Option<Module> {
        let child = [module, rest.get(..1)?].concat();
        self.0.contains_key(&child).then_some(child)
    }
}

impl File {
    fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let mut file = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            let next = tokens.get(at + 1).copied().unwrap_or_default();
            if tokens[at] == "use" && next != "<" {
                at = file.parse_use(&tokens, at + 1, &[]);
                continue;
            }
            if ITEMS.contains(&tokens[at]) {
                file.items.insert(next.to_owned());
            }
            let start = at;
            while is_name(tokens[at]) && tokens.get(at + 1) == Some(&"::") && at + 2 < tokens.len()
            {
                at += 2;
            }
            // `pub(in path)` imports nothing.
            let is_visibility = start > 0 && tokens[start - 1] == "in";
            if at > start && !is_visibility {
                let names = tokens[start..=at].iter().step_by(2).filter(|token| is_name(token));
                file.paths.push(names.map(|name| (*name).to_owned()).collect());
            }
            at += 1;
        }
        file
    }

    /// Parses a tree of imports below `prefix`. Returns the index of the first token after the
    /// tree.
    fn parse_use(&mut self, tokens: &[&str], mut at: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        loop {
            match tokens.get(at).copied() {
                Some("::") => {}
                Some("as") => at += 1,
                Some("{") => loop {
                    at = self.parse_use(tokens, at + 1, &path);
                    match tokens.get(at).copied() {
                        Some(",") => {}
                        _ => return at + 1,
                    }
                },
                Some(name) if is_name(name) || name == "*" => path.push(name.to_owned()),
                _ => break,
            }
            at += 1;
        }
        if path.len() > prefix.len() {
            self.uses.push(path);
        }
        at
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns the text without its test module, which is at the end.
fn without_tests(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_attribute = |line: &&&str| line.starts_with("#[");
    let end = (0..lines.len()).find(|&at| {
        let item = lines[at..].iter().find(|line| !is_attribute(line));
        let is_test = lines[at].starts_with("#[cfg(") && lines[at].contains("test");
        is_test && item.is_some_and(|item| item.contains("mod ") && item.ends_with('{'))
    });
    lines[..end.unwrap_or(lines.len())].join("\n")
}

/// Splits code into names, `::` and the characters `{},;*<`. Drops comments, literals and all other
/// characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("r#\"") {
            rest.find("\"#").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            literal_len(rest, '"')
        } else if first == '\'' && is_char_literal(rest) {
            literal_len(rest, '\'')
        } else if is_name(rest) {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(len);
        if token == "::" || is_name(token) && !token.starts_with("r#") || "{},;*<".contains(token) {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

fn is_char_literal(text: &str) -> bool {
    text.starts_with("'\\") || text.chars().nth(2) == Some('\'')
}

/// Returns the length in bytes of the literal at the start of `text`, including its two quotation
/// marks.
fn literal_len(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == mark && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// Returns the files of a cycle in `edges`, with the first file repeated at the end, or `None` if
/// there is no cycle.
pub(crate) fn circle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    edges.keys().find_map(|start| {
        let mut before: BTreeMap<&String, &String> = BTreeMap::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            for other in &edges[file] {
                if other == start {
                    let steps = std::iter::successors(Some(file), |file| before.get(file).copied());
                    let mut circle: Vec<String> = steps.cloned().collect();
                    circle.reverse();
                    circle.push(start.clone());
                    return Some(circle);
                }
                if !before.contains_key(other) {
                    before.insert(other, file);
                    open.push(other);
                }
            }
        }
        None
    })
}
