//! Tests of sessions, with a client that sends anything at any time, over several engines.
//!
//! | file | what it tests |
//! |---|---|
//! | `classes` | each request is counted once, in its class of commands |
//! | `splits` | no cut of the input and no limit changes an answer |
//! | `pressure` | how much memory a session holds for a client that does not read, or does not finish |
//! | `large` | values that are received and sent in pieces |
//! | `conformance` | the transcripts of `tests/conformance/` |
//! | `dumps` | dumps show everything, in small steps, as fast as their client reads |
//! | `logins` | nothing but a login works before one, and each login is answered as memcached does |
//! | `meaning` | answers and counters are those of memcached 1.6.18 |
//! | `forwarding` | what another node answers is answered as it would be here |
//! | `read_only` | a server that has a copy refuses changes, and goes on |
#![allow(clippy::disallowed_methods, reason = "tests draw seeds")]

#[macro_use]
mod common;
mod classes;
mod conformance;
mod conversation;
mod dumps;
mod forwarding;
mod holds;
mod large;
mod logins;
mod meaning;
mod pressure;
mod read_only;
mod resp;
mod scattering;
mod splits;
mod streams;
mod tags;
mod target;
