//! Requests and the interpretation of their replies.
//!
//! Operations use classic commands where possible, because every server supports them. Base64 keys
//! and some features need meta commands.
//!
//! | file | contains |
//! |---|---|
//! | `interface.rs` | the interface of all operations |
//! | `get.rs`, `store.rs`, `change.rs` | operations on items |
//! | `server.rs` | operations on a server |
//! | `batch.rs` | several operations of one kind |

pub(crate) mod batch;
mod change;
mod get;
mod interface;
mod server;
mod store;

pub(crate) use change::{Count, Delete, Touch};
pub(crate) use get::{Get, GetMany, opaque};
#[cfg(feature = "pipeline")]
pub(crate) use interface::one;
pub(crate) use interface::{Operation, ReplyFailure, check};
pub(crate) use server::{Flush, MetaProbe, Stats, Version};
pub(crate) use store::Store;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::connection::Connection;
    use crate::core::key::Key;
    use crate::error::ErrorKind;
    use crate::item::{CountOutcome, Item, StoreOutcome};
    use larder_protocol::encode::NewItem;
    use larder_protocol::{Exptime, StoreMode};

    fn key(bytes: &str) -> Key<'_> {
        Key::new(bytes.as_bytes()).unwrap()
    }

    /// Compares the encoded request with `request`, and returns the operation's output for these
    /// replies.
    fn check<O: Operation>(
        mut operation: O,
        request: &str,
        answers: &str,
    ) -> Result<O::Output, ReplyFailure> {
        let mut connection = Connection::default();
        operation.encode(&mut connection);
        assert_eq!(std::str::from_utf8(connection.output()).unwrap(), request);
        connection.sent(request.len());
        connection.room()[..answers.len()].copy_from_slice(answers.as_bytes());
        connection.received(answers.len());
        while let Some(reply) = connection.next_reply().unwrap() {
            if let Some(output) = operation.take(&reply)? {
                assert!(connection.is_settled(), "the connection is settled");
                return Ok(output);
            }
        }
        panic!("the reply is incomplete");
    }

    fn value(item: Option<Item>) -> Option<(String, u32, Option<u64>)> {
        item.map(|item| (String::from_utf8(item.value.to_vec()).unwrap(), item.flags, item.cas))
    }

    #[test]
    fn lookups_are_encoded_and_decoded() {
        let get = |name, cas, touch| Get { key: key(name), cas, touch };
        let hit =
            check(get("a", false, None), "get a\r\n", "VALUE a 7 2\r\nhi\r\nEND\r\n").unwrap();
        assert_eq!(value(hit), Some(("hi".into(), 7, None)));
        let hit =
            check(get("a", true, None), "gets a\r\n", "VALUE a 0 0 9\r\n\r\nEND\r\n").unwrap();
        assert_eq!(value(hit), Some((String::new(), 0, Some(9))));
        let expiry = Some(Exptime(60));
        assert_eq!(check(get("a", false, expiry), "gat 60 a\r\n", "END\r\n").unwrap(), None);
        let mine = opaque(key("a b"));
        let request = format!("mg YSBi b f v O{mine}\r\n");
        let answer = format!("VA 2 f7 O{mine} b\r\nhi\r\n");
        let hit = check(get("a b", false, None), &request, &answer).unwrap();
        assert_eq!(value(hit), Some(("hi".into(), 7, None)));
        assert_eq!(check(get("a b", false, None), &request, "EN\r\n").unwrap(), None);
    }

    #[test]
    fn a_value_of_another_key_is_never_returned() {
        let get = || Get { key: key("a"), cas: false, touch: None };
        for answer in [
            "VALUE b 0 1\r\nx\r\nEND\r\n",
            "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\ny\r\nEND\r\n",
            "VA 1\r\nx\r\nEND\r\n",
        ] {
            let failure = check(get(), "get a\r\n", answer).unwrap_err();
            assert!(
                failure.is_fatal && matches!(failure.kind, ErrorKind::Unexpected(_)),
                "{answer}"
            );
        }
        let in_base64 = Get { key: key("a b"), cas: false, touch: None };
        let (mine, other) = (opaque(key("a b")), opaque(key("a c")));
        let request = format!("mg YSBi b f v O{mine}\r\n");
        let failure = check(in_base64, &request, &format!("VA 1 O{other}\r\nx\r\n")).unwrap_err();
        assert!(failure.is_fatal);
        let keys = ["a", "b"].map(key);
        for other in ["c", "a"] {
            let hits = format!("VALUE a 0 1\r\nx\r\nVALUE {other} 0 1\r\ny\r\nEND\r\n");
            let failure = check(GetMany::new(&keys, false), "get a b\r\n", &hits);
            assert!(failure.unwrap_err().is_fatal, "{other}");
        }
    }

    #[test]
    fn hits_may_arrive_in_any_order() {
        let keys = ["a", "b", "c", "a", "d"].map(key);
        let hits = ["d", "a", "b", "a"].map(|key| format!("VALUE {key} 0 1\r\n{key}\r\n"));
        let found = check(
            GetMany::new(&keys, false),
            "get a b c a d\r\n",
            &format!("{}END\r\n", hits.concat()),
        );
        let found = found.unwrap().into_iter().map(|item| value(item).map(|item| item.0));
        let expected =
            ["a", "b", "", "a", "d"].map(|name| (!name.is_empty()).then(|| name.to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn several_keys_are_requested_by_line() {
        let keys = ["a", "b", "x y", "c", "a"].map(key);
        let mine = opaque(keys[2]);
        let found = check(
            GetMany::new(&keys, false),
            &format!("get a b\r\nmg eCB5 b f v O{mine}\r\nget c a\r\n"),
            &format!(
                "VALUE b 1 1\r\n2\r\nEND\r\nVA 1 f2 O{mine}\r\n3\r\nVALUE a 0 1\r\n1\r\nEND\r\n"
            ),
        )
        .unwrap();
        let found: Vec<_> = found.into_iter().map(|item| value(item).map(|item| item.0)).collect();
        assert_eq!(found, [None, Some("2".into()), Some("3".into()), None, Some("1".into())]);
        let many: Vec<String> = (0..250).map(|n| format!("k{n}")).collect();
        let keys: Vec<Key<'_>> = many.iter().map(|name| key(name)).collect();
        let lines = many.chunks(100).map(|names| format!("get {}\r\n", names.join(" ")));
        let found =
            check(GetMany::new(&keys, false), &lines.collect::<String>(), &"END\r\n".repeat(3));
        assert_eq!(found.unwrap(), vec![None; 250]);
    }

    #[test]
    fn changes_are_encoded_and_decoded() {
        let store = |name, mode, compare| {
            let item = NewItem { value: b"hi", client_flags: 7, expiry: Exptime(60) };
            Store { key: key(name), mode, item, compare }
        };
        for (request, answer, expected) in [
            ("set a 7 60 2\r\nhi\r\n", "STORED\r\n", StoreOutcome::Stored),
            ("set a 7 60 2\r\nhi\r\n", "NOT_STORED\r\n", StoreOutcome::NotStored),
        ] {
            assert_eq!(check(store("a", StoreMode::Set, None), request, answer).unwrap(), expected);
        }
        let cas =
            check(store("a", StoreMode::Set, Some(9)), "cas a 7 60 2 9\r\nhi\r\n", "EXISTS\r\n");
        assert_eq!(cas.unwrap(), StoreOutcome::Exists);
        let request = "ms YSBi 2 b MA F7 T60\r\nhi\r\n";
        assert_eq!(
            check(store("a b", StoreMode::Append, None), request, "NS\r\n").unwrap(),
            StoreOutcome::NotStored
        );
        let delete = |name, stale| Delete { key: key(name), compare: None, stale };
        assert!(check(delete("a", None), "delete a\r\n", "DELETED\r\n").unwrap());
        assert!(!check(delete("a b", None), "md YSBi b\r\n", "NF\r\n").unwrap());
        assert!(check(delete("a", Some(Exptime(30))), "md a I T30\r\n", "HD\r\n").unwrap());
        let touch = |name| Touch { key: key(name), expiry: Exptime(60) };
        assert!(check(touch("a"), "touch a 60\r\n", "TOUCHED\r\n").unwrap());
        assert!(!check(touch("a b"), "mg YSBi b T60\r\n", "EN\r\n").unwrap());
        let count = |name, create| Count { key: key(name), down: true, delta: 5, create };
        assert_eq!(
            check(count("n", None), "decr n 5\r\n", "37\r\n").unwrap(),
            CountOutcome::Number(37)
        );
        assert_eq!(
            check(count("n", None), "decr n 5\r\n", "NOT_FOUND\r\n").unwrap(),
            CountOutcome::NotFound
        );
        let error = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        assert_eq!(
            check(count("n", None), "decr n 5\r\n", error).unwrap(),
            CountOutcome::NotANumber
        );
        let create = Some((100, Exptime(60)));
        let request = "ma n v MD D5 N60 J100\r\n";
        assert_eq!(
            check(count("n", create), request, "VA 3\r\n100\r\n").unwrap(),
            CountOutcome::Number(100)
        );
    }

    #[test]
    fn server_errors_are_classified() {
        let set = || Store {
            key: key("a"),
            mode: StoreMode::Set,
            item: NewItem::of(b"x"),
            compare: None,
        };
        let failure = |answer| check(set(), "set a 0 0 1\r\nx\r\n", answer).unwrap_err();
        let full = failure("SERVER_ERROR out of memory storing object\r\n");
        assert!(!full.is_fatal && full.is_definite && matches!(full.kind, ErrorKind::Server(_)));
        let timeout = failure("SERVER_ERROR timed out waiting for the backend\r\n");
        assert!(!timeout.is_definite && matches!(timeout.kind, ErrorKind::Server(_)));
        let crowded = failure("ERROR Too many open connections\r\n");
        assert!(crowded.is_definite && matches!(crowded.kind, ErrorKind::Connect(_)));
        let refused = failure("CLIENT_ERROR bad data chunk\r\n");
        assert!(refused.is_fatal && matches!(refused.kind, ErrorKind::Refused(_)));
        for other in ["ERROR\r\n", "END\r\n", "what?\r\n"] {
            let failure = failure(other);
            assert!(
                failure.is_fatal
                    && !failure.is_definite
                    && matches!(failure.kind, ErrorKind::Unexpected(_)),
                "{other}"
            );
        }
    }

    #[test]
    fn server_operations_are_encoded_and_decoded() {
        let page = check(Stats(None), "stats\r\n", "STAT a 1\r\nSTAT b x y\r\nEND\r\n").unwrap();
        assert_eq!(page, [("a".into(), "1".into()), ("b".into(), "x y".into())]);
        assert_eq!(check(Version, "version\r\n", "VERSION 1.6.18\r\n").unwrap(), "1.6.18");
        assert!(check(MetaProbe, "mn\r\n", "MN\r\n").unwrap());
        assert!(!check(MetaProbe, "mn\r\n", "ERROR\r\n").unwrap());
        assert!(check(MetaProbe, "mn\r\n", "SERVER_ERROR out of memory\r\n").is_err());
        check(Flush(Exptime::NEVER), "flush_all 0\r\n", "OK\r\n").unwrap();
    }
}
