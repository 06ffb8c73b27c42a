//! The settings and generators that all connections of a run share.

use crate::load::distribution::KeyRouter;
use crate::load::items::spaces::{Space, cycle};
use crate::load::socket::TlsClient;
use crate::load::stats::Kind;
use crate::load::wire::Writer;
use crate::load::wire::custom::CustomCommands;
use crate::load::wire::recorded::RecordedValues;
use crate::run_error::RunError;
use crate::settings::{NamedServer, Settings};
use larder_target::ServerAddress;

/// The settings and generators that all connections of a run share.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) settings: Settings,
    /// The key spaces, indexed by number. A run without `--key-spaces` has one key space.
    pub(super) spaces: Vec<Space>,
    pub(crate) commands: CustomCommands,
    /// The values of recorded requests; `None` unless the run replays a trace.
    pub(super) recorded_values: Option<RecordedValues>,
    /// The cycle of commands that clients repeat. Each entry has the number of consecutive
    /// requests. With `--key-spaces`, clients choose key spaces at random, so the cycle has the
    /// right proportions of the requests but not their order.
    pub(crate) cycle: Vec<(Kind, u64)>,
    /// Maps keys to servers.
    pub(crate) router: KeyRouter,
    /// The TLS settings of each server; empty without TLS.
    pub(super) tls: Vec<TlsClient>,
}

impl Load {
    /// Creates the generators of a run from its settings.
    ///
    /// # Errors
    /// The prefix is not valid in a key, the distribution of value sizes has invalid parameters, or
    /// the TLS settings are invalid.
    pub(crate) fn new(settings: &Settings) -> Result<Self, RunError> {
        let commands = CustomCommands::new(settings);
        let cycle = match commands.is_empty() {
            true => cycle(settings),
            false => commands.turns().map(|(kind, times)| (kind, times.into())).collect(),
        };
        Ok(Self {
            commands,
            recorded_values: settings
                .trace
                .is_some()
                .then(|| RecordedValues::new(settings.random_data)),
            cycle,
            settings: settings.clone(),
            spaces: Space::all(settings)?,
            router: KeyRouter::new(&settings.servers, settings.distribution),
            tls: match &settings.tls {
                Some(tls) => {
                    let client = |server: &NamedServer| TlsClient::new(tls, &server.address);
                    settings.servers.iter().map(client).collect::<Result<_, _>>()?
                }
                None => Vec::new(),
            },
        })
    }

    /// Returns a new request encoder.
    pub(crate) fn writer(&self) -> Writer {
        Writer::new(&self.settings, &self.spaces)
    }

    /// Returns the TLS settings of connections to a server; `None` without TLS.
    pub(super) fn tls(&self, server: usize) -> Option<&TlsClient> {
        self.tls.get(server)
    }

    pub(super) fn address(&self, server: usize) -> &ServerAddress {
        &self.settings.servers[server].address
    }

    /// Returns the key space with this number; 0 in a run without key spaces.
    #[inline]
    pub(crate) fn space(&self, number: u16) -> &Space {
        &self.spaces[usize::from(number)]
    }
}
