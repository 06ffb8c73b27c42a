//! The login of a process at etcd, which all clients in the process share.
//!
//! etcd checks passwords with bcrypt, which takes about 80 ms of CPU time. A process therefore logs
//! in once, in a separate thread, and its clients wait for the token. It logs in again only if etcd
//! no longer accepts the token.

use larder_replica::CoordinatorError;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time limit of the first login, and the maximum time limit of later logins. The limit doubles
/// after each timeout.
const TIME_LIMIT: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(30);
/// The maximum pause after the first failed login, and the maximum pause after many failures. The
/// maximum doubles after each failure. The pause itself is random, so that processes whose logins
/// failed together do not retry together.
const PAUSE: Range<Duration> = Duration::from_millis(200)..Duration::from_secs(10);

/// A name and a password for etcd. Clones share the token that a login returns.
#[derive(Clone)]
pub struct Login(Arc<Shared>);

struct Shared {
    name: String,
    password: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    token: Option<Arc<str>>,
    is_under_way: bool,
    /// The number of logins that have ended.
    ended: u64,
    /// The number of failures since the last success.
    failures: u32,
    /// The number of timeouts since the last success.
    timeouts: u32,
    /// The time before which no login may start; `None` if it may start at once.
    retry_at: Option<Instant>,
    /// The error of the last login; `None` if it succeeded, or has not ended.
    error: Option<CoordinatorError>,
}

/// A failed attempt to log in.
pub(crate) struct LoginError {
    pub(crate) error: CoordinatorError,
    pub(crate) is_timeout: bool,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Login {
    /// Creates a login. The first call that a client makes starts the login.
    #[must_use]
    pub fn new(name: &str, password: &str) -> Self {
        Self(Arc::new(Shared {
            name: name.to_owned(),
            password: password.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Returns the token. Without a token, starts a login unless one is under way, and waits up to
    /// `wait_max` until the login has ended. `send` sends the name and the password within a time
    /// limit, and returns the token.
    ///
    /// # Errors
    /// The login has failed, has not ended in time, or has failed so recently that the next login
    /// must not start yet.
    pub(crate) fn token(
        &self,
        wait_max: Duration,
        send: impl FnOnce(&str, &str, Duration) -> Result<String, LoginError> + Send + 'static,
    ) -> Result<Arc<str>, CoordinatorError> {
        let (mut state, until) = (self.lock(), Instant::now() + wait_max);
        let (ended, mut send) = (state.ended, Some(send));
        loop {
            if let Some(token) = &state.token {
                return Ok(Arc::clone(token));
            }
            let now = Instant::now();
            let may_start = state.retry_at.is_none_or(|at| now >= at);
            if !state.is_under_way
                && may_start
                && let Some(send) = send.take()
            {
                state.is_under_way = true;
                let (login, time_limit) = (self.clone(), doubled(&TIME_LIMIT, state.timeouts));
                let run = move || {
                    login.end(send(&login.0.name, &login.0.password, time_limit));
                };
                if std::thread::Builder::new().name("etcd-login".to_owned()).spawn(run).is_err() {
                    state.is_under_way = false;
                }
            }
            let has_failed = state.ended > ended || !state.is_under_way;
            if has_failed || now >= until {
                return Err(state.error.clone().unwrap_or(CoordinatorError::LoginPending));
            }
            let waited = self.0.changed.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops a token that etcd no longer accepts, unless a newer login has already replaced it.
    pub(crate) fn forget(&self, token: &Arc<str>) {
        self.lock().token.take_if(|current| Arc::ptr_eq(current, token));
    }

    fn end(&self, result: Result<String, LoginError>) {
        let mut state = self.lock();
        (state.is_under_way, state.ended) = (false, state.ended + 1);
        match result {
            Ok(token) => {
                *state =
                    State { token: Some(token.into()), ended: state.ended, ..State::default() };
            }
            Err(LoginError { error, is_timeout }) => {
                let pause_max = doubled(&PAUSE, state.failures);
                state.retry_at = Some(Instant::now() + pause_max.mul_f64(rand::random()));
                state.failures += 1;
                state.timeouts += u32::from(is_timeout);
                state.error = Some(error);
            }
        }
        drop(state);
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the start of the range, doubled `times` times and limited to the end of the range.
fn doubled(range: &Range<Duration>, times: u32) -> Duration {
    range.start.saturating_mul(2_u32.saturating_pow(times)).min(range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const WAIT_MAX: Duration = Duration::from_secs(60);

    fn failure(is_timeout: bool) -> LoginError {
        LoginError { error: CoordinatorError::NoServer, is_timeout }
    }

    #[test]
    fn clients_of_a_process_log_in_once() {
        let (login, count) = (Login::new("name", "password"), Arc::new(AtomicU32::new(0)));
        let token = || {
            let count = Arc::clone(&count);
            let send = move |name: &str, password: &str, _: Duration| {
                let number = count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
                Ok(format!("{name} {password} {number}"))
            };
            login.clone().token(WAIT_MAX, send).unwrap()
        };
        let tokens: Vec<Arc<str>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(token)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| &**token == "name password 0"), "{tokens:?}");
        // Several clients notice that etcd no longer accepts the token.
        login.forget(&tokens[0]);
        let next = token();
        assert_eq!(&*next, "name password 1");
        login.forget(&tokens[1]);
        assert!(Arc::ptr_eq(&token(), &next), "the token that has expired is not the present one");
    }

    #[test]
    fn failed_logins_pause_and_get_more_time_after_timeouts() {
        let (login, limits) = (Login::new("", ""), Arc::new(Mutex::new(Vec::new())));
        let token = |is_timeout| {
            let limits = Arc::clone(&limits);
            let send = move |_: &str, _: &str, limit: Duration| {
                limits.lock().unwrap().push(limit.as_secs());
                Err(failure(is_timeout))
            };
            login.token(WAIT_MAX, send).unwrap_err()
        };
        assert_eq!(token(true), CoordinatorError::NoServer);
        // During the pause, calls fail at once with the last error.
        login.lock().retry_at = Some(Instant::now() + WAIT_MAX);
        assert_eq!((token(true), limits.lock().unwrap().len()), (CoordinatorError::NoServer, 1));
        for is_timeout in [false, true, true, true, true, false] {
            login.lock().retry_at = None;
            token(is_timeout);
        }
        assert_eq!(*limits.lock().unwrap(), [2, 4, 4, 8, 16, 30, 30]);
        let pause = login.lock().retry_at.unwrap().saturating_duration_since(Instant::now());
        assert!(pause <= PAUSE.end);
    }

    #[test]
    fn a_client_does_not_wait_for_a_slow_login_and_gets_its_token_later() {
        let (login, (release, held)) = (Login::new("", ""), std::sync::mpsc::channel::<()>());
        let send = move |_: &str, _: &str, _: Duration| {
            held.recv().unwrap();
            Ok("token".to_owned())
        };
        assert_eq!(
            login.token(Duration::from_millis(20), send),
            Err(CoordinatorError::LoginPending)
        );
        let other = |_: &str, _: &str, _: Duration| panic!("a login is under way");
        assert_eq!(
            login.token(Duration::from_millis(20), other),
            Err(CoordinatorError::LoginPending)
        );
        release.send(()).unwrap();
        assert_eq!(login.token(WAIT_MAX, other).as_deref(), Ok("token"));
    }
}
