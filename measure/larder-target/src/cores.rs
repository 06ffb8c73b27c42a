//! The CPU cores of servers and of the load.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A set of the machine's cores, by number, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CoreSet(Vec<usize>);

impl CoreSet {
    /// Returns the number of cores in the set.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Divides the cores that this process may use into halves for the servers and for the load. If
    /// the number is odd, the load gets the extra core. If there is only one core, the servers and
    /// the load share it.
    ///
    /// # Errors
    /// The system does not report the cores.
    pub fn halves() -> Result<(Self, Self), String> {
        let available = available()?;
        let (server, load) = available.split_at(available.len() / 2);
        let server = if server.is_empty() { load } else { server };
        Ok((Self(server.to_vec()), Self(load.to_vec())))
    }
}

impl FromStr for CoreSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected cores, such as 0,2-3".to_owned();
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| wrong())?;
            let last: usize = last.trim().parse().map_err(|_| wrong())?;
            if first > last || last >= CORES_MAX {
                return Err(wrong());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Self(cores))
    }
}

/// Number of cores in Linux's affinity masks.
const CORES_MAX: usize = 1024;

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl TryFrom<String> for CoreSet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CoreSet> for String {
    fn from(cores: CoreSet) -> Self {
        cores.to_string()
    }
}

/// CPU affinity on Linux.
#[cfg(target_os = "linux")]
mod linux {
    use super::{CORES_MAX, CoreSet};
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    const THIS_THREAD: Pid = Pid::from_raw(0);

    pub(super) fn available() -> Result<Vec<usize>, String> {
        let set = sched_getaffinity(THIS_THREAD).map_err(|error| error.to_string())?;
        Ok((0..CORES_MAX).filter(|core| set.is_set(*core) == Ok(true)).collect())
    }

    impl CoreSet {
        /// Restricts the calling thread to these cores, and also the threads and processes that it
        /// starts later.
        ///
        /// # Errors
        /// The number of a core is too large, or this process may use none of the cores.
        pub fn pin(&self) -> Result<(), String> {
            let mut set = CpuSet::new();
            let added = self.0.iter().try_for_each(|core| set.set(*core));
            added
                .and_then(|()| sched_setaffinity(THIS_THREAD, &set))
                .map_err(|error| format!("cannot run on cores {self}: {error}"))
        }
    }
}

#[cfg(target_os = "linux")]
use linux::available;

#[cfg(not(target_os = "linux"))]
fn available() -> Result<Vec<usize>, String> {
    let cores = std::thread::available_parallelism().map_err(|error| error.to_string())?;
    Ok((0..cores.get()).collect())
}

#[cfg(not(target_os = "linux"))]
impl CoreSet {
    /// Does nothing, because this crate supports CPU affinity only on Linux.
    ///
    /// # Errors
    /// Never.
    pub fn pin(&self) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read() {
        let cores: CoreSet = "4,0-2".parse().unwrap();
        assert_eq!((cores.to_string().as_str(), cores.count()), ("0,1,2,4", 4));
        for wrong in ["", "a", "3-1", "1,", "9999"] {
            assert!(wrong.parse::<CoreSet>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn halves_share_nothing_but_a_single_core() {
        let (server, load) = CoreSet::halves().unwrap();
        let shared = server.0.iter().filter(|core| load.0.contains(core)).count();
        assert_eq!(shared, usize::from(server == load));
        assert!(server.count() > 0 && load.count() > 0);
    }
}
