//! Errors of `CLIENT TRACKING` and of subscriptions. [`crate::reply::resp`] has the messages.

/// The reason for refusing a change of tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackingError {
    /// `REDIRECT` is given twice.
    SecondRedirect,
    /// The connection in `REDIRECT` does not exist.
    NoRedirectTarget,
    /// A prefix is given without `BCAST`.
    PrefixWithoutBroadcast,
    /// The connection has more prefixes than allowed.
    TooManyPrefixes,
    /// `BCAST` is given but tracking is on without `BCAST`, or the reverse.
    SwitchesBroadcast,
    /// `OPTIN` or `OPTOUT` is given with `BCAST`.
    OptionWithBroadcast,
    /// `OPTIN` is given with `OPTOUT`.
    OptInWithOptOut,
    /// `OPTIN` is given after `OPTOUT`, or the reverse.
    SwitchesOption,
    /// `CLIENT CACHING` is sent without `OPTIN` or `OPTOUT`.
    CachingWithoutOption,
    /// `CLIENT CACHING YES` is sent without `OPTIN`.
    CachingWithoutOptIn,
    /// `CLIENT CACHING NO` is sent without `OPTOUT`.
    CachingWithoutOptOut,
    /// The server cannot report changes.
    NoTracker,
    /// The channel of `SUBSCRIBE` is not `__redis__:invalidate`.
    Channel,
}
