//! The replies to `COMMAND`.

use super::element::{Version, array, bulk, integer, map, null};
use crate::resp::{COMMANDS, CommandFilter, Row, SUBCOMMANDS, matches};

/// Writes the reply to `COMMAND COUNT`.
pub fn command_count(out: &mut Vec<u8>) {
    integer(COMMANDS.len().cast_signed() as i64, out);
}

/// Writes the reply to `COMMAND LIST`.
pub fn command_list(filter: CommandFilter<'_>, out: &mut Vec<u8>) {
    let all = COMMANDS.iter().chain(&SUBCOMMANDS);
    let listed: Vec<_> = match filter {
        CommandFilter::All => COMMANDS.iter().collect(),
        CommandFilter::None => Vec::new(),
        CommandFilter::Pattern(pattern) => {
            let pattern = pattern.to_ascii_lowercase();
            all.filter(|row| matches(&pattern, row.name.as_bytes())).collect()
        }
    };
    array(listed.len(), out);
    listed.iter().for_each(|row| bulk(row.name.as_bytes(), out));
}

/// Writes the reply to `COMMAND DOCS`: an empty map.
pub fn command_docs(version: Version, out: &mut Vec<u8>) {
    map(version, 0, out);
}

/// Writes the reply to `COMMAND`.
pub fn commands(out: &mut Vec<u8>) {
    array(COMMANDS.len(), out);
    COMMANDS.iter().for_each(|row| command(row, out));
}

/// Writes the reply to `COMMAND INFO` for one name.
pub fn command_info(version: Version, name: &[u8], out: &mut Vec<u8>) {
    match Row::named(name) {
        Some(row) => command(row, out),
        None => null(version, out),
    }
}

/// Writes a command's name, arity and key positions. Flags and further fields are empty.
fn command(row: &Row, out: &mut Vec<u8>) {
    let (first, last, step) = row.keys;
    array(10, out);
    bulk(row.name.as_bytes(), out);
    integer(row.arity.into(), out);
    array(0, out);
    [first, last, step].into_iter().for_each(|number| integer(number.into(), out));
    (0..4).for_each(|_| array(0, out));
}
