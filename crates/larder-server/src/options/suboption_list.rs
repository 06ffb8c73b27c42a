//! The parser of the `-o` list: memcached's extended options. The rows of `suboption_table.rs`
//! define the values and effects.

use super::flash::FlashFile;
use super::refusal::{OptionsRefusal, USAGE};
use super::suboption_table::{Effect, Row, TABLE, Value, ValueSyntax};
use super::suboptions::Suboptions;
use super::values::number;
use std::fmt::Write;

impl Suboptions {
    /// Parses the values of all `-o` options. Each value is a comma-separated list.
    ///
    /// # Errors
    /// [`OptionsRefusal`] for the first suboption that is refused, with memcached's message where
    /// memcached has one.
    pub fn parse<'t>(lists: impl IntoIterator<Item = &'t str>) -> Result<Self, OptionsRefusal> {
        let mut options = Self::default();
        for list in lists {
            // As in memcached, a list can be empty or end with a comma.
            let list = list.trim();
            let front = list.strip_suffix(',').filter(|front| !front.is_empty()).unwrap_or(list);
            for text in front.split(',').filter(|_| !list.is_empty()) {
                options.take(text.trim())?;
            }
        }
        options.check()?;
        options.without_effect.extend(options.flash.without_effect());
        Ok(options)
    }

    fn take(&mut self, text: &str) -> Result<(), OptionsRefusal> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let Some(row) = TABLE.iter().find(|row| row.name == name) else {
            return refuse(1, format!("Illegal suboption \"{text}\""));
        };
        let status = if matches!(row.takes, ValueSyntax::SlabSizes) { USAGE } else { 1 };
        let value = row.check(value).or_else(|message| refuse(status, message))?;
        if row.name.starts_with("ext_") {
            self.flash.given.push(row.name);
        }
        match row.does {
            Effect::Set(_, set) => set(self, &value),
            Effect::Nothing(reason) => self.without_effect.push((row.name, reason)),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), OptionsRefusal> {
        if self.shown.hot_lru_pct + self.shown.warm_lru_pct > 80 {
            let message = "hot_lru_pct + warm_lru_pct cannot be more than 80% combined";
            return refuse(USAGE, message.to_owned());
        }
        self.flash.check()
    }
}

fn refuse<T>(status: u8, message: String) -> Result<T, OptionsRefusal> {
    Err(OptionsRefusal { message, status })
}

impl Row {
    /// Parses the value. `None` and an empty string both mean that no value is given.
    ///
    /// # Errors
    /// The reason for the refusal, with memcached's message where memcached has this option.
    fn check<'t>(&self, given: Option<&'t str>) -> Result<Value<'t>, String> {
        let value = |text| Value { text, number: 0, fraction: 0.0 };
        match (&self.takes, given.filter(|text| !text.is_empty())) {
            (ValueSyntax::Nothing, _) => Ok(value("")),
            (ValueSyntax::Switch(..), None) => Ok(Value { number: 1, ..value("") }),
            (_, None) => Err(self.missing()),
            (ValueSyntax::Text, Some(text)) => Ok(value(text)),
            (ValueSyntax::SlabSizes, Some(text)) => check_slab_sizes(text).map(|()| value(text)),
            (ValueSyntax::FlashFile, Some(text)) => FlashFile::parse(text).map(|_| value(text)),
            (ValueSyntax::Word(known, wrong), Some(text)) => {
                let known = known.iter().any(|word| word.eq_ignore_ascii_case(text));
                if known { Ok(value(text)) } else { Err((*wrong).to_owned()) }
            }
            (ValueSyntax::Number(range, wrong) | ValueSyntax::Switch(range, wrong), Some(text)) => {
                let number = number(text).map_err(|_| self.unreadable())?;
                let value = Value { number, ..value(text) };
                if range.contains(&number) { Ok(value) } else { Err((*wrong).to_owned()) }
            }
            (ValueSyntax::Real, Some(text)) => {
                let fraction = number(text).map_err(|_| self.unreadable())?;
                Ok(Value { fraction, ..value(text) })
            }
            (ValueSyntax::Fraction(max, wrong), Some(text)) => {
                let fraction: f64 = number(text).map_err(|_| self.unreadable())?;
                let fits = fraction > 0.0 && fraction <= *max;
                if fits { Ok(Value { fraction, ..value(text) }) } else { Err((*wrong).to_owned()) }
            }
        }
    }

    fn missing(&self) -> String {
        match self.name {
            "hashpower" | "tail_repair_time" | "idle_timeout" => {
                format!("Missing numeric argument for {}", self.name)
            }
            "lru_crawler_sleep" | "lru_crawler_tocrawl" => format!("Missing {} value", self.name),
            "ext_path" => "missing argument to ext_path, ie: ext_path=/d/file:5G".to_owned(),
            name => format!("Missing {name} argument"),
        }
    }

    fn unreadable(&self) -> String {
        format!("could not parse argument to {}", self.name)
    }
}

/// Checks a list of slab sizes, such as `100-200`. memcached also refuses sizes that do not fit
/// `-n` and `-I`.
///
/// # Errors
/// The reason for the refusal, with memcached's message.
fn check_slab_sizes(list: &str) -> Result<(), String> {
    const CLASSES_MAX: usize = 63;
    const ALIGNMENT: u64 = 8;
    let (mut last, mut count) = (0, 0);
    for text in list.split('-').filter(|text| !text.is_empty()) {
        let size = number(text).unwrap_or(0);
        if !(1..=u64::from(u32::MAX)).contains(&size) {
            return Err(format!("slab size {size} is out of valid range"));
        }
        if size <= last {
            return Err(format!(
                "slab size {size} cannot be lower than or equal to a previous class size"
            ));
        }
        if count > 0 && size <= last + ALIGNMENT {
            return Err(format!(
                "slab size {size} must be at least {ALIGNMENT} bytes larger than previous class"
            ));
        }
        (last, count) = (size, count + 1);
        if count >= CLASSES_MAX {
            return Err("too many slab classes specified".to_owned());
        }
    }
    Ok(())
}

/// Returns the names of all suboptions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.name)
}

/// Returns the part of `--help` that explains all suboptions, grouped under headings.
pub(super) fn help() -> String {
    let mut text = "Extended options (-o), a list separated by commas:\n".to_owned();
    for heading in ["Connections and items", "Flash", "TLS", "No effect"] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n  {heading}:");
        for row in TABLE.iter().filter(|row| row.heading() == heading) {
            let (Effect::Set(help, _) | Effect::Nothing(help)) = row.does;
            let _ = writeln!(text, "   - {:<24} {help}", format!("{}:", row.name));
        }
    }
    text
}

impl Row {
    /// Returns the heading in the help.
    fn heading(&self) -> &'static str {
        match self.does {
            Effect::Nothing(_) => "No effect",
            Effect::Set(..) if self.name.starts_with("ext_") => "Flash",
            Effect::Set(..) if self.name.starts_with("ssl_") => "TLS",
            Effect::Set(..) => "Connections and items",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_support::tls::{KeyFormat, Tls, VerifyMode, Version};

    fn parse(list: &str) -> Suboptions {
        Suboptions::parse([list]).unwrap()
    }

    fn refused(list: &str) -> (u8, String) {
        let OptionsRefusal { message, status } = Suboptions::parse([list]).unwrap_err();
        (status, message)
    }

    #[test]
    fn the_later_of_two_counts() {
        assert!(parse("no_maxconns_fast,maxconns_fast").maxconns_fast);
        let options = Suboptions::parse(["idle_timeout=5,no_lru_crawler", "idle_timeout=7"]);
        let options = options.unwrap();
        assert_eq!((options.idle_timeout, options.lru_crawler), (7, false));
        assert_eq!([parse(""), parse(" ")], [Suboptions::default(), Suboptions::default()]);
        assert_eq!(parse("no_lru_crawler,"), parse("no_lru_crawler"));
        assert_eq!(parse("slab_sizes=100-109").without_effect.len(), 1);
    }

    #[test]
    fn white_space_around_numbers_is_ignored() {
        let options = parse(
            "idle_timeout= 5,slab_automove=\t1,slab_automove_ratio= 0.5,ext_max_frag=\n0.25 ,\
             slab_sizes= 100 - 200",
        );
        let shown = &options.shown;
        assert_eq!((options.idle_timeout, shown.slab_automove), (5, 1));
        assert_eq!((shown.slab_automove_ratio, options.flash.settings.max_frag), (0.5, 0.25));
        assert_eq!(refused("idle_timeout= x").1, "could not parse argument to idle_timeout");
        assert_eq!(refused("hash_algorithm= xxh3").0, 1);
    }

    #[test]
    fn old_defaults_are_those_of_1_4() {
        let options = parse("no_modern");
        assert!(!options.maxconns_fast && !options.lru_crawler);
        assert!(parse("no_modern,maxconns_fast").maxconns_fast);
    }

    #[test]
    fn tls_is_read() {
        let tls = parse(
            "ssl_chain_cert=/a b.pem,ssl_key=k=1,ssl_keyformat=der,ssl_verify_mode=2,\
             ssl_ca_cert=ca,ssl_min_version=3,ssl_session_cache,ssl_handshake_timeout=5",
        )
        .tls;
        let expected = Tls {
            chain_cert: Some("/a b.pem".into()),
            key: Some("k=1".into()),
            key_format: KeyFormat::Der,
            ca_cert: Some("ca".into()),
            verify_mode: VerifyMode::Require,
            min_version: Version::Tls13,
            session_cache: true,
            wbuf_size: 16 << 10,
            handshake_timeout: Some(5),
        };
        assert_eq!(tls, expected);
    }

    #[test]
    fn invalid_suboptions_are_refused_with_memcacheds_messages() {
        for (list, status, said) in [
            ("frob=1", 1, "Illegal suboption \"frob=1\""),
            ("idle_timeout", 1, "Missing numeric argument for idle_timeout"),
            ("idle_timeout=x", 1, "could not parse argument to idle_timeout"),
            ("hot_lru_pct", 1, "Missing hot_lru_pct argument"),
            ("hot_lru_pct=90", 1, "hot_lru_pct must be > 1 and < 80"),
            ("hot_lru_pct=50,warm_lru_pct=50", 64, "cannot be more than 80% combined"),
            ("warm_max_factor=0", 1, "warm_max_factor must be > 0"),
            ("slab_automove=3", 1, "slab_automove must be between 0 and 2"),
            ("lru_crawler_sleep=1000001", 1, "LRU crawler sleep must be between 0 and 1 second"),
            ("ssl_verify_mode=4", 1, "Invalid ssl_verify_mode. Use help to see valid options."),
            (",", 1, "Illegal suboption \"\""),
            ("modern,,no_modern", 1, "Illegal suboption \"\""),
            ("slab_sizes=", 64, "Missing slab_sizes argument"),
            ("slab_sizes=x", 64, "slab size 0 is out of valid range"),
            ("slab_sizes=100-0", 64, "slab size 0 is out of valid range"),
            ("slab_sizes=200-100", 64, "cannot be lower than or equal to a previous class size"),
            ("slab_sizes=100-108", 64, "must be at least 8 bytes larger than previous class"),
            ("hash_algorithm=md5", 1, "Unknown hash_algorithm option"),
        ] {
            let (found, message) = refused(list);
            assert_eq!(found, status, "{list}");
            assert!(message.contains(said), "{list}: {message}");
        }
    }

    #[test]
    fn suboptions_without_effect_are_listed() {
        let options = parse("hashpower=20,slab_reassign,ext_max_frag=0");
        let names: Vec<&str> = options.without_effect.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["hashpower", "slab_reassign", "ext_max_frag"]);
        assert!(help().contains("   - ext_path:"));
    }
}
