//! redis-rs, a third-party client, with RESP2 and RESP3.

use crate::common::Server;
use redis::{
    Client, Commands, Connection, ErrorKind, ExistenceCheck, RedisResult, ServerErrorKind,
    SetExpiry, SetOptions, pipe,
};
use std::collections::HashSet;

fn connected(server: &Server, protocol: u8) -> Connection {
    let port = server.ports().pop().unwrap();
    let url = format!("redis://127.0.0.1:{port}/?protocol=resp{protocol}");
    Client::open(url).unwrap().get_connection().unwrap()
}

fn each_protocol(test: impl Fn(&mut Connection) -> RedisResult<()>) {
    let server = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    for protocol in [2, 3] {
        let mut client = connected(&server, protocol);
        let () = client.flushdb().unwrap();
        test(&mut client).unwrap();
    }
}

#[test]
fn values() {
    each_protocol(|client| {
        let () = client.set("key", "value")?;
        let found: [Option<String>; 2] = [client.get("key")?, client.get("none")?];
        assert_eq!(found, [Some("value".to_owned()), None]);
        let several: [Option<String>; 2] = client.mget(&["key", "none"])?;
        assert_eq!(several, found);
        let binary: Vec<u8> = (0..=255).cycle().take(900_000).collect();
        let () = client.set("binary", &binary)?;
        assert_eq!(client.get::<_, Vec<u8>>("binary")?, binary);
        assert_eq!(client.append::<_, _, usize>("key", "!")?, 6);
        assert_eq!(client.del::<_, usize>(&["key", "none", "binary"])?, 2);
        Ok(())
    });
}

/// A command that returns the old value must not change the item if the old value is too long for a
/// reply.
#[test]
fn an_old_value_that_is_too_long_to_return_stays() {
    let server = Server::larderd(&["-I", "4m", "-l", "proto[resp]:127.0.0.1"]);
    let mut client = connected(&server, 2);
    let value = vec![b'v'; (1 << 20) + 1];
    let () = client.set("long", &value).unwrap();
    let taken: RedisResult<Vec<u8>> = client.get_del("long");
    assert!(taken.unwrap_err().to_string().contains("OOM"));
    let replaced: RedisResult<Vec<u8>> =
        client.set_options("long", "new", SetOptions::default().get(true));
    assert!(replaced.unwrap_err().to_string().contains("OOM"));
    assert_eq!(client.get::<_, Vec<u8>>("long").unwrap(), value);
    let stored: RedisResult<()> = client.set_options("long", "new", SetOptions::default());
    stored.unwrap();
    assert_eq!(client.get_del::<_, String>("long").unwrap(), "new");
}

/// Monitoring agents and clients read these lines.
#[test]
fn info_has_the_version_and_the_number_of_keys() {
    let server = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    let mut client = connected(&server, 2);
    let mut info =
        |section: &str| -> String { redis::cmd("INFO").arg(section).query(&mut client).unwrap() };
    assert!(info("server").contains(&format!("larder_version:{}\r\n", env!("CARGO_PKG_VERSION"))));
    assert_eq!(info("keyspace"), "# Keyspace\r\n");
    let cpu = info("cpu");
    for name in ["used_cpu_sys:", "used_cpu_user:"] {
        let value = cpu.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert!(value.parse::<f64>().is_ok(), "{cpu}");
    }
    let () = client.mset(&[("a", 1), ("b", 2)]).unwrap();
    let keyspace: String = redis::cmd("INFO").arg("keyspace").query(&mut client).unwrap();
    assert_eq!(keyspace, "# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0\r\n");
}

#[test]
fn numbers_and_expiries() {
    each_protocol(|client| {
        assert_eq!(client.incr::<_, _, i64>("number", 41)?, 41);
        assert_eq!(client.decr::<_, _, i64>("number", 43)?, -2);
        let add = || {
            SetOptions::default()
                .conditional_set(ExistenceCheck::NX)
                .with_expiration(SetExpiry::PX(5500))
        };
        let added: [Option<String>; 2] =
            [client.set_options("short", "1", add())?, client.set_options("short", "2", add())?];
        assert_eq!(added, [Some("OK".to_owned()), None]);
        let left: i64 = client.pttl("short")?;
        assert!((1..=5500).contains(&left), "{left}");
        assert!(client.persist::<_, bool>("short")?);
        assert_eq!(client.ttl::<_, i64>("short")?, -1);
        Ok(())
    });
}

#[test]
fn pipelines_transactions_and_scans() {
    each_protocol(|client| {
        let mut many = pipe();
        (0..1000).for_each(|n| {
            many.set(format!("many:{n}"), n).ignore();
        });
        many.query::<()>(client)?;
        let found = client.scan_match::<_, String>("many:*")?;
        let found: HashSet<String> = found.collect::<RedisResult<_>>()?;
        assert_eq!(found.len(), 1000);
        let counted: (i64, i64) =
            pipe().atomic().incr("count", 1).incr("count", 1).query(client)?;
        assert_eq!(counted, (1, 2));
        assert_eq!(redis::cmd("WAIT").arg(0).arg(100).query::<i64>(client)?, 0);
        let refused = redis::cmd("LPUSH").arg("list").arg("1").query::<i64>(client).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Server(ServerErrorKind::ResponseError));
        Ok(())
    });
}
