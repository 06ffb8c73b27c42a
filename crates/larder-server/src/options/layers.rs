//! Merges the sources of options. The command line overrides the environment, which overrides the
//! file. Settings from the environment and the file are converted to command-line arguments, so one
//! parser handles all sources.

use super::file::{self, Fault, RawValue};
use super::values::number;
use super::{Options, OptionsError, OptionsRefusal, Suboptions, words};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Parser};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// An option from the environment or the file.
#[derive(Debug)]
struct Setting {
    /// The ID of the option in clap.
    id: String,
    /// The setting as command-line arguments.
    words: Vec<String>,
    /// The source, for messages: `larder.toml:3: memory-limit`.
    origin: String,
}

impl Options {
    /// Reads the command line, the environment, and the file of `--config` or `LARDER_CONFIG`.
    ///
    /// # Errors
    /// [`OptionsError`]: a request for help or the version, or a refusal.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, OptionsError> {
        let arguments = arguments.into_iter().collect();
        let mut options = read(arguments, |name| std::env::var_os(name))?;
        // A daemon changes its working directory, so a relative path would later name another file.
        if options.daemon && !options.enable_coredumps {
            options.make_paths_absolute();
        }
        Ok(options)
    }
}

/// Reads and merges the command line, the environment and the file.
///
/// # Errors
/// See [`Options::read`].
fn read(
    arguments: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Options, OptionsError> {
    let command = Options::full_command();
    let arguments = words::trimmed(&command, arguments);
    let matches = command.clone().try_get_matches_from(&arguments).map_err(OptionsError::Clap)?;
    let path = matches.get_one::<PathBuf>("config").map(|path| path.clone().into_os_string());
    let path = path.or_else(|| environment("LARDER_CONFIG").filter(|path| !path.is_empty()));
    let mut settings = match &path {
        Some(path) => from_file(&command, Path::new(path))?,
        None => Vec::new(),
    };
    let above = from_environment(&command, environment)?;
    settings.retain(|below| above.iter().all(|setting| setting.id != below.id));
    settings.extend(above);
    settings.retain(|setting| !is_given(&matches, &setting.id));
    settings.iter().try_for_each(check_alone)?;
    let all = |without: Option<usize>| parse(&arguments, &settings, without);
    all(None).map_err(|error| blame(error, &settings, |index| all(Some(index))))
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

fn parse(
    arguments: &[OsString],
    settings: &[Setting],
    without: Option<usize>,
) -> Result<Options, OptionsError> {
    let kept = settings.iter().enumerate().filter(|(index, _)| Some(*index) != without);
    let words = kept.flat_map(|(_, setting)| &setting.words).map(OsString::from);
    let (program, rest) = arguments.split_at(arguments.len().min(1));
    Options::read_words(program.iter().cloned().chain(words).chain(rest.iter().cloned()))
}

/// Adds the source of a refusal to its message: the environment variable or the line of the file
/// that causes it. To find the source, omits one setting after another and parses the options
/// again. The source is the first setting whose omission avoids this refusal. If there is no such
/// setting, returns the error unchanged.
fn blame(
    error: OptionsError,
    settings: &[Setting],
    parse_without: impl Fn(usize) -> Result<Options, OptionsError>,
) -> OptionsError {
    let OptionsError::Refused(refusal) = &error else { return error };
    let guilty = settings.iter().enumerate().find(|(index, _)| match parse_without(*index) {
        Err(OptionsError::Refused(other)) => other != *refusal,
        _ => true,
    });
    match guilty {
        Some((_, setting)) => refuse(refusal.status, &setting.origin, &refusal.message),
        None => error,
    }
}

/// Refuses a setting that is invalid regardless of the other settings.
fn check_alone(setting: &Setting) -> Result<(), OptionsError> {
    let words = std::iter::once("larderd").chain(setting.words.iter().map(String::as_str));
    let options = Options::try_parse_from(words)
        .map_err(|error| refuse(1, &setting.origin, &first_line(&error)))?;
    Suboptions::parse(options.extended.iter().map(String::as_str))
        .map_err(|refusal| refuse(refusal.status, &setting.origin, &refusal.message))?;
    Ok(())
}

fn refuse(status: u8, origin: &str, message: &str) -> OptionsError {
    OptionsError::Refused(OptionsRefusal { message: format!("{origin}: {message}"), status })
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn from_file(command: &Command, path: &Path) -> Result<Vec<Setting>, OptionsError> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(1, &format!("cannot read {name}"), &error.to_string()))?;
    let at = |line: usize| format!("{name}:{line}");
    let fault = |Fault { line, message }| refuse(1, &at(line), &message);
    let mut settings: Vec<Setting> = Vec::new();
    for entry in file::entries(&text).map_err(fault)? {
        let origin = format!("{}: {}", at(entry.line), entry.key);
        let Some(arg) = find(command, &entry.key) else {
            return Err(refuse(1, &origin, "unknown option"));
        };
        let setting = setting(arg, entry.given, origin)?;
        let list = matches!(arg.get_action(), ArgAction::Append);
        if !list && settings.iter().any(|other| other.id == setting.id) {
            return Err(refuse(1, &setting.origin, "duplicate option"));
        }
        settings.push(setting);
    }
    Ok(settings)
}

fn from_environment(
    command: &Command,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<Setting>, OptionsError> {
    let mut settings = Vec::new();
    for arg in command.get_arguments().filter(|arg| is_option(arg)) {
        let name = format!("LARDER_{}", dashed(long(arg)).replace('-', "_").to_uppercase());
        let Some(value) = environment(&name).filter(|value| !is_service_link(value)) else {
            continue;
        };
        let Some(value) = value.to_str().map(words::trimmed_value) else {
            return Err(refuse(1, &name, "not UTF-8"));
        };
        // For an omitted value, Helm charts set the variable to an empty string. For the delimiter,
        // a single space is a valid value.
        let is_blank = value.is_empty() || value == " " && arg.get_id() != "prefix_delimiter";
        if is_blank && !matches!(arg.get_action(), ArgAction::SetTrue) {
            continue;
        }
        let given = match (arg.get_action(), value.to_ascii_lowercase().as_str()) {
            (ArgAction::SetTrue, "1" | "true" | "yes" | "on") => RawValue::Flag(true),
            (ArgAction::SetTrue, "0" | "false" | "no" | "off" | "") => RawValue::Flag(false),
            _ => RawValue::One(value.to_owned()),
        };
        settings.push(setting(arg, given, name)?);
    }
    Ok(settings)
}

/// Returns whether Kubernetes has set the variable. For example, Kubernetes sets
/// `LARDER_PORT=tcp://10.0.0.7:11211` for a service named `larder`, and
/// `LARDER_UDP_PORT=udp://10.0.0.7:11211` for a service named `larder-udp`.
fn is_service_link(value: &OsStr) -> bool {
    let schemes = ["tcp://", "udp://", "sctp://"];
    value.to_str().is_some_and(|value| schemes.iter().any(|scheme| value.starts_with(scheme)))
}

/// Converts a value to command-line arguments. Removes white space around it, as on the command
/// line.
fn setting(arg: &Arg, given: RawValue, origin: String) -> Result<Setting, OptionsError> {
    let option = format!("--{}", long(arg));
    let with = |value: &String| format!("{option}={}", words::trimmed_value(value));
    let words = match (arg.get_action(), &given) {
        (ArgAction::SetTrue | ArgAction::Count, RawValue::Flag(true)) => vec![option],
        (ArgAction::SetTrue | ArgAction::Count, RawValue::Flag(false)) => Vec::new(),
        (ArgAction::SetTrue, _) => return Err(refuse(1, &origin, "must be true or false")),
        (ArgAction::Count, RawValue::One(text)) => match number::<u8>(text) {
            Ok(number) => vec![option; number.into()],
            Err(_) => return Err(refuse(1, &origin, "must be a small number")),
        },
        (ArgAction::Append, RawValue::Many(values)) => values.iter().map(with).collect(),
        (ArgAction::Append | ArgAction::Set, RawValue::One(value)) => vec![with(value)],
        _ => return Err(refuse(1, &origin, "must be one value")),
    };
    Ok(Setting { id: arg.get_id().to_string(), words, origin })
}

fn find<'c>(command: &'c Command, key: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|arg| is_option(arg) && dashed(long(arg)) == dashed(key))
}

/// Returns whether the environment and the file can set an option. They cannot set the path of the
/// file, or an option that prints information and exits.
fn is_option(arg: &Arg) -> bool {
    let excluded = ["help", "version", "license", "config", "check-config", ""];
    !excluded.contains(&long(arg)) && !arg.is_positional()
}

fn long(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(file: &str, environment: &[(&str, &str)], line: &str) -> Result<Options, String> {
        let path = std::env::temp_dir().join(format!(
            "larder-layers-{}-{:?}.toml",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&path, file).unwrap();
        let mut words: Vec<OsString> =
            vec!["larderd".into(), "--config".into(), path.clone().into()];
        words.extend(line.split_whitespace().map(OsString::from));
        let look_up = |name: &str| {
            let found = environment.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let options = read(words, look_up).map_err(|error| match error {
            OptionsError::Refused(refusal) => {
                refusal.message.replace(&path.display().to_string(), "larder.toml")
            }
            OptionsError::Clap(error) => error.to_string(),
        });
        std::fs::remove_file(&path).unwrap();
        options
    }

    #[test]
    fn flags_override_the_environment_which_overrides_the_file() {
        let file = "memory-limit = 100\nthreads = 3\nconn_limit = 10\nlisten = ['a', 'b']\n";
        let environment = [("LARDER_THREADS", "5"), ("LARDER_CONN_LIMIT", "20")];
        let options = options(file, &environment, "-c 30 -l c").unwrap();
        assert_eq!((options.memory_limit, options.threads, options.conn_limit), (100, 5, 30));
        assert_eq!(options.listen, ["c"]);
    }

    #[test]
    fn the_file_can_set_values_of_every_type() {
        let file = "disable-cas = true\nlock_memory = false\nverbose = 2\nunix-mask = '770'\n\
                    slab-growth-factor = 1.5\nport = -1\nengine = 'segment'\nprefix-delimiter = '/'\n\
                    [extended]\nidle_timeout = 9\nmaxconns_fast = false\ntrack_sizes = true\n";
        let options = options(file, &[], "").unwrap();
        assert!(options.disable_cas && !options.lock_memory);
        assert_eq!((options.verbose, options.unix_mask, options.port), (2, 0o770, -1));
        assert_eq!(options.prefix_delimiter, Some(b'/'));
        let extended = options.suboptions;
        assert_eq!(
            (extended.idle_timeout, extended.maxconns_fast, extended.track_sizes),
            (9, false, true)
        );
    }

    #[test]
    fn every_source_can_set_the_size_exponent() {
        let given = |file, environment: &[_], line| {
            options(file, environment, line).unwrap().size_exponent().to_string()
        };
        let variable = [("LARDER_SIZE_EXPONENT", "0.5")];
        assert_eq!(given("size-exponent = 0.25", &[], ""), "0.25");
        assert_eq!(given("size_exponent = 1", &[], ""), "1");
        assert_eq!(given("size-exponent = 0.25", &variable, ""), "0.5");
        assert_eq!(given("size-exponent = 0.25", &variable, "--size-exponent 0"), "0");
    }

    #[test]
    fn an_error_in_the_file_is_reported_with_its_line() {
        for (file, said) in [
            ("threads = 2\nmemory-limt = 3", "larder.toml:2: memory-limt: unknown option"),
            ("\n\nthreads = 'many'", "larder.toml:3: threads: invalid value 'many'"),
            ("threads = 0", "larder.toml:1: threads: Number of threads must be greater than 0"),
            ("threads = 1\nthreads = 2", "larder.toml:2: "),
            ("size-exponent = 2", "larder.toml:1: size-exponent: The size exponent must be 0 to 1"),
            ("conn-limit = 1\nconn_limit = 2", "larder.toml:2: conn_limit: duplicate option"),
            ("threads = [1, 2]", "larder.toml:1: threads: must be one value"),
            ("disable-cas = 1", "larder.toml:1: disable-cas: must be true or false"),
            ("threads = 1\nport = = 1", "larder.toml:2: "),
            ("[extended]\n\nfrob = 1", "larder.toml:3: extended: Illegal suboption \"frob=1\""),
            ("extended = 'idle_timeout'", "larder.toml:1: extended: Missing numeric argument"),
            ("threads = 2\nmax-item-size = '40m'", "larder.toml:2: max-item-size: Cannot set item"),
            ("[memory]\nlimit = 3", "larder.toml:2: memory: unknown option"),
            ("config = 'other'", "larder.toml:1: config: unknown option"),
        ] {
            let message = options(file, &[], "").unwrap_err();
            assert!(message.starts_with(said), "{file:?}: {message}");
        }
    }

    #[test]
    fn an_error_in_the_environment_is_reported_with_its_variable() {
        let refused = |name, value| options("", &[(name, value)], "").unwrap_err();
        assert!(refused("LARDER_THREADS", "x").starts_with("LARDER_THREADS: invalid value 'x'"));
        assert!(refused("LARDER_CONN_LIMIT", "0").starts_with("LARDER_CONN_LIMIT: Maximum"));
        assert!(refused("LARDER_DISABLE_CAS", "x").starts_with("LARDER_DISABLE_CAS: must be"));
    }

    #[test]
    fn variables_of_kubernetes_services_are_ignored() {
        let variables =
            [("LARDER_PORT", "tcp://10.0.0.7:11211"), ("LARDER_UDP_PORT", "udp://10.0.0.7:11211")];
        let options = options("", &variables, "").unwrap();
        assert_eq!((options.port, options.udp_port), (11211, 0));
    }

    #[test]
    fn white_space_around_values_is_ignored() {
        let variables =
            [("LARDER_MEMORY_LIMIT", "128 "), ("LARDER_THREADS", ""), ("LARDER_VERBOSE", "")];
        let file = "port = ' 7'\nverbose = ' 2 '\nconn-limit = '\t9'\nsize-exponent = ' 0.5'\n\
                    unix-mask = ' 770'\nmax-item-size = ' 2 m '\nprefix-delimiter = ' '\n\
                    [extended]\nidle_timeout = ' 5 '\nslab_automove_ratio = ' 0.5'\n";
        let options = options(file, &variables, "").unwrap();
        assert_eq!((options.memory_limit, options.threads), (128, 4));
        assert_eq!((options.port, options.verbose, options.conn_limit), (7, 2, 9));
        assert_eq!((options.size_exponent(), options.unix_mask), (0.5, 0o770));
        assert_eq!((options.max_item_size, options.prefix_delimiter), (2 << 20, Some(b' ')));
        let extended = options.suboptions;
        assert_eq!((extended.idle_timeout, extended.shown.slab_automove_ratio), (5, 0.5));
    }

    /// Helm charts pass an option and its value as one word.
    #[test]
    fn one_word_may_contain_an_option_and_its_value() {
        let words =
            ["larderd", "-m 1024", "--extended=modern,track_sizes", "-I 5m", "-vc 16384", "-v"];
        let more = ["-t", " 2 ", "--port= 7", "-D ", "--conn= 100", "--listen-b", "9", "-u 11211"];
        let words = words.into_iter().chain(more).map(OsString::from).collect();
        let options = read(words, |_| None).map_err(|error| format!("{error:?}")).unwrap();
        assert_eq!((options.memory_limit, options.max_item_size), (1024, 5 << 20));
        assert_eq!((options.verbose, options.threads, options.port), (2, 2, 7));
        assert_eq!((options.conn_limit, options.listen_backlog), (100, 9));
        assert_eq!(
            (options.prefix_delimiter, options.user.as_deref()),
            (Some(b' '), Some("11211"))
        );
        assert!(options.suboptions.track_sizes);
    }
}
