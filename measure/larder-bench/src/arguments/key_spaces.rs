//! The `--key-spaces` file. All fields except `name`, `share` and `keys` have the names and values
//! of command-line options.

use super::Arguments;
use super::error::ArgumentError;
use super::values::{range, ratio};
use crate::settings::KeySpace;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum number of key spaces. This limits memory: each key space has a pool of values, and
/// histograms in each thread.
const KEY_SPACES_MAX: usize = 100;

/// Names that key spaces cannot have, because rows of the results have these names.
const RESERVED: [&str; 3] = ["set", "get", "total"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "key-space", default)]
    key_spaces: Vec<Fields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Fields {
    name: String,
    share: u32,
    /// Number of keys.
    keys: u64,
    ratio: Option<String>,
    key_prefix: Option<String>,
    key_minimum: Option<u64>,
    key_pattern: Option<String>,
    key_stddev: Option<f64>,
    key_median: Option<f64>,
    key_zipf_exp: Option<f64>,
    data_size: Option<usize>,
    data_size_range: Option<String>,
    data_size_pattern: Option<String>,
    data_size_list: Option<String>,
    data_size_lognormal: Option<String>,
    expiry_range: Option<String>,
}

/// Reads the key spaces from a file. A missing ratio, key pattern, Zipf exponent or value size
/// defaults to that of `defaults`. The default key prefix is the name of the key space followed by
/// a hyphen. By default, key numbers start at 0 and values do not expire.
///
/// # Errors
/// The file cannot be read or is invalid, the shares add up to 0 or to 2^32 or more, or two key
/// spaces can have the same keys or the same row in the results.
pub(crate) fn read(file: &Path, defaults: &Arguments) -> Result<Vec<KeySpace>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let File { key_spaces } = toml::from_str(&text).map_err(|error| error.to_string())?;
    if key_spaces.is_empty() || key_spaces.len() > KEY_SPACES_MAX {
        return Err(format!("expected 1 to {KEY_SPACES_MAX} tables [[key-space]]"));
    }
    let spaces: Vec<KeySpace> = key_spaces
        .into_iter()
        .map(|fields| {
            let name = fields.name.clone();
            key_space(fields, defaults).map_err(|why| format!("key space `{name}`: {why}"))
        })
        .collect::<Result<_, _>>()?;
    let shares: u64 = spaces.iter().map(|space| u64::from(space.share)).sum();
    if shares == 0 {
        return Err("expected a share above 0".to_owned());
    }
    if shares > u64::from(u32::MAX) {
        return Err("expected shares with a sum below 2^32".to_owned());
    }
    check_rows(&spaces)?;
    check_prefixes(&spaces)?;
    Ok(spaces)
}

fn key_space(fields: Fields, defaults: &Arguments) -> Result<KeySpace, String> {
    let sizes = [
        fields.data_size.is_some(),
        fields.data_size_range.is_some(),
        fields.data_size_list.is_some(),
        fields.data_size_lognormal.is_some(),
    ];
    if sizes.into_iter().filter(|is_given| *is_given).count() > 1 {
        return Err("more than one field defines the sizes of values".to_owned());
    }
    if fields.data_size_pattern.as_ref().is_some_and(|pattern| pattern != "R" && pattern != "S")
        || fields.data_size_pattern.is_some() && fields.data_size_range.is_none()
    {
        return Err("data-size-pattern: expected R or S, and data-size-range".to_owned());
    }
    if fields.keys == 0 {
        return Err("keys must be at least 1".to_owned());
    }
    let minimum = fields.key_minimum.unwrap_or(0);
    let field = |name: &'static str| move |expected: String| format!("{name}: {expected}");
    let arguments = Arguments {
        key_prefix: fields.key_prefix.unwrap_or_else(|| format!("{}-", fields.name)),
        key_minimum: minimum,
        key_maximum: minimum
            .checked_add(fields.keys - 1)
            .ok_or("keys and key-minimum are too large")?,
        key_pattern: fields.key_pattern.unwrap_or_else(|| defaults.key_pattern.clone()),
        key_stddev: fields.key_stddev,
        key_median: fields.key_median,
        key_zipf_exp: fields.key_zipf_exp.unwrap_or(defaults.key_zipf_exp),
        data_size: fields.data_size.unwrap_or(defaults.data_size),
        data_size_range: fields
            .data_size_range
            .map(|text| range(&text))
            .transpose()
            .map_err(field("data-size-range"))?,
        data_size_pattern: fields.data_size_pattern,
        data_size_list: fields.data_size_list,
        data_size_lognormal: fields.data_size_lognormal,
        ..defaults.clone()
    };
    let wrong = |error: ArgumentError| error.to_string().trim_start_matches('-').to_owned();
    let ratio_of = |text: &str| ratio(text).map_err(field("ratio"));
    let expiry = fields.expiry_range.map(|text| range(&text)).transpose();
    Ok(KeySpace {
        share: fields.share,
        ratio: fields.ratio.as_deref().map_or(Ok(defaults.ratio), ratio_of)?,
        keys: arguments.keys().map_err(wrong)?,
        data_size: arguments.data_size().map_err(wrong)?,
        expiry: expiry.map_err(field("expiry-range"))?,
        name: fields.name,
    })
}

/// Checks that the names of result rows are distinct, and that they contain only characters that
/// are valid in file names.
fn check_rows(spaces: &[KeySpace]) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let mut rows: BTreeSet<String> = RESERVED.map(str::to_owned).into();
    for space in spaces {
        let name = &space.name;
        if name.is_empty() || !name.bytes().all(is_plain) {
            return Err(format!("key space `{name}`: a name has letters, digits, `-` and `_`"));
        }
        for row in [name.clone(), space.row("set"), space.row("get")] {
            if !rows.insert(row) {
                return Err(format!(
                    "key space `{name}`: another row of the results has this name"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that no key can belong to two key spaces: a prefix must not equal another prefix followed
/// by zero or more digits.
fn check_prefixes(spaces: &[KeySpace]) -> Result<(), String> {
    for one in spaces {
        for other in spaces.iter().filter(|other| other.name != one.name) {
            let rest = one.keys.prefix.strip_prefix(&other.keys.prefix);
            if rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())) {
                return Err(format!(
                    "the key spaces `{}` and `{}` can have the same keys; give them other prefixes \
                     (key-prefix)",
                    one.name, other.name
                ));
            }
        }
    }
    Ok(())
}
