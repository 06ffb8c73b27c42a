//! Tests commands that read or change a part of a value, and commands on the items of two keys.

use super::{answers, check, requests};
use crate::common::TestEngine;

for_each_engine! { parts_of_values renames_and_copies added_together keys_added_in_one_step_are_limited }

fn parts_of_values(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "SETRANGE k 2 ab",
            "GET k",
            "EXPIRE k 100",
            "SETRANGE k 0 xyz",
            "GET k",
            "TTL k",
            "SETRANGE none 5 ",
            "SETRANGE k 999999999999 x",
            "SETRANGE k -1 x",
            "SETBIT b 9 1",
            "SETBIT b 9 1",
            "GETBIT b 9",
            "GETBIT b 10",
            "GETBIT b 4294967295",
            "STRLEN b",
            "SETBIT b 4294967295 1",
            "SETBIT b 4294967296 1",
            "SETBIT b 0 2",
            "BITCOUNT k",
            "BITCOUNT k 1 1",
            "BITCOUNT k 5 12 BIT",
            "BITCOUNT none",
            "BITCOUNT k 1",
            "INCRBYFLOAT f 10.5",
            "INCRBYFLOAT f 0.1",
            "INCRBYFLOAT f -5e0",
            "GET f",
            "INCRBYFLOAT f x",
            "INCRBYFLOAT k 1",
            "INCRBYFLOAT f 1e21",
            "INCRBYFLOAT f 1e21",
        ]),
        ":4\r\n$4\r\n\0\0ab\r\n:1\r\n:4\r\n$4\r\nxyzb\r\n:100\r\n:0\r\n\
         -ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n\
         -ERR offset is out of range\r\n\
         :0\r\n:1\r\n:1\r\n:0\r\n:0\r\n:2\r\n\
         -ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n\
         -ERR bit offset is not an integer or out of range\r\n\
         -ERR bit is not an integer or out of range\r\n\
         :17\r\n:5\r\n:4\r\n:0\r\n-ERR syntax error\r\n\
         $4\r\n10.5\r\n$4\r\n10.6\r\n$3\r\n5.6\r\n$3\r\n5.6\r\n\
         -ERR value is not a valid float\r\n-ERR value is not a valid float\r\n\
         $24\r\n1000000000000000000005.6\r\n\
         -ERR increment would produce NaN or Infinity\r\n",
    );
}

fn renames_and_copies(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "SET a 1 EX 100",
            "RENAME a b",
            "GET a",
            "GET b",
            "TTL b",
            "RENAME a b",
            "RENAME b b",
            "RENAMENX b b",
            "SET c 3",
            "RENAMENX b c",
            "RENAMENX b d",
            "MGET b c d",
            "COPY d e",
            "COPY d c",
            "COPY d c REPLACE",
            "TTL c",
            "MGET c d e",
            "COPY none x",
            "COPY d d",
            "COPY d x DB 1",
        ]),
        "+OK\r\n+OK\r\n$-1\r\n$1\r\n1\r\n:100\r\n-ERR no such key\r\n+OK\r\n:0\r\n+OK\r\n:0\r\n:1\r\n\
         *3\r\n$-1\r\n$1\r\n3\r\n$1\r\n1\r\n:1\r\n:0\r\n:1\r\n:100\r\n\
         *3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n:0\r\n\
         -ERR source and destination objects are the same\r\n-ERR DB index is out of range\r\n",
    );
}

fn added_together(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "MSETNX a 1 b 2 a 3",
            "MGET a b",
            "MSETNX c 1 b 5",
            "MGET c b",
            "MSETNX c",
            "MSETNX c 1 d",
        ]),
        ":1\r\n*2\r\n$1\r\n3\r\n$1\r\n2\r\n:0\r\n*2\r\n$-1\r\n$1\r\n2\r\n\
         -ERR wrong number of arguments for 'msetnx' command\r\n\
         -ERR wrong number of arguments for 'msetnx' command\r\n",
    );
}

fn keys_added_in_one_step_are_limited(engine: TestEngine) {
    let pairs = |count: usize| (0..count).map(|i| format!(" key{i} {i}")).collect::<String>();
    let command = |count| requests(&[&format!("MSETNX{}", pairs(count))]);
    let all = [command(1025), command(1024), command(1024), requests(&["GET key1023"])].concat();
    let expected = "-ERR the command takes up to 1024 keys\r\n:1\r\n:0\r\n$4\r\n1023\r\n";
    assert_eq!(String::from_utf8_lossy(&answers(engine, false, [&all[..]])), expected);
}
