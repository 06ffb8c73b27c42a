//! Tests of sessions, with a client that sends anything at any time, over several engines.
//!
//! | file | what it tests |
//! |---|---|
//! | `classes` | each request is counted once, in its class of commands |
//! | `splits` | no cut of the input and no limit changes an answer |
//! | `values::pressure` | how much memory a session holds for a client that does not read, or does not finish |
//! | `values::large` | values that are received and sent in pieces |
//! | `conformance` | the transcripts of `tests/conformance/` |
//! | `values::dumps` | dumps show everything, in small steps, as fast as their client reads |
//! | `logins` | nothing but a login works before one, and each login is answered as memcached does |
//! | `meaning` | answers and counters are those of memcached 1.6.18 |
//! | `cluster::forwarding` | what another node answers is answered as it would be here |
//! | `cluster::read_only` | a server that has a copy refuses changes, and goes on |
#![allow(clippy::disallowed_methods, reason = "tests draw seeds")]

#[macro_use]
mod common;
mod classes;
mod cluster;
mod conformance;
mod logins;
mod meaning;
mod resp;
mod splits;
mod tags;
mod values;
