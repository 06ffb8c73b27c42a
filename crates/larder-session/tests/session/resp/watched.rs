//! Tests `WATCH`: transactions that are executed only if the watched items have not changed.

use super::{check, client, close, requests};
use crate::common::{TestEngine, new_server};

for_each_engine! { transactions_see_changes changes_between_requests_are_not_lost a_stopped_rename_loses_no_item a_stopped_command_leaves_the_connection_in_step lookups_do_not_stop_a_transaction items_that_appear_are_not_overwritten a_lost_leadership_ends_a_transaction }

/// Checks that changes of watched items stop a transaction. The expected replies come from
/// redis-server.
fn transactions_see_changes(engine: TestEngine) {
    let ok = "+OK\r\n";
    let (queued, aborted) = ("+OK\r\n+QUEUED\r\n", "*-1\r\n");
    let conversations: [(&[&str], String); 13] = [
        (
            &["SET k 1", "WATCH k none", "MULTI", "INCR k", "GET k", "INCR k", "EXEC"],
            format!("{ok}{ok}{queued}+QUEUED\r\n+QUEUED\r\n*3\r\n:2\r\n$1\r\n2\r\n:3\r\n"),
        ),
        (
            &["WATCH k", "SET k 4", "MULTI", "SET k 5", "EXEC", "GET k"],
            format!("{ok}{ok}{queued}{aborted}$1\r\n4\r\n"),
        ),
        (
            &["WATCH k none", "SET none x", "MULTI", "INCR k", "EXEC", "DEL none"],
            format!("{ok}{ok}{queued}{aborted}:1\r\n"),
        ),
        (
            &["WATCH k", "EXPIRE k 100", "MULTI", "INCR k", "EXEC", "PERSIST k"],
            format!("{ok}:1\r\n{queued}{aborted}:1\r\n"),
        ),
        (&["WATCH k", "DEL k", "MULTI", "INCR k", "EXEC"], format!("{ok}:1\r\n{queued}{aborted}")),
        (
            &["WATCH k", "SET k 7", "UNWATCH", "MULTI", "INCR k", "EXEC"],
            format!("{ok}{ok}{ok}{queued}*1\r\n:8\r\n"),
        ),
        (
            &["WATCH k", "SET k 9", "MULTI", "DISCARD", "MULTI", "INCR k", "EXEC"],
            format!("{ok}{ok}{ok}{ok}{queued}*1\r\n:10\r\n"),
        ),
        (
            &["WATCH k", "MULTI", "EXEC", "SET k 1", "MULTI", "INCR k", "EXEC"],
            format!("{ok}{ok}*0\r\n{ok}{queued}*1\r\n:2\r\n"),
        ),
        (
            &["WATCH k", "MULTI", "MGET k k", "MSET k 3 l 4", "EXEC"],
            format!("{ok}{queued}+QUEUED\r\n*2\r\n*2\r\n$1\r\n2\r\n$1\r\n2\r\n{ok}"),
        ),
        (
            &["MULTI", "WATCH k", "UNWATCH", "EXEC", "WATCH"],
            format!(
                "{ok}-ERR WATCH inside MULTI is not allowed\r\n+QUEUED\r\n*1\r\n{ok}\
                 -ERR wrong number of arguments for 'watch' command\r\n"
            ),
        ),
        (
            &["SET e v", "FLUSHALL", "SET k 3", "WATCH e", "MULTI", "GET e", "SET e w", "EXEC"],
            format!("{ok}{ok}{ok}{ok}{queued}+QUEUED\r\n*2\r\n$-1\r\n{ok}"),
        ),
        (
            &["SET k 1", "WATCH k", "MULTI", "FLUSHALL", "SET k 3", "INCR k", "EXEC"],
            format!("{ok}{ok}{queued}+QUEUED\r\n+QUEUED\r\n*3\r\n{ok}{ok}:4\r\n"),
        ),
        (&["WATCH k", "FLUSHALL", "MULTI", "INCR k", "EXEC"], format!("{ok}{ok}{queued}{aborted}")),
    ];
    let sent = conversations.iter().flat_map(|(lines, _)| requests(lines)).collect::<Vec<_>>();
    let expected: String = conversations.iter().map(|(_, answers)| answers.as_str()).collect();
    check(engine, false, &sent, &expected);
}

/// Checks that a transaction loses no change by another connection. In each run, the other
/// connection changes the watched item after a different number of polls.
fn changes_between_requests_are_not_lost(engine: TestEngine) {
    let mut seen = [0; 3];
    for changes_after in 0..14 {
        let mut server = new_server(engine);
        server.settings.requests_per_poll = 1;
        let (mut watching, mut other) = (client(false), client(false));
        other.send(&mut server, &requests(&["SET k 1"]));
        watching.unread =
            requests(&["WATCH k", "MULTI", "GET k", "SET a 1", "SET k 2", "APPEND k x", "EXEC"]);
        for polls in 0..40 {
            if polls == changes_after {
                other.send(&mut server, &requests(&["SET k other"]));
            }
            watching.poll(&mut server);
        }
        watching.send(&mut server, b"");
        let mut reads = client(false);
        reads.send(&mut server, &requests(&["GET k", "GET a"]));
        let answer = String::from_utf8(watching.received).unwrap();
        let found = String::from_utf8(close(server, reads)).unwrap();
        let (kind, expected) = if answer.ends_with("*-1\r\n") {
            (0, vec!["$5\r\nother\r\n$-1\r\n".to_owned()])
        } else if answer.contains("-EXECABORT a watched key has changed") {
            (1, vec!["$5\r\nother\r\n$1\r\n1\r\n".to_owned()])
        } else {
            let changed = ["2x", "otherx", "other"];
            let found = changed.map(|k| format!("${}\r\n{k}\r\n$1\r\n1\r\n", k.len()));
            (2, found.to_vec())
        };
        seen[kind] += 1;
        assert!(expected.contains(&found), "after {changes_after}: {answer}{found}");
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// Checks that no item is lost if another connection stops a transaction within a `RENAME`. In each
/// run, the other connection changes one of the two items after a different number of polls.
fn a_stopped_rename_loses_no_item(engine: TestEngine) {
    for changed in ["from", "to"] {
        let mut stopped = 0;
        for changed_after in 0..14 {
            let mut server = new_server(engine);
            server.settings.requests_per_poll = 1;
            let (mut watching, mut other) = (client(false), client(false));
            other.send(&mut server, &requests(&["MSET from 1 to 2"]));
            let watch = format!("WATCH {changed}");
            watching.unread =
                requests(&[&watch, "MULTI", "SET a 1", "RENAME from to", "MGET a none", "EXEC"]);
            for polls in 0..40 {
                if polls == changed_after {
                    other.send(&mut server, &requests(&[&format!("SETRANGE {changed} 0 3")]));
                }
                watching.poll(&mut server);
            }
            watching.send(&mut server, b"");
            let answer = String::from_utf8(watching.received).unwrap();
            let mut reads = client(false);
            reads.send(&mut server, &requests(&["GET from"]));
            let from = String::from_utf8(close(server, reads)).unwrap();
            if answer.contains("EXECABORT") || answer.ends_with("*-1\r\n") {
                assert_ne!(from, "$-1\r\n", "{changed} after {changed_after}: {answer}");
            }
            stopped += usize::from(answer.contains("EXECABORT"));
        }
        assert!(stopped > 0, "{changed}");
    }
}

/// Checks that the replies after a transaction are correct even if a change by another connection
/// stops one of its commands. In each run, the other connection changes the watched item after a
/// different number of polls.
fn a_stopped_command_leaves_the_connection_in_step(engine: TestEngine) {
    let large = "x".repeat(200_000);
    for command in ["DEL k other", "GETEX k EX 100", "SET k 1 GET"] {
        let mut stopped = 0;
        for changed_after in 0..16 {
            let mut server = new_server(engine);
            server.settings.requests_per_poll = 1;
            let (mut watching, mut other) = (client(false), client(false));
            let set = format!("SET k {large}");
            other.send(&mut server, &requests(&[&set, "MSET other 2 a 1 b 2"]));
            watching.unread =
                requests(&["WATCH k", "MULTI", "SET a 1", command, "EXEC", "MGET a b", "PING"]);
            for polls in 0..60 {
                if polls == changed_after {
                    other.send(&mut server, &requests(&["EXPIRE k 1000"]));
                }
                watching.poll(&mut server);
            }
            watching.send(&mut server, b"");
            let answer = String::from_utf8(watching.received).unwrap();
            let end = "*2\r\n$1\r\n1\r\n$1\r\n2\r\n+PONG\r\n";
            let shown = answer.replace(&large, "<large>");
            assert!(answer.ends_with(end), "{command} after {changed_after}: {shown}");
            if answer.contains("EXECABORT") {
                assert!(!answer.contains("xx"), "{command} after {changed_after}: {shown}");
                stopped += 1;
            }
        }
        assert!(stopped > 0, "{command}");
    }
}

/// Checks that lookups do not stop a transaction if another connection flushes all items. In each
/// run, the flush happens after a different number of polls, in some runs while the session sends a
/// large value.
fn lookups_do_not_stop_a_transaction(engine: TestEngine) {
    let large = "x".repeat(200_000);
    let mut executed = 0;
    for flushed_after in 0..16 {
        let mut server = new_server(engine);
        server.settings.requests_per_poll = 1;
        let (mut watching, mut other) = (client(false), client(false));
        other.send(&mut server, &requests(&[&format!("MSET big {large} k 1 x 2")]));
        watching.unread = requests(&["WATCH k", "MULTI", "MGET big k x", "EXEC", "PING"]);
        for polls in 0..60 {
            if polls == flushed_after {
                other.send(&mut server, &requests(&["FLUSHALL"]));
            }
            watching.poll(&mut server);
        }
        watching.send(&mut server, b"");
        let answer = String::from_utf8(watching.received).unwrap();
        let big = format!("$200000\r\n{large}\r\n");
        let short = answer.replace(&big, "$-1\r\n").replace("$1\r\n1\r\n", "$-1\r\n");
        let short = short.replace("$1\r\n2\r\n", "$-1\r\n");
        let values = "*1\r\n*3\r\n$-1\r\n$-1\r\n$-1\r\n+PONG\r\n";
        executed += usize::from(short.ends_with(values));
        let is_right = short.ends_with(values) || short.ends_with("+QUEUED\r\n*-1\r\n+PONG\r\n");
        assert!(is_right, "after {flushed_after}: {short}");
    }
    assert!(executed > 2, "{executed}");
}

/// Checks that a transaction does not overwrite an item that another connection stores after the
/// transaction has found no such item, or has removed it.
fn items_that_appear_are_not_overwritten(engine: TestEngine) {
    for first in ["GET k", "DEL k"] {
        let mut refused = 0;
        for stored_after in 0..14 {
            let mut server = new_server(engine);
            server.settings.requests_per_poll = 1;
            let (mut watching, mut other) = (client(false), client(false));
            // The first lookup removes a flushed item.
            other.send(&mut server, &requests(&["SET k old", "FLUSHALL"]));
            watching.unread = requests(&["WATCH k", "MULTI", first, "SET k 2", "EXEC"]);
            for polls in 0..40 {
                if polls == stored_after {
                    other.send(&mut server, &requests(&["SETNX k other"]));
                }
                watching.poll(&mut server);
            }
            watching.send(&mut server, b"");
            let answer = String::from_utf8(watching.received).unwrap();
            // The replies to WATCH and MULTI are OK, too.
            let overwrote = answer.matches("+OK").count() == 3;
            let stored = other.received.ends_with(b":1\r\n");
            assert!(!overwrote || !stored || stored_after == 0, "{stored_after}: {answer}");
            refused += usize::from(stored && !overwrote);
        }
        assert!(refused > 2, "{first}: {refused}");
    }
}

/// Checks that a transaction ends if the server loses the leadership of its group. In each run, the
/// loss happens after a different number of polls.
fn a_lost_leadership_ends_a_transaction(engine: TestEngine) {
    let mut seen = [0; 3];
    for lost_after in 1..14 {
        let mut server = new_server(engine);
        server.settings.requests_per_poll = 1;
        server.settings.forwards = true;
        server.host.leads = true;
        server.host.leader = Some(Box::new(|_, _| unreachable!("nothing is sent to the leader")));
        let mut watching = client(false);
        watching.unread = requests(&["WATCH k", "MULTI", "GET k", "SET k 2", "EXEC"]);
        for polls in 0..40 {
            server.host.leads = polls < lost_after;
            watching.poll(&mut server);
        }
        watching.send(&mut server, b"");
        server.host.leads = true;
        let mut reads = client(false);
        reads.send(&mut server, &requests(&["GET k"]));
        let answer = String::from_utf8(watching.received).unwrap();
        let found = String::from_utf8(close(server, reads)).unwrap();
        let kind = ["*-1\r\n", "were not executed\r\n", "*2\r\n$-1\r\n+OK\r\n"]
            .iter()
            .position(|end| answer.ends_with(end));
        let kind = kind.unwrap_or_else(|| panic!("after {lost_after}: {answer}"));
        seen[kind] += 1;
        assert_eq!(found, ["$-1\r\n", "$-1\r\n", "$1\r\n2\r\n"][kind], "after {lost_after}");
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
