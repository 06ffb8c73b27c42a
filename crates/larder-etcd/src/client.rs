//! A client of etcd's JSON gateway. It encodes keys and values in base64.

use crate::settings::{EtcdSettings, SettingsError};
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
    /// The limit of one HTTP request.
    request: Duration,
    /// The limit of a call, which may try several servers with one request each. A call that has to
    /// log in may take longer.
    call: Duration,
}

impl TimeLimits {
    /// The limits of a node, which has to determine the leader within a second. The simulation
    /// (`tests/it/election.rs` of `larder-replica`) has a copy, `REQUEST_TIMEOUT`.
    pub const NODE: Self =
        Self { request: Duration::from_millis(400), call: Duration::from_millis(700) };
    /// The limits of an operator's command, which may wait for a busy etcd.
    pub const COMMAND: Self =
        Self { request: Duration::from_secs(5), call: Duration::from_secs(10) };
}

// A leader's lease starts with the call that reads its record, so the call must end before the
// lease ends.
const _: () =
    assert!(TimeLimits::NODE.call.as_millis() < Duration::from_millis(LEADER_LEASE).as_millis());

/// A client of etcd. Each call tries the servers one after the other until one succeeds, within a
/// time limit.
pub struct Etcd {
    agent: ureq::Agent,
    limits: TimeLimits,
    urls: Vec<String>,
    /// The index in `urls` of the server that receives the next request.
    at: usize,
    login: Option<(String, String)>,
    /// The token of the login. `None` before the login and after a failed request. Always `None` if
    /// the settings have no login.
    token: Option<String>,
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
        Ok(Self { agent, limits, urls, at: 0, login, token: None })
    }

    /// Sends a request to the servers one after the other, until one succeeds or the time limit is
    /// near.
    ///
    /// # Errors
    /// The error of the last server that was tried.
    pub(crate) fn call(&mut self, path: &str, body: &Value) -> Result<Value, CoordinatorError> {
        let (start, mut last) = (Instant::now(), CoordinatorError::NoServer);
        for _ in 0..self.urls.len() {
            match self.call_one(path, body) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
            self.at = (self.at + 1) % self.urls.len();
            if start.elapsed() > self.limits.call - self.limits.request {
                break;
            }
        }
        Err(last)
    }

    fn call_one(&mut self, path: &str, body: &Value) -> Result<Value, CoordinatorError> {
        if self.token.is_none()
            && let Some((name, password)) = &self.login
        {
            let login = json!({"name": name, "password": password});
            let answer = self.post("/v3/auth/authenticate", &login)?;
            let token = answer.get("token").and_then(Value::as_str);
            self.token = token.map(str::to_owned);
        }
        let answer = self.post(path, body);
        if answer.is_err() {
            // The token may have expired: the next attempt logs in again.
            self.token = None;
        }
        answer
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, CoordinatorError> {
        let url = self.urls.get(self.at).map_or("", String::as_str);
        let fail = |reason: &dyn std::fmt::Display| CoordinatorError::Failed {
            server: format!("etcd at {url}"),
            reason: reason.to_string(),
        };
        let mut request = self.agent.post(format!("{url}{path}"));
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let mut answer = request.send_json(body).map_err(|error| fail(&error))?;
        let status = answer.status();
        let json: Value = answer.body_mut().read_json().map_err(|error| fail(&error))?;
        if status.is_success() && json.get("error").is_none() {
            return Ok(json);
        }
        let error = json.get("error").map(|error| error.get("message").unwrap_or(error));
        let error = error.and_then(Value::as_str).unwrap_or("refused without a reason");
        Err(fail(&error))
    }

    /// Reads several ranges in one transaction.
    pub(crate) fn read(
        &mut self,
        ranges: &[Range],
    ) -> Result<Vec<Vec<KeyValue>>, CoordinatorError> {
        let success: Vec<Value> = ranges.iter().map(Range::request).collect();
        let answer = self.call("/v3/kv/txn", &json!({"success": success}))?;
        let responses = answer.get("responses").and_then(Value::as_array);
        let responses = responses.filter(|responses| responses.len() == ranges.len());
        responses
            .ok_or(CoordinatorError::MalformedReply("a list of responses"))?
            .iter()
            .map(|one| key_values(one).ok_or(CoordinatorError::MalformedReply("a list of keys")))
            .collect()
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

    /// Requests a lease of this many seconds. Returns its ID.
    pub(crate) fn grant(&mut self, secs: u64) -> Result<u64, CoordinatorError> {
        let answer = self.call("/v3/lease/grant", &json!({"TTL": secs}))?;
        number(&answer, "ID").ok_or(CoordinatorError::MalformedReply("the lease"))
    }

    /// Writes a value if its current revision is `revision` (0: the key has no value). Returns the
    /// new revision; `None` if the current value has another revision.
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
        let has_revision = |key: &str, revision: u64| {
            let (key, revision) = (BASE64.encode(key), revision.to_string());
            json!({"target": "MOD", "result": "EQUAL", "key": key, "mod_revision": revision})
        };
        let others = others.iter().map(|(key, revision)| has_revision(key, *revision));
        let compare: Vec<Value> =
            std::iter::once(has_revision(key, revision)).chain(others).collect();
        let key = BASE64.encode(key);
        let put = json!([{"requestPut": {"key": key, "value": BASE64.encode(value)}}]);
        let answer = self.call("/v3/kv/txn", &json!({"compare": compare, "success": put}))?;
        let has_replaced = answer.get("succeeded").and_then(Value::as_bool).unwrap_or_default();
        let header = answer.get("header");
        let now = header.and_then(|header| number(header, "revision"));
        match (has_replaced, now) {
            (false, _) => Ok(None),
            (true, Some(revision)) => Ok(Some(revision)),
            (true, None) => Err(CoordinatorError::MalformedReply("the revision")),
        }
    }
}

/// The keys that a read returns.
pub(crate) enum Range {
    One(String),
    /// All keys with this prefix, which ends with a slash.
    Under(String),
}

impl Range {
    fn request(&self) -> Value {
        let (key, end) = match self {
            Self::One(key) => (key, None),
            Self::Under(prefix) => {
                // The first key after all keys with the prefix: '0' follows '/' in ASCII.
                let end = format!("{}0", prefix.trim_end_matches('/'));
                (prefix, Some(BASE64.encode(end)))
            }
        };
        json!({"requestRange": {"key": BASE64.encode(key), "range_end": end.unwrap_or_default()}})
    }
}

pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    pub(crate) revision: u64,
}

impl KeyValue {
    /// Returns the part of the key after the last slash.
    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the part of the key between the last two slashes.
    pub(crate) fn folder(&self) -> &str {
        self.key.rsplit('/').nth(1).unwrap_or_default()
    }
}

fn key_values(response: &Value) -> Option<Vec<KeyValue>> {
    let range = response.get("response_range")?;
    let Some(all) = range.get("kvs") else { return Some(Vec::new()) };
    let bytes = |one: &Value, field| {
        let text = one.get(field).and_then(Value::as_str).unwrap_or_default();
        BASE64.decode(text).ok()
    };
    let read = |one: &Value| {
        let key = String::from_utf8(bytes(one, "key")?).ok()?;
        Some(KeyValue { key, value: bytes(one, "value")?, revision: number(one, "mod_revision")? })
    };
    all.as_array()?.iter().map(read).collect()
}

/// Reads a number. Returns `None` if the field is missing or is not a number. etcd writes 64-bit
/// numbers as strings.
pub(crate) fn number(of: &Value, field: &str) -> Option<u64> {
    let number = of.get(field)?;
    number.as_u64().or_else(|| number.as_str()?.parse().ok())
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
