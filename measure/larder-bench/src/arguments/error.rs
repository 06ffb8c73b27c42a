//! Errors in option values.

/// An option whose value cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// The server's name does not resolve, or has no address of the family that `--ipv4` or
    /// `--ipv6` selects.
    #[error("the server name `{0}` does not resolve; give --server an IP address or another name")]
    NoAddress(String),
    /// The value is malformed or out of range, or conflicts with another option.
    #[error("--{option} {value}: expected {expected}")]
    Value {
        /// The option's long name, without dashes.
        option: &'static str,
        /// The invalid value.
        value: String,
        /// The accepted values, or the condition under which the option can be used.
        expected: &'static str,
    },
    /// The `--key-spaces` file cannot be used.
    #[error("--key-spaces {file}: {why}")]
    KeySpaces {
        /// The file's name.
        file: String,
        /// The error.
        why: String,
    },
}

pub(super) fn wrong(
    option: &'static str,
    value: impl ToString,
    expected: &'static str,
) -> ArgumentError {
    ArgumentError::Value { option, value: value.to_string(), expected }
}
