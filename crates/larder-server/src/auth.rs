//! Authentication with a password file (`user:password` lines) or a token file.
//!
//! This module never reveals a password: types that contain a password do not implement `Debug`, an
//! error about a line contains only the file and the line number, and comparisons take constant
//! time.

use crate::options::Options;
use larder_protocol::Credentials;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use subtle::{Choice, ConstantTimeEq};

/// The maximum number of password lines, as in memcached.
const ENTRIES_MAX: usize = 8;
/// The maximum length of a line, in bytes.
const LINE_LEN_MAX: usize = 255;
/// The maximum length of a file in bytes. A longer token file is refused. A longer password file is
/// read only up to this length, because only its first lines are used.
const FILE_LEN_MAX: u64 = 64 << 10;

/// A password file, and the entries of its last successful read.
pub struct PasswordFile {
    path: PathBuf,
    entries: RwLock<Vec<Entry>>,
}

/// A line of the password file.
struct Entry {
    user: Secret,
    password: Secret,
}

/// A user name, password or token. All comparisons take the same time, so the time reveals neither
/// content nor length.
struct Secret {
    bytes: [u8; LINE_LEN_MAX],
    len: u64,
}

/// A token file, and the tokens of its last successful read.
pub struct TokenFile {
    path: PathBuf,
    tokens: RwLock<Vec<Token>>,
}

/// A line of the token file.
struct Token {
    token: Secret,
    /// Whether the token is read-only.
    is_read_only: bool,
}

/// The rights of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRights {
    /// All requests.
    All,
    /// Requests that change nothing.
    Read,
}

/// An error while reading passwords or tokens.
#[derive(Debug)]
pub enum AuthError {
    /// `-S` is given without a file in `--sasl-pwdb` or `MEMCACHED_SASL_PWDB`.
    NoFile,
    /// Reading the file failed.
    Unreadable(PathBuf, io::Error),
    /// A line of the password file is not `user:password`, or is too long. The second field is the
    /// line number, counted from 1.
    Malformed(PathBuf, usize),
    /// A line of the token file is neither `name:token` nor `name:token:read`, or is too long. The
    /// second field is the line number, counted from 1.
    MalformedToken(PathBuf, usize),
    /// The token file is longer than `FILE_LEN_MAX`.
    TooManyTokens(PathBuf),
}

impl std::error::Error for AuthError {}

impl std::fmt::Display for AuthError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFile => f.write_str(
                "-S: the password file is missing; give --sasl-pwdb FILE, or set MEMCACHED_SASL_PWDB",
            ),
            Self::Unreadable(path, error) => {
                let path = path.display();
                write!(f, "Could not open authfile [{path}] for reading, error {error}")
            }
            Self::Malformed(path, line) => write!(
                f,
                "Authfile [{}] has a malformed entry. Should be 'user:password' (line {line}, at \
                 most {LINE_LEN_MAX} bytes)",
                path.display()
            ),
            Self::MalformedToken(path, line) => write!(
                f,
                "--token-file {}: line {line} must be NAME:TOKEN or NAME:TOKEN:read, of at most {LINE_LEN_MAX} \
                 bytes",
                path.display()
            ),
            Self::TooManyTokens(path) => write!(
                f,
                "--token-file {}: the file is longer than {FILE_LEN_MAX} bytes; remove tokens that are not used",
                path.display()
            ),
        }
    }
}

/// Reads the password file of `-Y`. With `-S` but without `-Y`, reads the file of `--sasl-pwdb` or,
/// if that is not given, the file `database`, which is the value of `MEMCACHED_SASL_PWDB`. Returns
/// `None` if neither `-Y` nor `-S` is given.
///
/// # Errors
/// [`AuthError`]: `-S` is given without a file, or the file is unreadable or malformed.
pub fn open(
    options: &Options,
    database: Option<OsString>,
) -> Result<Option<PasswordFile>, AuthError> {
    let database = || options.sasl_pwdb.clone().or(database.map(PathBuf::from));
    match &options.auth_file {
        Some(path) => PasswordFile::open(path).map(Some),
        None if !options.enable_sasl => Ok(None),
        None => PasswordFile::open(&database().ok_or(AuthError::NoFile)?).map(Some),
    }
}

impl PasswordFile {
    /// Reads a file. [`Self::reload`] reads the same file even if the process changes its working
    /// directory.
    ///
    /// # Errors
    /// [`AuthError`]: the file is unreadable or malformed.
    pub fn open(path: &Path) -> Result<Self, AuthError> {
        // `absolute` fails only for an empty path, which cannot be opened either.
        let path = std::path::absolute(path).unwrap_or_default();
        let entries = RwLock::new(read(&path)?);
        Ok(Self { path, entries })
    }

    /// Reads the file again. If that fails, logs an error and keeps the previous passwords.
    pub fn reload(&self) {
        match read(&self.path) {
            Ok(entries) => {
                *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
                tracing::info!("password file {} reloaded", self.path.display());
            }
            Err(error) => tracing::error!(
                "reloading the password file failed: {error}; the previous passwords stay valid until the file \
                 is fixed and SIGHUP is sent"
            ),
        }
    }

    /// Returns whether the credentials are valid. Always compares all entries, so that the time
    /// does not reveal a match.
    pub fn authenticate(&self, credentials: &Credentials<'_>) -> bool {
        let user = Secret::new(credentials.user);
        let password = Secret::new(credentials.password.0);
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let matches = |entry: &Entry| entry.user.is(&user) & entry.password.is(&password);
        entries.iter().fold(Choice::from(0), |any, entry| any | matches(entry)).into()
    }
}

impl TokenFile {
    /// Reads a file. [`Self::reload`] reads the same file even if the process changes its working
    /// directory.
    ///
    /// # Errors
    /// [`AuthError`]: the file is unreadable, malformed or too long.
    pub fn open(path: &Path) -> Result<Self, AuthError> {
        // `absolute` fails only for an empty path, which cannot be opened either.
        let path = std::path::absolute(path).unwrap_or_default();
        let tokens = RwLock::new(read_tokens(&path)?);
        Ok(Self { path, tokens })
    }

    /// Reads the file again. If that fails, logs an error and keeps the previous tokens.
    pub fn reload(&self) {
        match read_tokens(&self.path) {
            Ok(tokens) => {
                *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = tokens;
                tracing::info!("token file {} reloaded", self.path.display());
            }
            Err(error) => tracing::error!(
                "reloading the token file failed: {error}; the previous tokens stay valid until the file is \
                 fixed and SIGHUP is sent"
            ),
        }
    }

    /// Returns the rights of a token, or `None` if the token is unknown. Always compares all lines,
    /// so that the time does not reveal a match.
    pub fn rights(&self, token: &[u8]) -> Option<TokenRights> {
        let token = Secret::new(token);
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let mut rights = None;
        for line in tokens.iter() {
            if bool::from(line.token.is(&token)) {
                rights = Some(if line.is_read_only { TokenRights::Read } else { TokenRights::All });
            }
        }
        rights
    }
}

/// Reads a token file. Skips empty lines and lines that start with `#`.
fn read_tokens(path: &Path) -> Result<Vec<Token>, AuthError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut text))
        .map_err(|error| AuthError::Unreadable(path.to_owned(), error))?;
    // Refuse the file instead of reading only its start: if the last line lost its `:read`, its
    // token would get all rights.
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(AuthError::TooManyTokens(path.to_owned()));
    }
    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
        .map(|(index, line)| {
            token(line).ok_or_else(|| AuthError::MalformedToken(path.to_owned(), index + 1))
        })
        .collect()
}

/// Parses `name:token` or `name:token:read`. Returns `None` for other lines and for lines that are
/// too long.
fn token(line: &[u8]) -> Option<Token> {
    let mut words = line.split(|&byte| byte == b':');
    let (_, token, rights, more) = (words.next()?, words.next()?, words.next(), words.next());
    let is_read_only = match rights {
        None => false,
        Some(b"read") => true,
        Some(_) => return None,
    };
    let is_good = !token.is_empty() && line.len() <= LINE_LEN_MAX && more.is_none();
    is_good.then(|| Token { token: Secret::new(token), is_read_only })
}

impl Secret {
    /// Copies at most [`LINE_LEN_MAX`] bytes. Also stores the length of the whole input, so input
    /// above this limit never equals an entry.
    fn new(from: &[u8]) -> Self {
        let kept = from.get(..LINE_LEN_MAX).unwrap_or(from);
        let mut bytes = [0; LINE_LEN_MAX];
        bytes[..kept.len()].copy_from_slice(kept);
        Self { bytes, len: from.len() as u64 }
    }

    fn is(&self, other: &Self) -> Choice {
        self.bytes.ct_eq(&other.bytes) & self.len.ct_eq(&other.len)
    }
}

fn read(path: &Path) -> Result<Vec<Entry>, AuthError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut text))
        .map_err(|error| AuthError::Unreadable(path.to_owned(), error))?;
    let is_empty = text.is_empty();
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let lines = text.split(|&byte| byte == b'\n').filter(|_| !is_empty);
    if lines.clone().nth(ENTRIES_MAX).is_some() {
        tracing::warn!(
            "password file {}: it has more than {ENTRIES_MAX} lines; only the first {ENTRIES_MAX} are used",
            path.display()
        );
    }
    lines
        .take(ENTRIES_MAX)
        .enumerate()
        .map(|(index, line)| {
            entry(line).ok_or_else(|| AuthError::Malformed(path.to_owned(), index + 1))
        })
        .collect()
}

/// Parses `user:password`. The first colon ends the user name, and a CR or NUL ends the password.
/// Returns `None` for a line without a colon or a line that is too long.
fn entry(line: &[u8]) -> Option<Entry> {
    if line.len() > LINE_LEN_MAX {
        return None;
    }
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (user, rest) = (&line[..colon], &line[colon + 1..]);
    let password = rest.split(|byte| matches!(byte, b'\r' | 0)).next().unwrap_or_default();
    Some(Entry { user: Secret::new(user), password: Secret::new(password) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_protocol::Password;

    /// A temporary file. Dropping it removes the file.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(text: &[u8]) -> Self {
            let thread = std::thread::current();
            let name = format!("larder-auth-{}-{:?}", std::process::id(), thread.id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).unwrap();
            Self(path)
        }

        fn open(&self) -> Result<PasswordFile, AuthError> {
            PasswordFile::open(&self.0)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn authenticate(file: &PasswordFile, user: &str, password: &str) -> bool {
        let password = Password(password.as_bytes());
        file.authenticate(&Credentials { user: user.as_bytes(), password })
    }

    #[test]
    fn each_line_is_a_name_and_a_password() {
        let scratch = Scratch::new(b"ann:first\r\nbob:se:co nd\n:\neve:");
        let file = scratch.open().unwrap();
        for (user, password) in [("ann", "first"), ("bob", "se:co nd"), ("", ""), ("eve", "")] {
            assert!(authenticate(&file, user, password), "{user}");
        }
        for (user, password) in [
            ("ann", ""),
            ("ann", "firs"),
            ("ann", "first\r"),
            ("bob", "first"),
            ("bob", "se"),
            ("an", "n:first"),
        ] {
            assert!(!authenticate(&file, user, password), "{user} {password}");
        }
    }

    #[test]
    fn names_and_passwords_with_appended_bytes_are_refused() {
        let longest = "p".repeat(LINE_LEN_MAX - 2);
        let scratch = Scratch::new(format!("u:{longest}\n").as_bytes());
        let file = scratch.open().unwrap();
        assert!(authenticate(&file, "u", &longest));
        assert!(!authenticate(&file, "u", &"p".repeat(16_384)));
        assert!(!authenticate(&file, &"u".repeat(16_384), &longest));
        assert!(
            !authenticate(&file, "u\0", &longest)
                && !authenticate(&file, "u", &format!("{longest}\0"))
        );
    }

    #[test]
    fn eight_lines_are_used() {
        let text: String = (0..9).map(|n| format!("u{n}:p\n")).collect();
        let file = Scratch::new(text.as_bytes()).open().unwrap();
        assert!(authenticate(&file, "u0", "p") && authenticate(&file, "u7", "p"));
        assert!(!authenticate(&file, "u8", "p"));
    }

    #[test]
    fn an_error_has_the_number_of_a_malformed_line_but_not_its_text() {
        for (text, line) in [("a:b\nsecret\n", 2), ("\n", 1), ("a:b\n\n", 2)] {
            let scratch = Scratch::new(text.as_bytes());
            let Err(error) = scratch.open() else { panic!("{text:?} is taken") };
            assert!(matches!(error, AuthError::Malformed(_, at) if at == line), "{error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
        let long = format!("u:{}", "p".repeat(LINE_LEN_MAX));
        assert!(Scratch::new(long.as_bytes()).open().is_err());
        assert!(matches!(
            PasswordFile::open(Path::new("/nonexistent/file")),
            Err(AuthError::Unreadable(..))
        ));
    }

    #[test]
    fn tokens_have_rights() {
        let text = b"# comment\nann:one\n\nbob:two:read\r\n";
        let scratch = Scratch::new(text);
        let file = TokenFile::open(&scratch.0).unwrap();
        assert_eq!(file.rights(b"one"), Some(TokenRights::All));
        assert_eq!(file.rights(b"two"), Some(TokenRights::Read));
        for wrong in [&b""[..], b"on", b"one ", b"ann:one", b"read"] {
            assert_eq!(file.rights(wrong), None);
        }
        for (text, line) in [("a:b:write", 1), ("a:b\nsecret", 2), ("a:", 1), ("a:b:read:x", 1)] {
            std::fs::write(&scratch.0, text).unwrap();
            let Err(error) = TokenFile::open(&scratch.0) else { panic!("{text} is taken") };
            assert!(matches!(error, AuthError::MalformedToken(_, at) if at == line), "{error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }

    /// If the server read only the first part of a long file, the last line could lose its `:read`,
    /// and the token would get all rights.
    #[test]
    fn a_token_file_that_is_too_long_is_refused() {
        let line = b"name:token:read\n";
        let mut text = line.repeat(usize::try_from(FILE_LEN_MAX).unwrap() / line.len());
        let scratch = Scratch::new(&text);
        assert_eq!(TokenFile::open(&scratch.0).unwrap().rights(b"token"), Some(TokenRights::Read));
        text.extend_from_slice(b"#");
        std::fs::write(&scratch.0, text).unwrap();
        assert!(matches!(TokenFile::open(&scratch.0), Err(AuthError::TooManyTokens(_))));
    }

    #[test]
    fn an_empty_file_authenticates_no_user() {
        let file = Scratch::new(b"").open().unwrap();
        assert!(!authenticate(&file, "", ""));
    }

    #[test]
    fn a_broken_new_file_keeps_the_old_passwords() {
        let scratch = Scratch::new(b"ann:first\n");
        let file = scratch.open().unwrap();
        std::fs::write(&scratch.0, "ann:second\n").unwrap();
        assert!(authenticate(&file, "ann", "first"), "not read yet");
        file.reload();
        assert!(authenticate(&file, "ann", "second") && !authenticate(&file, "ann", "first"));
        std::fs::write(&scratch.0, "broken").unwrap();
        file.reload();
        std::fs::remove_file(&scratch.0).unwrap();
        file.reload();
        assert!(authenticate(&file, "ann", "second"));
    }
}
