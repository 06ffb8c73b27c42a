//! `docs/options.md`, whose tables are generated from `larderd --help`.
//!
//! `LARDER_WRITE_DOCS=1 cargo test -p larder-server --test it options_page` writes these tables.

use crate::common::pages::{check_documentation, replaced};
use std::fmt::Write as _;
use std::process::Command;

/// The description of an option or suboption in the help.
#[derive(Default)]
struct Entry {
    /// The names and the value, in Markdown.
    name: String,
    effect: String,
    default: String,
}

/// The options below one heading.
struct Section {
    heading: String,
    entries: Vec<Entry>,
}

/// Returns the option sections and the `-o` sections.
fn sections(help: &str) -> [Vec<Section>; 2] {
    let (options, extended) = help.split_once("\nExtended options").unwrap();
    let mut of_options = Vec::new();
    for paragraph in options.split("\n\n") {
        let mut lines = paragraph.lines().peekable();
        if let Some(heading) = lines.peek().and_then(|line| heading(line)) {
            of_options.push(Section { heading, entries: Vec::new() });
            lines.next();
        }
        let Some(Section { entries, .. }) = of_options.last_mut() else { continue };
        let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
        match lines.first() {
            // The paragraph starts with the names of an option, followed by the start of its
            // effect.
            Some(names) if names.trim_start().starts_with('-') && !is_value(names) => {
                entries.push(Entry { name: quoted_names(names), ..Entry::default() });
                add(entries, &lines[1..]);
            }
            Some(_) => add(entries, &lines),
            None => (),
        }
    }
    let mut of_extended: Vec<Section> = Vec::new();
    for line in extended.lines().skip(1) {
        if let Some(heading) = line.strip_prefix("  ").and_then(heading) {
            of_extended.push(Section { heading, entries: Vec::new() });
        } else if let Some((name, effect)) =
            line.trim_start().strip_prefix("- ").and_then(|line| line.split_once(':'))
        {
            let entry = Entry { name: format!("`{name}`"), ..Entry::default() };
            of_extended.last_mut().unwrap().entries.push(entry);
            add_words(&mut of_extended.last_mut().unwrap().entries, effect);
        } else if let Some(section) = of_extended.last_mut() {
            add_words(&mut section.entries, line);
        }
    }
    for entry in of_extended.iter_mut().flat_map(|section| &mut section.entries) {
        split_default(entry);
    }
    [of_options, of_extended]
}

/// Returns the text of a heading, which starts with a capital letter and ends with a colon. Returns
/// `None` for other lines.
fn heading(line: &str) -> Option<String> {
    let starts = line.starts_with(|first: char| first.is_ascii_uppercase());
    line.strip_suffix(':').filter(|_| starts).map(str::to_owned)
}

/// Returns whether a line explains a possible value.
fn is_value(line: &str) -> bool {
    line.trim_start().starts_with("- ")
}

/// Converts `-p, --port <NUM>` to `` `-p` `--port` NUM ``.
fn quoted_names(line: &str) -> String {
    let names = line.trim().replace("<", "").replace('>', "").replace(',', " ,");
    let words = names.split_whitespace().filter(|word| *word != ",");
    let word = |word: &str| match word.strip_suffix("...").unwrap_or(word) {
        name if name.starts_with('-') => format!("`{name}`"),
        _ => word.to_owned(),
    };
    words.map(word).collect::<Vec<_>>().join(" ").replace(" ,", ",")
}

/// Adds a paragraph to the last entry: a default, possible values, or a part of the effect.
fn add(entries: &mut [Entry], lines: &[&str]) {
    let Some(entry) = entries.last_mut() else { return };
    let mut text = String::new();
    for line in lines.iter().map(|line| line.trim()) {
        if line == "Possible values:" {
            continue;
        }
        if let Some((value, meaning)) =
            line.strip_prefix("- ").and_then(|line| line.split_once(':'))
        {
            write!(text, "<br>`{value}`: {}", meaning.trim()).unwrap();
        } else {
            text += if text.is_empty() { "" } else { " " };
            text += line;
        }
    }
    if let Some((before, default)) = text.split_once("[default: ") {
        let (default, after) = default.split_once(']').unwrap();
        let is_value = !default.contains([' ', '*']);
        entry.default = if is_value { format!("`{default}`") } else { default.to_owned() };
        text = format!("{}{after}", before.trim_end());
    }
    if !text.is_empty() && !entry.effect.is_empty() && !text.starts_with("<br>") {
        entry.effect += ". ";
    }
    entry.effect += text.trim_end_matches('.');
}

fn add_words(entries: &mut [Entry], line: &str) {
    let Some(entry) = entries.last_mut() else { return };
    for word in line.split_whitespace() {
        entry.effect += if entry.effect.is_empty() { "" } else { " " };
        entry.effect += word;
    }
}

/// Moves `(default: VALUE)` from the end of a suboption's effect to the entry's default.
fn split_default(entry: &mut Entry) {
    let effect = entry.effect.clone();
    if let Some((effect, default)) =
        effect.strip_suffix(')').and_then(|effect| effect.rsplit_once(" (default: "))
    {
        effect.clone_into(&mut entry.effect);
        default.clone_into(&mut entry.default);
    }
}

fn table(sections: &[Section], level: &str, first_column: &str) -> String {
    let mut text = String::new();
    for Section { heading, entries } in sections {
        write!(
            text,
            "\n{level} {heading}\n\n| {first_column} | effect | default |\n|---|---|---|\n"
        )
        .unwrap();
        for Entry { name, effect, default } in entries {
            let effect = effect.replace('|', "\\|");
            writeln!(text, "| {name} | {effect} | {default} |").unwrap();
        }
    }
    text
}

#[test]
fn the_page_of_options_is_generated_from_the_help() {
    let help = Command::new(env!("CARGO_BIN_EXE_larderd")).arg("--help").output().unwrap();
    // Remove trailing spaces: the lines between the paragraphs of an option consist of spaces.
    let help = String::from_utf8(help.stdout).unwrap();
    let help: String = help.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let [options, extended] = sections(&help);
    let generated = format!(
        "{}\n## Extended options (`-o`)\n\nA list, separated by commas. The names that memcached \
         lacks are marked as Larder's.\n{}\n",
        table(&options, "##", "option").trim_start(),
        table(&extended, "###", "name"),
    );
    check_documentation("docs/options.md", |text| replaced(text, "options", &generated));
}
