//! A session between a peer that sends what it likes, when it likes, and an engine.
//!
//! | file | what it asks |
//! |---|---|
//! | `splits` | that no cut of the input and no limit changes an answer |
//! | `pressure` | what a peer that does not read, or does not finish, can make a session hold |
//! | `large` | values that come and go in pieces |
//! | `dumps` | that they show everything, in small steps, as fast as their peer reads |
//! | `logins` | that nothing but a login works before one, and what memcached says to each |
//! | `meaning` | what memcached 1.6.18 answered and counted when it was asked the same |
#![allow(clippy::disallowed_methods, reason = "tests draw seeds")]

#[macro_use]
mod common;
mod dumps;
mod holds;
mod large;
mod logins;
mod meaning;
mod pressure;
mod splits;
mod streams;
