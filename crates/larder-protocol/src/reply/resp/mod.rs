//! Encoding of replies in RESP2 and RESP3, with redis-server's messages.

mod client_page;
mod command_table;
mod element;
mod error;
mod replication;
mod server_page;
mod tracking;

pub use client_page::*;
pub use command_table::*;
pub use element::*;
pub use error::*;
pub use replication::*;
pub use server_page::*;
pub use tracking::*;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Arguments, Bounds, Command, ProtocolError, Read, read, split_line};

    const BOUNDS: Bounds = Bounds { bulk_len_max: 1000, request_len_max: 4000, needs_login: false };

    /// Returns the error in the reply to an inline request, empty if the request is valid.
    fn refusal(line: &str) -> String {
        let (mut raw, mut out) = (Vec::new(), Vec::new());
        split_line(line.as_bytes(), &mut raw).unwrap();
        let Read::Request { request, .. } = read(&raw, &BOUNDS) else { panic!("{line}") };
        let parsed = request.row().and_then(|(row, verb)| Command::parse(&request, verb, row.name));
        if let Err(refused) = parsed {
            error(&refused, &mut out);
        }
        String::from_utf8(out).unwrap().trim_end().to_owned()
    }

    /// The expected messages are those of redis-server 7.0.15.
    #[test]
    fn error_messages_match_redis_server() {
        for (line, expected) in [
            ("get k", ""),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("foo", "-ERR unknown command 'foo', with args beginning with: "),
            (r"foo 'a\'b' c", "-ERR unknown command 'foo', with args beginning with: 'a'b' 'c' "),
            (r#"foo "a\r\nb""#, "-ERR unknown command 'foo', with args beginning with: 'a  b' "),
            ("client", "-ERR wrong number of arguments for 'client' command"),
            ("client foo", "-ERR unknown subcommand 'foo'. Try CLIENT HELP."),
            ("client id x", "-ERR wrong number of arguments for 'client|id' command"),
            ("config get", "-ERR wrong number of arguments for 'config|get' command"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
            ("HELLO 3 foo", "-ERR Syntax error in HELLO option 'foo'"),
            ("HELLO 3 auth a", "-ERR Syntax error in HELLO option 'auth'"),
            ("HELLO 3 auth a b setname c", ""),
            ("select 0", ""),
            ("select x", "-ERR value is not an integer or out of range"),
            (
                "select 99999999999",
                "-ERR value is out of range, value must between -2147483648 and 2147483647",
            ),
            ("copy a b db 99 replace", ""),
            ("copy a b db x", "-ERR value is not an integer or out of range"),
            (
                "copy a b db 99999999999",
                "-ERR value is out of range, value must between -2147483648 and 2147483647",
            ),
            ("auth a b c", "-ERR syntax error"),
            ("ping a b", "-ERR wrong number of arguments for 'ping' command"),
            ("mset a b c", "-ERR wrong number of arguments for 'mset' command"),
            ("set k v ex 0", "-ERR invalid expire time in 'set' command"),
            ("setex k 0 v", "-ERR invalid expire time in 'setex' command"),
            ("set k v ex 9223372036854775807", "-ERR invalid expire time in 'set' command"),
            ("set k v EX", "-ERR syntax error"),
            ("set k v ex 1 ex 2", ""),
            ("set k v ex 1 px 2", "-ERR syntax error"),
            ("set k v keepttl ex 2", "-ERR syntax error"),
            ("set k v nx xx", "-ERR syntax error"),
            ("set k v KEEPTTL keepttl GET nx nx", ""),
            ("set k v persist", "-ERR syntax error"),
            ("set k v ex x", "-ERR value is not an integer or out of range"),
            ("getex k persist persist", ""),
            ("getex k nx", "-ERR syntax error"),
            ("expire k x foo", "-ERR Unsupported option foo"),
            ("expire k -1 gt", ""),
            (
                "expire k x nx xx",
                "-ERR NX and XX, GT or LT options at the same time are not compatible",
            ),
            ("expire k x gt lt", "-ERR GT and LT options at the same time are not compatible"),
            ("expire k 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
            ("decrby a -9223372036854775808", "-ERR decrement would overflow"),
            ("getrange k a b", "-ERR value is not an integer or out of range"),
            ("substr k a", "-ERR wrong number of arguments for 'substr' command"),
            ("flushall async", ""),
            ("flushall async a", "-ERR syntax error"),
            ("config set a", "-ERR wrong number of arguments for 'config|set' command"),
            ("client no-touch x", "-ERR syntax error"),
            ("memory usage k samples", "-ERR syntax error"),
            ("memory usage k samples 0", ""),
            (
                "client setname 'a b'",
                "-ERR Client names cannot contain spaces, newlines or special characters.",
            ),
        ] {
            assert_eq!(refusal(line), expected.trim_end(), "{line}");
        }
    }

    #[test]
    fn the_error_of_an_unknown_command_is_truncated() {
        let long = "x".repeat(200);
        let shown = refusal(&format!("{long} a {long} b"));
        let (name, argument) = ("x".repeat(128), "x".repeat(124));
        let expected =
            format!("-ERR unknown command '{name}', with args beginning with: 'a' '{argument}'");
        assert_eq!(shown, expected);
    }

    /// Calls `work` with the arguments of an inline request.
    fn with_arguments(line: &str, work: impl FnOnce(Arguments<'_>)) {
        let mut raw = Vec::new();
        split_line(line.as_bytes(), &mut raw).unwrap();
        let Read::Request { request, .. } = read(&raw, &BOUNDS) else { panic!("{line}") };
        work(request.arguments);
    }

    #[test]
    fn null_maps_and_texts_differ_between_resp2_and_resp3() {
        let mut out = Vec::new();
        for version in [Version::Resp2, Version::Resp3] {
            null(version, &mut out);
            with_arguments("get SA*", |patterns| {
                config(version, patterns, &Settings::default(), &mut out)
            });
            with_arguments("info persistence", |sections| {
                InfoPage::new(sections).write(version, &mut out);
            });
        }
        let page = "# Persistence\r\nloading:0\r\n";
        let expected = format!(
            "$-1\r\n*2\r\n$4\r\nsave\r\n$0\r\n\r\n$26\r\n{page}\r\n\
             _\r\n%1\r\n$4\r\nsave\r\n$0\r\n\r\n=30\r\ntxt:{page}\r\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn protocol_errors_match_redis_server() {
        let mut out = Vec::new();
        protocol_error(ProtocolError::NotBulk(b'\n'), &mut out);
        assert_eq!(out, b"-ERR Protocol error: expected '$', got ' '\r\n");
    }
}
