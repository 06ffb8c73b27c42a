//! The machine on which a measurement runs.

use serde::{Deserialize, Serialize};

/// The properties of a machine that affect results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, or the architecture if the name is unknown.
    pub cpu: String,
    /// Number of all cores of the machine; 0 if it is unknown.
    pub cores: usize,
    /// Size of the main memory in bytes; 0 if it is unknown.
    pub memory_bytes: u64,
    /// The operating system, its version and the architecture.
    pub system: String,
}

impl Machine {
    /// Returns the properties of this machine.
    #[must_use]
    pub fn this() -> Self {
        let name = nix::sys::utsname::uname();
        let system = name.map_or_else(
            |_| std::env::consts::OS.to_owned(),
            |name| {
                let parts = [name.sysname(), name.release(), name.machine()];
                parts.map(|part| part.to_string_lossy().into_owned()).join(" ")
            },
        );
        Self { system, ..Self::hardware() }
    }

    #[cfg(target_os = "linux")]
    fn hardware() -> Self {
        use procfs::{CpuInfo, Current, Meminfo};
        let cpu = CpuInfo::current().ok();
        let model = cpu.as_ref().and_then(|cpu| cpu.model_name(0).map(ToOwned::to_owned));
        Self {
            cpu: model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            // Counts all cores, even if this process may use only some of them.
            cores: cpu.map_or(0, |cpu| cpu.num_cores()),
            memory_bytes: Meminfo::current().map_or(0, |memory| memory.mem_total),
            ..Self::default()
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn hardware() -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self { cpu: std::env::consts::ARCH.to_owned(), cores, ..Self::default() }
    }
}
