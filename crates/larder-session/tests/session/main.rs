//! Tests of sessions with several engines. Their clients send arbitrary bytes in pieces of any
//! length.
//!
//! | file | subject |
//! |---|---|
//! | `classes` | each request is counted once, in its class of commands |
//! | `splits` | replies do not depend on how the input is split or on limits |
//! | `values::pressure` | limits on the memory for a client that does not read, or does not finish a request |
//! | `values::large` | values that the session receives and sends in pieces |
//! | `conformance` | the transcripts of `tests/conformance/` |
//! | `values::dumps` | dumps list all items, in small steps, no faster than their client reads |
//! | `logins` | requests before a login are refused, except a binary `version`; replies match memcached |
//! | `meaning` | replies and counters match memcached 1.6.18 |
//! | `cluster::forwarding` | replies to forwarded requests equal the leader's |
//! | `cluster::scattering` | several groups reply like one server |
//! | `cluster::holds` | replies wait for acknowledgements of replicas |
//! | `cluster::read_only` | a read-only replica refuses changes and answers reads |
//! | `cluster::replica_reads` | followers answer lookups from their own items |
//! | `cluster::server_list` | members of a cluster answer lookups of the server list |
//! | `resp` | replies in RESP do not depend on how the input is split |
//! | `scripts` | known scripts in RESP |
//! | `tags` | a dropped tag invalidates pending stores |
#![allow(clippy::disallowed_methods, reason = "tests draw seeds")]

#[macro_use]
mod common;
mod classes;
mod cluster;
mod conformance;
mod logins;
mod meaning;
mod resp;
mod scripts;
mod splits;
mod tags;
mod values;
