//! Expands placeholders such as `{port}` in commands.

/// The values of placeholders.
#[derive(Clone, Debug, Default)]
pub struct Values(Vec<(&'static str, String)>);

impl Values {
    /// Adds a placeholder.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// Returns example values for placeholders, to validate commands.
    #[must_use]
    pub fn examples(names: &[&'static str]) -> Self {
        names.iter().fold(Self::default(), |values, name| values.with(name, 1))
    }

    /// Adds the placeholders of a memory limit in MiB and in bytes.
    #[must_use]
    pub fn with_memory(self, memory_mb: u64) -> Self {
        self.with("memory_mb", memory_mb).with("memory_bytes", memory_mb << 20)
    }

    fn of(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// Replaces the placeholders in `text` with their values.
///
/// # Errors
/// The text has an unknown placeholder, or a `{` without `}`.
pub fn expand(text: &str, values: &Values) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) =
            after.split_once('}').ok_or_else(|| format!("`{text}` has a `{{` without `}}`"))?;
        expanded.push_str(before);
        expanded
            .push_str(values.of(name).ok_or_else(|| format!("unknown placeholder {{{name}}}"))?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Replaces the known placeholders in `text` with their values, and leaves all others unchanged.
#[must_use]
pub fn expand_known(text: &str, values: &Values) -> String {
    values
        .0
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_values() {
        let values = Values::default().with("port", 11).with("threads", 2);
        assert_eq!(expand("-p{port} x {threads}{threads}", &values).unwrap(), "-p11 x 22");
        assert_eq!(expand("plain", &values).unwrap(), "plain");
        assert!(expand("{nothing}", &values).unwrap_err().contains("{nothing}"));
        assert!(expand("{port", &values).is_err());
    }
}
