//! The client of etcd's JSON gateway.

mod calls;
mod counters;
mod login;
pub(crate) mod requests;
mod settings;

pub(crate) use calls::{EarlierValue, revision};
pub use calls::{Etcd, TimeLimits};
pub use counters::EtcdCounters;
pub use login::Login;
pub use settings::{EtcdOptions, EtcdSettings, SettingsError};
