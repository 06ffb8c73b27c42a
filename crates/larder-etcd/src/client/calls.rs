//! A client of etcd's JSON gateway. It encodes keys and values in base64.

use super::counters::EtcdCounters;
use super::login::{Login, LoginError};
use super::requests::{KeyValue, Range, has_revision, key_values, number, put_request};
use super::settings::{EtcdSettings, SettingsError};
use crate::identity::ClusterIdentity;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_replica::{CoordinatorError, LEADER_LEASE};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::tls::{ClientCert, PemItem, RootCerts, TlsConfig, parse_pem};

/// The time limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// The time limit of one HTTP request.
    request: Duration,
    /// The time limit of a call, which may wait for a login and may try several servers.
    call: Duration,
}

impl TimeLimits {
    /// The limits for a node, which must determine the leader within a second. The election
    /// simulation of `larder-replica` (`tests/it/election/nodes.rs`) repeats the value as
    /// `REQUEST_TIMEOUT`.
    pub const NODE: Self =
        Self { request: Duration::from_millis(400), call: Duration::from_millis(700) };
    /// The limits for an operator's command, which may wait for a busy etcd.
    pub const COMMAND: Self =
        Self { request: Duration::from_secs(5), call: Duration::from_secs(10) };
}

// A leader's lease starts at the start of the call that reads its record. The call must end before
// the lease does.
const _: () =
    assert!(TimeLimits::NODE.call.as_millis() < Duration::from_millis(LEADER_LEASE).as_millis());

/// The maximum length, in bytes, of the reply text that an error contains.
const REFUSAL_LEN_MAX: usize = 300;

/// A client of etcd. Within a time limit, each call tries one server after another until a server
/// executes it.
pub struct Etcd {
    agent: ureq::Agent,
    limits: TimeLimits,
    urls: Arc<[String]>,
    /// The index in `urls` of the server that receives the next request.
    next_server: usize,
    login: Option<Login>,
    counters: Arc<EtcdCounters>,
    /// The number of requests that failed, except for timeouts.
    failures: u64,
    /// The time at which the time limit of the current call starts; `None` if the limit starts with
    /// the call.
    limit_start: Option<Instant>,
    /// The cluster identity that etcd must have to execute a transaction.
    identity: Option<Arc<ClusterIdentity>>,
}

/// A failed request to one server.
struct RequestError {
    error: CoordinatorError,
    is_timeout: bool,
    /// Whether etcd did not accept the token, and did not execute the request.
    is_token_refused: bool,
}

/// The etcd errors after which a request can succeed with a new token. The last two are the same
/// error in etcd 3.5 and 3.4: users or roles have changed since the login.
const TOKEN_ERRORS: [&str; 4] = [
    "invalid auth token",
    "user name is empty",
    "revision of auth store is old",
    "revision in header is old",
];

/// If etcd does not have a requested revision, the text of its error starts with these words. The
/// text continues with "has been compacted" or "is a future revision".
const UNKNOWN_REVISION: &str = "mvcc: required revision";

fn lacks_revision(error: &CoordinatorError) -> bool {
    matches!(error, CoordinatorError::Failed { reason, .. } if reason.contains(UNKNOWN_REVISION))
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("urls", &self.urls).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Creates a client with the time limits of a node. It connects at the first call.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(settings: &EtcdSettings) -> Result<Self, SettingsError> {
        Self::with_limits(settings, TimeLimits::NODE)
    }

    /// Creates a client with other time limits.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn with_limits(settings: &EtcdSettings, limits: TimeLimits) -> Result<Self, SettingsError> {
        if settings.urls.is_empty() {
            return Err(SettingsError::NoUrl);
        }
        let mut urls = Vec::new();
        for url in &settings.urls {
            match url.split_once("://") {
                Some(("http", _)) => (),
                Some(("https", _)) if settings.authorities.is_some() => (),
                Some(("https", _)) => return Err(SettingsError::NoAuthorities(url.clone())),
                _ => return Err(SettingsError::Url(url.clone())),
            }
            urls.push(url.trim_end_matches('/').to_owned());
        }
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(crypto);
        if let Some(authorities) = &settings.authorities {
            let certificates = certificates(authorities);
            if certificates.is_empty() {
                return Err(SettingsError::Pem("--etcd-ca"));
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        if let Some((chain, key)) = &settings.certificate {
            let chain = certificates(chain);
            if chain.is_empty() {
                return Err(SettingsError::Pem("--etcd-cert"));
            }
            let key = ureq::tls::PrivateKey::from_pem(key)
                .map_err(|_| SettingsError::Pem("--etcd-key"))?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(limits.request))
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .tls_config(tls.build())
            .build();
        let (agent, login) = (config.new_agent(), settings.login.clone());
        let counters = Arc::clone(&settings.counters);
        let identity = settings.identity.clone();
        Ok(Self {
            agent,
            limits,
            urls: urls.into(),
            next_server: 0,
            login,
            counters,
            failures: 0,
            limit_start: None,
            identity,
        })
    }

    /// Sends a request to one server after another until one executes it. Starts no request that
    /// could exceed the time limit.
    ///
    /// # Errors
    /// The error of the last server that was tried.
    pub(crate) fn call(&mut self, path: &str, body: &Value) -> Result<Value, CoordinatorError> {
        let start = Instant::now();
        let answer = self.try_servers(path, body);
        self.counters.note(start.elapsed(), answer.is_ok());
        answer
    }

    /// Does the work of [`Self::call`], which also counts the call.
    fn try_servers(&mut self, path: &str, body: &Value) -> Result<Value, CoordinatorError> {
        let start = self.limit_start.unwrap_or_else(Instant::now);
        let mut last = CoordinatorError::NoServer;
        // Start no request after this time, so that the last request ends within the time limit of
        // the call.
        let start_max = self.limits.call - self.limits.request;
        let (mut servers_left, mut token_refused) = (self.urls.len(), false);
        while servers_left > 0 && start.elapsed() <= start_max {
            let token = self.token(start_max.saturating_sub(start.elapsed()))?;
            let url = self.urls.get(self.next_server).map_or("", String::as_str);
            let error = match post(&self.agent, url, path, body, token.as_deref(), None) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.is_token_refused
                && let (Some(login), Some(token)) = (&self.login, &token)
            {
                login.forget(token);
                // Try the same server once more with a new token.
                if !std::mem::replace(&mut token_refused, true) {
                    continue;
                }
            }
            self.failures += u64::from(!error.is_timeout);
            last = error.error;
            // Do not try the other servers, because they have the same revisions.
            if lacks_revision(&last) {
                break;
            }
            (self.next_server, servers_left) =
                ((self.next_server + 1) % self.urls.len(), servers_left - 1);
        }
        Err(last)
    }

    /// Returns the login token; `None` if the settings have no login.
    fn token(&self, wait_max: Duration) -> Result<Option<Arc<str>>, CoordinatorError> {
        let Some(login) = &self.login else { return Ok(None) };
        let (agent, urls, first) = (self.agent.clone(), Arc::clone(&self.urls), self.next_server);
        let send = move |name: &str, password: &str, time_limit: Duration| {
            log_in(
                &agent,
                urls.iter().cycle().skip(first).take(urls.len()),
                name,
                password,
                time_limit,
            )
        };
        login.token(wait_max, send).map(Some)
    }

    /// Reads several ranges in one transaction.
    pub(crate) fn read(
        &mut self,
        ranges: &[Range],
    ) -> Result<Vec<Vec<KeyValue>>, CoordinatorError> {
        self.read_since(Instant::now(), ranges).map(|(read, _)| read)
    }

    /// Reads several ranges in one transaction, whose time limit starts at `start`. Also returns
    /// the revision of etcd.
    pub(crate) fn read_since(
        &mut self,
        start: Instant,
        ranges: &[Range],
    ) -> Result<(Vec<Vec<KeyValue>>, u64), CoordinatorError> {
        let requests: Vec<Value> = ranges.iter().map(Range::request).collect();
        self.limit_start = Some(start);
        let result = self.transact(&[], &requests, &[]);
        self.limit_start = None;
        let Transaction { ranges: read, revision, .. } = result?;
        let is_complete = read.len() == ranges.len();
        let missing = CoordinatorError::MalformedReply("a list of responses");
        is_complete.then_some((read, revision)).ok_or(missing)
    }

    /// Reads the value that a key had at the given revision.
    pub(crate) fn read_at(
        &mut self,
        key: &str,
        revision: u64,
    ) -> Result<EarlierValue, CoordinatorError> {
        let range = json!({"key": BASE64.encode(key), "revision": revision.to_string()});
        match self.call("/v3/kv/range", &range) {
            Ok(answer) => {
                let keys = key_values(&answer);
                let keys = keys.ok_or(CoordinatorError::MalformedReply("a list of keys"))?;
                Ok(keys.into_iter().next().map_or(EarlierValue::Absent, EarlierValue::Found))
            }
            Err(error) if lacks_revision(&error) => Ok(EarlierValue::Unknown),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of requests that failed, except for timeouts. A call can succeed at one
    /// server after a request to another one has failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Requests the current revision of etcd from one server, which must answer within
    /// `time_limit`. The client must have the permission to read `key`.
    pub(crate) fn revision(
        &mut self,
        key: &str,
        time_limit: Duration,
    ) -> Result<u64, CoordinatorError> {
        let range = json!({"key": BASE64.encode(key), "count_only": true});
        let (start, token) = (Instant::now(), self.token(time_limit)?);
        let url = self.urls.get(self.next_server).map_or("", String::as_str);
        let limit = Some(time_limit.saturating_sub(start.elapsed()).max(Duration::from_millis(1)));
        let answer = post(&self.agent, url, "/v3/kv/range", &range, token.as_deref(), limit);
        self.counters.note(start.elapsed(), answer.is_ok());
        match answer {
            Ok(answer) => revision(&answer),
            Err(error) => {
                self.failures += u64::from(!error.is_timeout);
                self.next_server = (self.next_server + 1) % self.urls.len();
                Err(error.error)
            }
        }
    }

    /// Executes the requests `success` if all comparisons are true, and `failure` otherwise. If the
    /// settings have a cluster identity, the transaction also compares it. If etcd has lost the
    /// identity, restores it and tries again.
    pub(crate) fn transact(
        &mut self,
        comparisons: &[Value],
        success: &[Value],
        failure: &[Value],
    ) -> Result<Transaction, CoordinatorError> {
        let Some(identity) = self.identity.clone() else {
            return self.transact_once(comparisons, success, failure);
        };
        let comparisons = [comparisons, &[identity.comparison()?]].concat();
        let failure = [failure, &[identity.read_request()]].concat();
        let mut is_restored = false;
        loop {
            let mut result = self.transact_once(&comparisons, success, &failure)?;
            if result.has_succeeded {
                return Ok(result);
            }
            let found = result.ranges.pop();
            if identity.is_kept(found.iter().flatten().next())? {
                return Ok(result);
            }
            if is_restored {
                return Err(CoordinatorError::IdentityLost(identity.key.clone()));
            }
            let (is_lost, write) = identity.restoration()?;
            self.transact_once(&[is_lost], &[write], &[])?;
            is_restored = true;
        }
    }

    fn transact_once(
        &mut self,
        comparisons: &[Value],
        success: &[Value],
        failure: &[Value],
    ) -> Result<Transaction, CoordinatorError> {
        let body = json!({"compare": comparisons, "success": success, "failure": failure});
        let answer = self.call("/v3/kv/txn", &body)?;
        let responses = answer.get("responses").and_then(Value::as_array).into_iter().flatten();
        let ranges: Vec<&Value> =
            responses.filter_map(|response| response.get("response_range")).collect();
        let counts = ranges.iter().map(|range| number(range, "count").unwrap_or_default());
        let key_values =
            |range| key_values(range).ok_or(CoordinatorError::MalformedReply("a list of keys"));
        Ok(Transaction {
            counts: counts.collect(),
            has_succeeded: answer.get("succeeded").and_then(Value::as_bool).unwrap_or_default(),
            revision: revision(&answer)?,
            ranges: ranges.iter().copied().map(key_values).collect::<Result<_, _>>()?,
        })
    }

    /// Writes a value. It expires after `secs` seconds, or never if `secs` is `None`.
    pub(crate) fn put(
        &mut self,
        key: &str,
        value: &[u8],
        secs: Option<u64>,
    ) -> Result<(), CoordinatorError> {
        let lease = secs.map(|secs| self.grant(secs)).transpose()?;
        let (key, value) = (BASE64.encode(key), BASE64.encode(value));
        let put = json!({"key": key, "value": value, "lease": lease.unwrap_or_default()});
        self.call("/v3/kv/put", &put).map(drop)
    }

    /// Requests a lease with a lifetime of `secs` seconds. Returns the ID of the lease.
    pub(crate) fn grant(&mut self, secs: u64) -> Result<u64, CoordinatorError> {
        let answer = self.call("/v3/lease/grant", &json!({"TTL": secs}))?;
        number(&answer, "ID").ok_or(CoordinatorError::MalformedReply("the lease"))
    }

    /// Writes a value if the current value has the revision `revision` (0: the key has no value).
    /// Returns the new revision, or `None` if the current value has another revision.
    pub(crate) fn replace(
        &mut self,
        key: &str,
        revision: u64,
        value: &[u8],
    ) -> Result<Option<u64>, CoordinatorError> {
        self.replace_while(key, revision, value, &[])
    }

    /// Writes a value as [`Self::replace`] does, on the condition that the keys in `others` also
    /// have the given revisions.
    pub(crate) fn replace_while(
        &mut self,
        key: &str,
        revision: u64,
        value: &[u8],
        others: &[(String, u64)],
    ) -> Result<Option<u64>, CoordinatorError> {
        let others = others.iter().map(|(key, revision)| has_revision(key, *revision));
        let comparisons: Vec<Value> =
            std::iter::once(has_revision(key, revision)).chain(others).collect();
        let result = self.transact(&comparisons, &[put_request(key, value, 0)], &[])?;
        Ok(result.has_succeeded.then_some(result.revision))
    }
}

/// Returns the revision of etcd in the header of a reply.
pub(crate) fn revision(answer: &Value) -> Result<u64, CoordinatorError> {
    let found = answer.get("header").and_then(|header| number(header, "revision"));
    found.ok_or(CoordinatorError::MalformedReply("the revision"))
}

/// Tries to log in at one server after another until one accepts. Returns the token.
fn log_in<'u>(
    agent: &ureq::Agent,
    urls: impl Iterator<Item = &'u String>,
    name: &str,
    password: &str,
    time_limit: Duration,
) -> Result<String, LoginError> {
    let body = json!({"name": name, "password": password});
    let mut last = LoginError { error: CoordinatorError::NoServer, is_timeout: false };
    for url in urls {
        let answer = post(agent, url, "/v3/auth/authenticate", &body, None, Some(time_limit));
        let token =
            answer.map(|answer| answer.get("token").and_then(Value::as_str).map(str::to_owned));
        match token {
            Ok(Some(token)) => return Ok(token),
            Ok(None) => last.error = CoordinatorError::MalformedReply("the token"),
            Err(RequestError { error, is_timeout, .. }) => last = LoginError { error, is_timeout },
        }
    }
    Err(last)
}

/// Sends a request to one server. `time_limit` replaces the agent's limit.
fn post(
    agent: &ureq::Agent,
    url: &str,
    path: &str,
    body: &Value,
    token: Option<&str>,
    time_limit: Option<Duration>,
) -> Result<Value, RequestError> {
    let fail = |reason, is_timeout, is_token_refused| RequestError {
        error: CoordinatorError::Failed { server: format!("etcd at {url}"), reason },
        is_timeout,
        is_token_refused,
    };
    let failed = |error: ureq::Error| {
        let is_timeout = matches!(error, ureq::Error::Timeout(_));
        fail(error.to_string(), is_timeout, false)
    };
    let mut request = agent.post(format!("{url}{path}"));
    if let Some(token) = token {
        request = request.header("Authorization", token);
    }
    if time_limit.is_some() {
        request = request.config().timeout_global(time_limit).build();
    }
    let mut answer = request.send_json(body).map_err(failed)?;
    let status = answer.status();
    let text = answer.body_mut().read_to_string().map_err(failed)?;
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    let error = json.get("error");
    if status.is_success() && json.is_object() && error.is_none() {
        return Ok(json);
    }
    let reason = refusal(status.as_u16(), error, &text);
    let is_token_refused =
        status.as_u16() == 401 || TOKEN_ERRORS.iter().any(|known| reason.contains(known));
    Err(fail(reason, false, is_token_refused))
}

/// Returns the reason from an error reply: the error message, or if there is none, the status and
/// the start of the text.
fn refusal(status: u16, error: Option<&Value>, text: &str) -> String {
    let message = error.map(|error| error.get("message").unwrap_or(error)).and_then(Value::as_str);
    if let Some(message) = message {
        return message.to_owned();
    }
    let text = text.trim();
    let text = text.get(..text.floor_char_boundary(REFUSAL_LEN_MAX)).unwrap_or(text);
    // While etcd requires logins, its gateway refuses client certificates with a common name.
    let remedy = match text.contains("CommonName") {
        true => "; use a client certificate without a common name (CN), and --etcd-password",
        false => "",
    };
    format!("status {status}: {text}{remedy}")
}

/// The value of a key at an earlier revision.
pub(crate) enum EarlierValue {
    Found(KeyValue),
    /// The key had no value.
    Absent,
    /// etcd does not have the revision: it was compacted, or etcd has lost its data since.
    Unknown,
}

/// The result of a transaction.
pub(crate) struct Transaction {
    /// Whether all comparisons were true.
    pub(crate) has_succeeded: bool,
    /// The revision of etcd after the transaction.
    pub(crate) revision: u64,
    /// The keys that the executed reads have found: one element per read, in order.
    pub(crate) ranges: Vec<Vec<KeyValue>>,
    /// The number of keys in the range of each read, including keys that the read has not returned.
    pub(crate) counts: Vec<u64>,
}

fn certificates(pem: &[u8]) -> Vec<ureq::tls::Certificate<'static>> {
    let items = parse_pem(pem).filter_map(Result::ok);
    items
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_the_message_or_the_text_and_a_remedy() {
        let json = json!({"error": "etcdserver: permission denied", "code": 7});
        assert_eq!(refusal(403, json.get("error"), "{}"), "etcdserver: permission denied");
        let nested = json!({"error": {"message": "no leader"}});
        assert_eq!(refusal(503, nested.get("error"), "{}"), "no leader");
        assert_eq!(
            refusal(502, None, "<h1>Bad Gateway</h1>\n"),
            "status 502: <h1>Bad Gateway</h1>"
        );
        // The reply of etcd 3.4 to a client certificate with a common name while etcd requires
        // logins.
        let text = "CommonName of client sending a request against gateway will be ignored and not \
                    used as expected\n";
        assert!(refusal(400, None, text).contains("a client certificate without a common name"));
        assert_eq!(refusal(500, None, &"é".repeat(1000)).chars().count(), 162);
    }
}
