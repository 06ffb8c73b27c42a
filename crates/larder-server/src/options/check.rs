//! Checks for conflicts between options, and for options that this build does not support.

use super::address::is_loopback;
use super::refusal::{OptionsRefusal, USAGE};
use super::{EngineKind, Options};
use larder_support::address::host_of;
use larder_support::tls::VerifyMode;
use rustls::pki_types::{DnsName, ServerName};

const ITEM_SIZE_MIN: usize = 1024;
const ITEM_SIZE_MAX: usize = 1 << 30;
/// The minimum memory limit, in MiB. A lower limit would be too small for queues and the index.
const MEMORY_LIMIT_MIN: usize = 1;
/// The maximum memory limit, in MiB: 16 TiB, the most that the index of the segment engine can
/// address.
const MEMORY_LIMIT_MAX: usize = 16 << 20;
/// The minimum memory limit with a flash tier, in MiB. With a lower limit, buffers and open
/// segments leave too little memory for items.
const FLASH_MEMORY_MIN: usize = 16;
/// The maximum number of threads. Each thread uses file descriptors and memory, and few machines
/// have more cores.
const THREADS_MAX: usize = 1024;
/// The maximum length of a cluster, group or node name, in bytes.
const NAME_LEN_MAX: usize = 63;

impl Options {
    /// Refuses invalid and conflicting options.
    ///
    /// # Errors
    /// [`OptionsRefusal`], with memcached's message where memcached has one.
    pub fn check(&self) -> Result<(), OptionsRefusal> {
        let refuse =
            |status, message: &str| Err(OptionsRefusal { message: message.to_owned(), status });
        if self.conn_limit == 0 {
            return refuse(1, "Maximum connections must be greater than 0");
        }
        if self.threads == 0 {
            return refuse(1, "Number of threads must be greater than 0");
        }
        if self.threads > THREADS_MAX {
            return Err(OptionsRefusal {
                message: format!("Number of threads must be at most {THREADS_MAX}"),
                status: 1,
            });
        }
        if self.max_reqs_per_event == 0 {
            return refuse(1, "Number of requests per event must be greater than 0");
        }
        if self.slab_growth_factor.is_some_and(|factor| factor <= 1.0) {
            return refuse(1, "Factor must be greater than 1");
        }
        if self.slab_min_size == Some(0) {
            return refuse(1, "Chunk size must be greater than 0");
        }
        // This check also refuses NaN, which is in no range.
        if self.size_exponent.is_some_and(|exponent| !(0.0..=1.0).contains(&exponent)) {
            return refuse(1, "The size exponent must be 0 to 1");
        }
        if !(-1..=65_535).contains(&self.port) {
            return refuse(USAGE, "The TCP port must be 0 to 65535, or -1 for any");
        }
        if !(-1..=65_535).contains(&self.udp_port) {
            return refuse(USAGE, "The UDP port must be 0 to 65535, or -1 for any");
        }
        if self.metrics_listen.is_some() && !cfg!(feature = "metrics") {
            return refuse(
                USAGE,
                "--metrics-listen: larderd was built without the feature metrics",
            );
        }
        if self.http_listen.is_some() && !cfg!(feature = "http") {
            return refuse(USAGE, "--http-listen: larderd was built without the feature http");
        }
        if self.grpc_listen.is_some() && !cfg!(feature = "grpc") {
            return refuse(USAGE, "--grpc-listen: larderd was built without the feature grpc");
        }
        if self.token_file.is_some() && !self.has_web() {
            return refuse(USAGE, "--token-file needs --http-listen or --grpc-listen");
        }
        if self.gateway_conns == 0 {
            return refuse(USAGE, "--gateway-conns must be at least 1");
        }
        self.check_logins()?;
        self.check_replication()?;
        if self.napi_ids == Some(0) {
            return refuse(1, "Maximum number of NAPI IDs must be greater than 0");
        }
        if self.enable_ssl && self.port == 0 {
            return refuse(USAGE, "ERROR: You cannot enable SSL without a TCP port.");
        }
        self.check_sizes()?;
        self.check_protocol()?;
        self.check_origins()?;
        self.check_flash()?;
        self.check_engine()
    }

    fn check_sizes(&self) -> Result<(), OptionsRefusal> {
        let refuse = |message: String| Err(OptionsRefusal { message, status: USAGE });
        if self.max_item_size < ITEM_SIZE_MIN {
            return refuse("Item max size cannot be less than 1024 bytes.".to_owned());
        }
        if self.max_item_size > ITEM_SIZE_MAX {
            return refuse("Cannot set item size limit higher than a gigabyte.".to_owned());
        }
        if !(MEMORY_LIMIT_MIN..=MEMORY_LIMIT_MAX).contains(&self.memory_limit) {
            return refuse(format!(
                "The memory limit must be {MEMORY_LIMIT_MIN} to {MEMORY_LIMIT_MAX} MiB (-m)"
            ));
        }
        if self.max_item_size > self.limit_bytes() / 2 {
            return refuse("Cannot set item size limit higher than 1/2 of memory max.".to_owned());
        }
        Ok(())
    }

    /// Refuses values of `--http-cors` that no browser sends as an origin, such as `*` or a URL with
    /// a path.
    fn check_origins(&self) -> Result<(), OptionsRefusal> {
        let is_origin = |origin: &&String| {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            host.is_some_and(|host| {
                let is_allowed =
                    |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '*' | '?' | '#' | '@');
                !host.is_empty() && host.chars().all(is_allowed)
            })
        };
        match self.http_cors.iter().find(|origin| !is_origin(origin)) {
            None => Ok(()),
            Some(other) => Err(OptionsRefusal {
                message: format!(
                    "--http-cors: {other} is not an origin; list each site as https://HOST or https://HOST:PORT"
                ),
                status: USAGE,
            }),
        }
    }

    fn check_protocol(&self) -> Result<(), OptionsRefusal> {
        match self.protocol.as_deref() {
            None | Some("auto" | "ascii" | "binary") => Ok(()),
            Some(other) => Err(OptionsRefusal {
                message: format!(
                    "Invalid value for binding protocol: {other}\n -- should be one of auto, \
                     binary, or ascii"
                ),
                status: USAGE,
            }),
        }
    }

    /// Refuses options that conflict with logins. `-B auto` also conflicts, because it requests
    /// both dialects. Without `-B`, the server chooses the dialect that the login requires.
    fn check_logins(&self) -> Result<(), OptionsRefusal> {
        let (sasl, text) = (self.enable_sasl, self.auth_file.is_some());
        let (protocol, udp) = (self.protocol.as_deref(), self.udp_port != 0);
        let refused = [
            (
                self.sasl_pwdb.is_some() && !sasl,
                "--sasl-pwdb is the password file of -S; give -S, too",
            ),
            (
                sasl && matches!(protocol, Some("auto" | "ascii")),
                "ERROR: You cannot allow the ASCII protocol while using SASL.",
            ),
            (sasl && udp, "ERROR: Cannot enable UDP while using binary SASL authentication."),
            (
                text && matches!(protocol, Some("auto" | "binary")),
                "ERROR: You cannot allow the BINARY protocol while using ascii authentication \
                 tokens.",
            ),
            (text && udp, "Cannot use UDP with ascii authentication enabled (-U 0 to disable)"),
        ];
        match refused.into_iter().find(|refused| refused.0) {
            Some((_, message)) => {
                Err(OptionsRefusal { message: message.to_owned(), status: USAGE })
            }
            None => Ok(()),
        }
    }

    /// Refuses options that conflict with replication. Also refuses replication without
    /// authentication on addresses off the loopback.
    fn check_replication(&self) -> Result<(), OptionsRefusal> {
        let refuse = |message: String| Err(OptionsRefusal { message, status: USAGE });
        let replicates = self.replicate_on.is_some() || self.follow.is_some();
        if replicates && !self.suboptions.flash.files.is_empty() {
            return refuse(
                "--replicate-on and --follow: items in the files of -o ext_path cannot be replicated yet"
                    .to_owned(),
            );
        }
        if self.cluster_secret.is_some() && !replicates {
            return refuse("--cluster-secret needs --replicate-on or --follow".to_owned());
        }
        if self.cluster_tls.is_some() && !replicates {
            return refuse("--cluster-tls needs --replicate-on or --follow".to_owned());
        }
        if self.replicate_on.is_some()
            && (self.journal_bytes() == 0 || self.journal_bytes() > self.limit_bytes() / 2)
        {
            return refuse(
                "--journal-size must be at least 1 MiB, and at most half of -m".to_owned(),
            );
        }
        if let Some(leader) = &self.follow
            && !leader.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
            })
        {
            return refuse(format!(
                "--follow {leader}: give HOST:PORT, the --replicate-on of a leader"
            ));
        }
        self.check_cluster()?;
        self.check_certified_names()?;
        let is_open = self.cluster_secret.is_none() && self.cluster_tls.is_none();
        if let Some(address) = self.replicate_on.as_deref().filter(|_| is_open)
            && let Some(guard) = self.client_guard()
        {
            return refuse(format!(
                "--replicate-on {address}: with {guard}, this needs --cluster-tls CERT,KEY,CA or --cluster-secret \
                 FILE, also on the loopback; without them, every peer that connects there could read and change \
                 all items"
            ));
        }
        let addresses = [("--replicate-on", &self.replicate_on), ("--follow", &self.follow)];
        for (name, address) in addresses {
            if let Some(address) = address.as_deref().filter(|_| is_open)
                && !is_loopback(address)
            {
                return refuse(format!(
                    "{name} {address}: an address off the loopback requires --cluster-tls CERT,KEY,CA or \
                     --cluster-secret FILE; without them, every machine could read or change all items"
                ));
            }
        }
        Ok(())
    }

    /// Returns an option that restricts which clients can access the items; `None` if no such
    /// option is given.
    fn client_guard(&self) -> Option<&'static str> {
        let verify_mode = self.suboptions.tls.verify_mode;
        let requires_certificates =
            self.enable_ssl && matches!(verify_mode, VerifyMode::Require | VerifyMode::Once);
        let guards = [
            (self.auth_file.is_some(), "-Y"),
            (self.enable_sasl, "-S"),
            (self.token_file.is_some(), "--token-file"),
            (requires_certificates, "-o ssl_verify_mode=2"),
            (self.listen.iter().any(|entry| entry.contains("mtls:")), "mtls:"),
            (self.unix_socket.is_some(), "-s"),
        ];
        guards.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }

    /// Refuses invalid names of the cluster, the group or the node, and options that conflict with
    /// `--cluster`.
    fn check_cluster(&self) -> Result<(), OptionsRefusal> {
        let refuse = |message: String| Err(OptionsRefusal { message, status: USAGE });
        if self.cluster.is_none() {
            return Ok(());
        }
        let node = self.node_name();
        let names = [
            ("--cluster", self.cluster.as_deref()),
            ("--group", Some(&*self.group)),
            ("--node", Some(&*node)),
        ];
        for (option, name) in names {
            let name = name.unwrap_or_default();
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(is_allowed) {
                return refuse(format!(
                    "{option} {name}: a name consists of 1 to {NAME_LEN_MAX} letters, digits, '-', '_' and '.'"
                ));
            }
        }
        let on = self.replicate_on.as_deref().unwrap_or_default();
        if ["0.0.0.0", "[::]", "::"]
            .iter()
            .any(|all| on == *all || on.starts_with(&format!("{all}:")))
        {
            return refuse(format!(
                "--replicate-on {on}: with --cluster, give an address that other nodes can connect to"
            ));
        }
        if self.udp_port != 0 {
            return refuse("Cannot use UDP with --cluster (-U 0 to disable)".to_owned());
        }
        if self.suboptions.memory_image.is_some() || self.memory_file.is_some() {
            return refuse(
                "--cluster: a restarted member gets its items from the leader; omit -e and -o memory_image"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// With `--cluster-tls`, refuses names that a certificate cannot contain.
    fn check_certified_names(&self) -> Result<(), OptionsRefusal> {
        let refuse = |message: String| Err(OptionsRefusal { message, status: USAGE });
        if self.cluster_tls.is_none() {
            return Ok(());
        }
        let node = self.node_name();
        if self.cluster.is_some() && DnsName::try_from(node.as_str()).is_err() {
            return refuse(format!(
                "--node {node}: with --cluster-tls, the name of a node must be a DNS name that its certificate \
                 contains"
            ));
        }
        if let Some(leader) = &self.follow
            && ServerName::try_from(host_of(leader)).is_err()
        {
            return refuse(format!(
                "--follow {leader}: with --cluster-tls, give a DNS name or an IP address that the certificate of \
                 the leader contains"
            ));
        }
        Ok(())
    }

    /// Refuses options that conflict with a flash tier.
    fn check_flash(&self) -> Result<(), OptionsRefusal> {
        if self.suboptions.flash.files.is_empty() {
            return Ok(());
        }
        let refused = [
            (
                self.udp_port != 0,
                "Cannot use UDP with extstore enabled (-U 0 to disable)".to_owned(),
            ),
            (
                self.memory_limit < FLASH_MEMORY_MIN,
                format!(
                    "-o ext_path needs at least {FLASH_MEMORY_MIN} MiB of memory (-m), for buffers \
                     and the index"
                ),
            ),
            (
                self.engine != EngineKind::Segment,
                "-o ext_path: only --engine segment writes items to files".to_owned(),
            ),
        ];
        match refused.into_iter().find(|refused| refused.0) {
            Some((_, message)) => Err(OptionsRefusal { message, status: USAGE }),
            None => Ok(()),
        }
    }

    fn check_engine(&self) -> Result<(), OptionsRefusal> {
        let refuse =
            |message: &str| Err(OptionsRefusal { message: message.to_owned(), status: USAGE });
        match self.engine {
            EngineKind::Dashmap if !cfg!(feature = "dashmap") => {
                refuse("--engine dashmap: larderd was built without the feature dashmap")
            }
            EngineKind::Delayed if !cfg!(feature = "delayed") => refuse(
                "--engine delayed: larderd was built without the feature delayed, which tests use",
            ),
            EngineKind::Moka if !cfg!(feature = "moka") => {
                refuse("--engine moka: larderd was built without the feature moka")
            }
            EngineKind::Dashmap if !self.disable_evictions => {
                refuse("--engine dashmap cannot evict; add -M, or choose another engine")
            }
            EngineKind::Moka if self.disable_evictions => {
                refuse("--engine moka always evicts; omit -M, or choose another engine")
            }
            EngineKind::Segment | EngineKind::Delayed | EngineKind::Dashmap
                if self.eviction_policy.is_some() =>
            {
                refuse("--eviction-policy requires --engine moka")
            }
            EngineKind::Moka | EngineKind::Dashmap
                if self.memory_file.is_some() || self.suboptions.memory_image.is_some() =>
            {
                refuse("-e and -o memory_image require --engine segment")
            }
            EngineKind::Moka | EngineKind::Dashmap if self.size_exponent.is_some() => {
                refuse("--size-exponent requires --engine segment")
            }
            _ => Ok(()),
        }
    }
}
