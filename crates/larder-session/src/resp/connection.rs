//! Commands about the connection and the server, and transactions.

use super::state::{State, Transaction};
use super::turn::{Outcome, bulk_len_max};
use crate::Host;
use crate::context::Context;
use crate::session::Session;
use larder_protocol::Credentials;
use larder_protocol::reply::resp::{self as reply, Version};
use larder_protocol::resp::{Arguments, Auth, Command, CommandError, Hello};
use larder_store::{Engine, Expiry};

type Done = Result<(), CommandError<'static>>;

impl<E: Engine> Session<E> {
    /// Answers a command that is not about items.
    pub(super) fn resp_command<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        command: &Command<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let version = state.version;
        match command {
            Command::Ping(None) => reply::pong(output),
            Command::Ping(Some(text)) | Command::Echo(text) => reply::bulk(text, output),
            Command::Select | Command::ClientSetInfo => reply::ok(output),
            Command::ClientId => reply::integer(self.client.cast_signed(), output),
            Command::ClientGetName if state.name.is_empty() => reply::null(version, output),
            Command::ClientGetName => reply::bulk(&state.name, output),
            Command::DbSize => {
                let items = cx.operations.engine.gauges().items;
                reply::integer(i64::try_from(items).unwrap_or(i64::MAX), output);
            }
            Command::Info(sections) => info(cx, version, *sections, output),
            Command::Commands => reply::commands(output),
            Command::CommandCount => reply::command_count(output),
            Command::CommandList => reply::command_list(output),
            Command::CommandDocs => reply::command_docs(version, output),
            Command::CommandInfo(names) => {
                reply::array(names.len(), output);
                names.for_each(|name| reply::command_info(version, name, output));
            }
            Command::ConfigGet(patterns) => {
                let limit_bytes = cx.operations.engine.gauges().limit_bytes;
                reply::config(version, *patterns, limit_bytes, bulk_len_max(cx), output);
            }
            Command::Time => reply::time(cx.operations.now.0, output),
            Command::Reset => {
                state.reset();
                state.release(cx.host);
                reply::reset(output);
            }
            Command::Quit => {
                reply::ok(output);
                return Outcome::Close;
            }
            Command::Exec => return answer(execute(state, output), output),
            Command::Hello(hello) => {
                let done = greet(cx, state, hello);
                if done.is_ok() {
                    reply::hello(state.version, self.client, output);
                }
                return answer(done, output);
            }
            Command::Auth(auth) => return answer_ok(log_in(cx, state, auth), output),
            Command::ClientSetName(name) => return answer_ok(set_name(cx, state, name), output),
            Command::Flush => return answer_ok(flush(cx), output),
            Command::Multi => return answer_ok(begin(state), output),
            Command::Discard => {
                let kept = state.transaction.take();
                state.release(cx.host);
                let done = kept.map(drop).ok_or(CommandError::DiscardWithoutMulti);
                return answer_ok(done, output);
            }
            Command::Item(..) | Command::Items(_) => (),
        }
        Outcome::Done
    }
}

/// Writes the error, if there is one.
fn answer(done: Done, output: &mut Vec<u8>) -> Outcome {
    if let Err(error) = done {
        reply::error(&error, output);
    }
    Outcome::Done
}

fn answer_ok(done: Done, output: &mut Vec<u8>) -> Outcome {
    if done.is_ok() {
        reply::ok(output);
    }
    answer(done, output)
}

fn begin(state: &mut State) -> Done {
    if state.transaction.is_some() {
        return Err(CommandError::NestedMulti);
    }
    state.transaction = Some(Transaction::default());
    Ok(())
}

/// Leaves the requests that were kept as a script.
fn execute(state: &mut State, output: &mut Vec<u8>) -> Done {
    let kept = state.transaction.take().ok_or(CommandError::ExecWithoutMulti)?;
    if kept.has_failed {
        return Err(CommandError::Aborted);
    }
    reply::array(kept.count, output);
    state.script.requests = kept.requests;
    state.script.at = 0;
    Ok(())
}

fn flush<E: Engine, H: Host>(cx: &mut Context<'_, E, H>) -> Done {
    cx.operations.counters.thread.cmd_flush.add(1);
    if !cx.settings.flush_enabled {
        return Err(CommandError::FlushDisabled);
    }
    cx.operations.flush(Expiry::Never);
    Ok(())
}

fn set_name<E: Engine, H: Host>(cx: &Context<'_, E, H>, state: &mut State, name: &[u8]) -> Done {
    if !state.reserve(cx.host, name.len()) {
        return Err(CommandError::OutOfMemory);
    }
    state.name = name.to_vec();
    state.release(cx.host);
    Ok(())
}

/// `HELLO`. If it is refused, nothing changes.
fn greet<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    hello: &Hello<'_>,
) -> Done {
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
) -> Done {
    if !state.login_required && !auth.is_named {
        return Err(CommandError::NoPassword);
    }
    authenticate(cx, state, &auth.credentials)
}

/// Checks a name and a password. Without logins, the user `default` has any password.
fn authenticate<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    credentials: &Credentials<'_>,
) -> Done {
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
    cx.host.stats(b"", &mut |name, value| page.set(name, value));
    page.write(version, output);
}
