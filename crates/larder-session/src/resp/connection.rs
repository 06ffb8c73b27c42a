//! Commands about the connection, the server and transactions.

use super::batch::{Outcome, bulk_len_max};
use super::script;
use super::tracking;
use super::watch::watch;
use crate::Host;
use crate::context::Context;
use crate::session::Session;
use crate::session::key_scan::KeyScan;
use crate::session::pending::Pending;
use crate::session::resp_state::{State, Transaction};
use larder_operations::{CommandClass, Histogram};
use larder_protocol::Credentials;
use larder_protocol::reply::resp::{self as reply, Version};
use larder_protocol::resp::{Arguments, Auth, Command, CommandError, Hello, hex, parse_hash};
use larder_store::{Engine, Expiry};

type CommandResult = Result<(), CommandError<'static>>;

impl<E: Engine> Session<E> {
    /// Answers a command about the connection, the server or transactions.
    pub(super) fn resp_command<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        command: &Command<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let version = state.version;
        match command {
            Command::Ping(text) if state.is_muted() => {
                reply::subscribed_pong(text.unwrap_or_default(), output);
            }
            Command::Ping(None) => reply::pong(output),
            Command::Ping(Some(text)) | Command::Echo(text) => reply::bulk(text, output),
            Command::ClientSetInfo | Command::ClientMode => reply::ok(output),
            Command::Select(number) => return answer_ok(select(cx, *number), output),
            Command::ClientId => {
                if version == Version::Resp3 {
                    tracking::open_inbox(cx, self.client, state);
                }
                reply::integer(self.client.cast_signed(), output);
            }
            Command::ClientGetName if state.name.is_empty() => reply::null(version, output),
            Command::ClientGetName => reply::bulk(&state.name, output),
            Command::Clients(wanted) => {
                let mut page = reply::ClientPage::new(*wanted, self.client, &state.name);
                cx.host.stats(b"conns", &mut |name, value| page.set(name, value));
                page.write(version, output);
            }
            Command::ClientTracking(wanted) => {
                let outcome = tracking::set_tracking(cx, self.client, state, wanted, output);
                // Close the open routes, because they belong to the client's previous tracking
                // state.
                self.close_routes();
                return outcome;
            }
            Command::ClientCaching(caches) => {
                return answer_ok(tracking::set_caching(state, *caches), output);
            }
            Command::ClientGetRedir => reply::integer(tracking::receiver(state), output),
            Command::ClientTrackingInfo => tracking::show_tracking(state, output),
            Command::Subscribe(channels) => {
                tracking::subscribe(cx, self.client, state, *channels, output);
            }
            Command::Unsubscribe(channels) => tracking::unsubscribe(state, *channels, output),
            Command::ScriptLoad(text) => match script::load(cx.host, text) {
                Ok((_, hash)) => reply::bulk(hex(&hash).as_bytes(), output),
                Err(error) => reply::error(&error, output),
            },
            Command::ScriptExists(hashes) => {
                reply::array(hashes.len(), output);
                for hash in *hashes {
                    let script = parse_hash(hash).and_then(|hash| script::known(cx.host, &hash));
                    reply::integer(script.is_some().into(), output);
                }
            }
            Command::ScriptFlush => {
                cx.host.forget_scripts();
                reply::ok(output);
            }
            Command::Scan(_) | Command::Keys(_) if !cx.host.dumps_allowed() => {
                reply::error(&CommandError::DumpsDisabled, output);
            }
            Command::Scan(scan) => {
                let key_scan = KeyScan::scan(&*cx.operations.engine, scan);
                self.pending = Pending::KeyScan(Box::new(key_scan));
            }
            Command::Keys(pattern) => {
                let key_scan = KeyScan::keys(&*cx.operations.engine, pattern);
                self.pending = Pending::KeyScan(Box::new(key_scan));
            }
            Command::DbSize => {
                let items = cx.operations.engine.gauges().items;
                reply::integer(i64::try_from(items).unwrap_or(i64::MAX), output);
            }
            Command::Info(sections) => info(cx, version, *sections, output),
            Command::Role => reply::role(&cx.host.replication().unwrap_or_default(), output),
            Command::Commands => reply::commands(output),
            Command::CommandCount => reply::command_count(output),
            Command::CommandList(filter) => reply::command_list(*filter, output),
            Command::CommandDocs => reply::command_docs(version, output),
            Command::CommandInfo(names) => {
                reply::array(names.len(), output);
                names.for_each(|name| reply::command_info(version, name, output));
            }
            Command::ConfigGet(patterns) => {
                let mut settings = reply::Settings {
                    limit_bytes: cx.operations.engine.gauges().limit_bytes,
                    bulk_len_max: bulk_len_max(cx),
                    databases: cx.settings.resp_databases,
                    ..reply::Settings::default()
                };
                cx.host.stats(b"settings", &mut |name, value| match name {
                    "maxconns" => value.clone_into(&mut settings.connections_max),
                    "evictions" => settings.evicts = value == "on",
                    _ => (),
                });
                reply::config(version, *patterns, &settings, output);
            }
            Command::ConfigSet(settings) => {
                if let Err(error) = set_settings(cx, *settings) {
                    reply::error(&error, output);
                    return Outcome::Done;
                }
                reply::ok(output);
            }
            Command::ConfigResetStat => {
                cx.host.stats(b"reset", &mut |_, _| ());
                cx.operations.engine.reset_counters();
                reply::ok(output);
            }
            Command::LatencyHistogram(names) => {
                reply::latencies(version, &latencies(cx, *names), output);
            }
            // The server records no slow events: `latency-monitor-threshold` and `slowlog-max-len`
            // are 0.
            Command::LatencyLatest | Command::SlowLogGet => reply::array(0, output),
            Command::LatencyReset | Command::SlowLogLen => reply::integer(0, output),
            Command::SlowLogReset => reply::ok(output),
            Command::Time => {
                let now = cx.operations.now;
                reply::time(now.unix_millis_of(now.in_millis()), output);
            }
            // The server's option `--ack`, not the client, determines which changes wait for
            // replicas.
            Command::Wait => reply::integer(0, output),
            Command::Reset => {
                state.reset(cx.host);
                state.release(cx.host);
                self.close_routes();
                reply::reset(output);
            }
            Command::Quit => {
                reply::ok(output);
                return Outcome::Close;
            }
            Command::Exec => return self.execute_transaction(cx, state, output),
            Command::Watch(keys) => return watch(cx, state, *keys, output),
            Command::Unwatch => {
                state.watched = Vec::new();
                state.release(cx.host);
                reply::ok(output);
            }
            Command::Hello(hello) => {
                let done = self::hello(cx, state, hello);
                if done.is_ok() {
                    // Close the open routes: the RESP version may have changed, and a route cannot
                    // change its version.
                    self.close_routes();
                    let follows = cx.host.replication().is_some_and(|of| of.link.is_some());
                    reply::hello(state.version, self.client, follows, output);
                }
                return answer(done, output);
            }
            Command::Auth(auth) => return answer_ok(log_in(cx, state, auth), output),
            Command::ClientSetName(name) => return answer_ok(set_name(cx, state, name), output),
            Command::Flush => return answer_ok(flush(cx), output),
            Command::DropTag(_) if !cx.operations.engine.has_tags() => {
                return answer_ok(Err(CommandError::NoTags), output);
            }
            Command::DropTag(tag) => {
                reply::integer(cx.operations.drop_tag(tag).into(), output);
            }
            Command::Multi => return answer_ok(start_transaction(state), output),
            Command::Discard => {
                let kept = state.transaction.take();
                if kept.is_some() {
                    state.watched = Vec::new();
                }
                state.release(cx.host);
                let done = kept.map(drop).ok_or(CommandError::DiscardWithoutMulti);
                return answer_ok(done, output);
            }
            Command::Item(..) | Command::Items(_) => (),
            Command::CopyItem(_) | Command::AddItems(_) | Command::Script(_) => (),
        }
        Outcome::Done
    }
}

/// If a command has failed, writes its error.
fn answer(done: CommandResult, output: &mut Vec<u8>) -> Outcome {
    if let Err(error) = done {
        reply::error(&error, output);
    }
    Outcome::Done
}

fn answer_ok(done: CommandResult, output: &mut Vec<u8>) -> Outcome {
    if done.is_ok() {
        reply::ok(output);
    }
    answer(done, output)
}

fn start_transaction(state: &mut State) -> CommandResult {
    if state.transaction.is_some() {
        return Err(CommandError::NestedMulti);
    }
    state.transaction = Some(Transaction::default());
    Ok(())
}

/// Executes `SELECT`. Checks only the number, because all databases contain the same items.
fn select<E: Engine, H: Host>(cx: &Context<'_, E, H>, number: i32) -> CommandResult {
    if cx.settings.has_resp_database(number) { Ok(()) } else { Err(CommandError::DatabaseRange) }
}

/// Executes `CONFIG SET`. If one setting is refused, changes none of them.
fn set_settings<'b, E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    settings: Arguments<'b>,
) -> Result<(), CommandError<'b>> {
    for (index, name) in settings.step_by(2).enumerate() {
        if !name.eq_ignore_ascii_case(b"maxmemory") {
            return Err(CommandError::ConfigName(name));
        }
        if index > 0 {
            return Err(CommandError::DuplicateSetting(name));
        }
    }
    let limit = { settings }.nth(1).map(|value| bytes_of(value).ok_or(CommandError::NoMemoryValue));
    let limit = limit.transpose()?;
    let Some(bytes) = limit else { return Ok(()) };
    let set = cx.host.set_memory_limit(u32::try_from(bytes >> 20).unwrap_or(u32::MAX));
    let bytes_of_mib = |mib: usize| (mib as u64) << 20;
    set.map_err(|range| {
        CommandError::MemoryRange(bytes_of_mib(*range.start()), bytes_of_mib(*range.end()))
    })
}

/// Parses a size with an optional unit, such as `100mb`, and returns it in bytes. `k`, `m` and `g`
/// are decimal. `kb`, `mb` and `gb` are binary.
fn bytes_of(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..)? {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Returns the cumulative latency histograms of the classes with these names, with at most one
/// bucket per power of two. Without names, returns all classes. Omits classes without requests.
fn latencies<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    names: Arguments<'_>,
) -> Vec<reply::ClassLatencies> {
    let latencies = cx.host.latencies();
    let is_requested = |class: &CommandClass| {
        let is_named = |name: &[u8]| name.eq_ignore_ascii_case(class.name().as_bytes());
        names.len() == 0 || { names }.any(is_named)
    };
    let classes = CommandClass::ALL.into_iter().filter(is_requested);
    let classes = classes.map(|class| {
        let histogram = latencies.of(class);
        let (mut below, mut micros) = (0, Vec::new());
        for (i, count) in histogram.buckets().enumerate() {
            below += count;
            let nanos = Histogram::BOUNDS.get(i).or(Histogram::BOUNDS.last());
            let micro = nanos.map_or(0, |nanos| nanos.div_ceil(1000));
            let is_octave = i % Histogram::PER_OCTAVE.unsigned_abs() as usize == 0;
            let is_new = micros.last().is_none_or(|(_, before)| *before < below);
            if is_octave && is_new && below > 0 {
                micros.push((micro, below));
            }
        }
        let count = histogram.count();
        if let Some(last) = Histogram::BOUNDS.last()
            && micros.last().is_none_or(|(_, before)| *before < count)
        {
            micros.push((last.div_ceil(1000), count));
        }
        reply::ClassLatencies { name: class.name(), count, micros }
    });
    classes.filter(|class| class.count > 0).collect()
}

fn flush<E: Engine, H: Host>(cx: &mut Context<'_, E, H>) -> CommandResult {
    cx.operations.counters.thread.cmd_flush.add(1);
    if !cx.settings.flush_enabled {
        return Err(CommandError::FlushDisabled);
    }
    cx.operations.flush(Expiry::Never);
    Ok(())
}

fn set_name<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    state: &mut State,
    name: &[u8],
) -> CommandResult {
    if !state.reserve(cx.host, name.len()) {
        return Err(CommandError::OutOfMemory);
    }
    state.name = name.to_vec();
    state.release(cx.host);
    Ok(())
}

/// Executes `HELLO`. If the login fails, changes nothing.
fn hello<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    hello: &Hello<'_>,
) -> CommandResult {
    if let Some(credentials) = &hello.credentials {
        authenticate(cx, state, credentials)?;
    }
    if state.needs_login() {
        return Err(CommandError::HelloLogin);
    }
    if let Some(name) = hello.client_name {
        set_name(cx, state, name)?;
    }
    match hello.resp3 {
        Some(true) => state.version = Version::Resp3,
        Some(false) => state.version = Version::Resp2,
        None => (),
    }
    Ok(())
}

fn log_in<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    auth: &Auth<'_>,
) -> CommandResult {
    if !state.login_required && !auth.is_named {
        return Err(CommandError::NoPassword);
    }
    authenticate(cx, state, &auth.credentials)
}

/// Checks a name and a password. If the server requires no login, accepts the user `default` with
/// any password.
fn authenticate<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    credentials: &Credentials<'_>,
) -> CommandResult {
    let thread = &cx.operations.counters.thread;
    thread.auth_cmds.add(1);
    let is_right = if state.login_required {
        cx.host.authenticate(credentials)
    } else {
        credentials.user == b"default"
    };
    if !is_right {
        thread.auth_errors.add(1);
        return Err(CommandError::WrongPassword);
    }
    state.is_logged_in = true;
    Ok(())
}

fn info<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    version: Version,
    sections: Arguments<'_>,
    output: &mut Vec<u8>,
) {
    let mut page = reply::InfoPage::new(sections);
    let mut set = |name: &str, value: &str| page.set(name, value);
    cx.host.stats(b"settings", &mut |name, value| {
        if (name, value) == ("evictions", "on") {
            set(reply::MAXMEMORY_POLICY, reply::EVICTING_POLICY);
        }
    });
    cx.host.stats(b"memory", &mut set);
    cx.host.stats(b"", &mut set);
    let latencies = cx.host.latencies();
    page.set_commands(CommandClass::ALL.into_iter().map(|class| latencies.of(class).count()).sum());
    page.set_replication(cx.host.replication());
    page.write(version, output);
}
