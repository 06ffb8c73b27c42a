//! The encoding of values in etcd.

use larder_replica::{
    AckMode, Addresses, CasRange, Process, Record, Revision, ShardMap, SlotSet, TransferRequest,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A process. Its incarnation is hexadecimal text, because many JSON parsers lose precision above
/// 2⁵³.
#[derive(Deserialize, Serialize)]
struct ProcessJson {
    node: String,
    #[serde(rename = "boot")]
    incarnation: String,
}

#[derive(Deserialize, Serialize)]
struct RecordJson {
    epoch: u32,
    leader: ProcessJson,
    in_sync: Vec<ProcessJson>,
    cas: (u64, u64),
    /// The leader's setting for [`Record::unclean_after`], in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unclean_after: Option<u64>,
}

#[derive(Deserialize, Serialize)]
struct AddressesJson {
    clients: Option<String>,
    members: String,
}

#[derive(Deserialize, Serialize)]
struct SettingsJson {
    ack: String,
}

#[derive(Deserialize, Serialize)]
struct TransferJson {
    epoch: u32,
    to: Option<String>,
}

/// The shard map. Maps each group to the slot ranges that it owns and the slot ranges that it will
/// import.
#[derive(Deserialize, Serialize)]
struct MapJson {
    slots: BTreeMap<String, String>,
    #[serde(default)]
    moves: BTreeMap<String, String>,
}

impl ProcessJson {
    fn of(process: &Process) -> Self {
        Self { node: process.node.clone(), incarnation: write_incarnation(process.incarnation) }
    }

    fn read(self) -> Option<Process> {
        Some(Process {
            node: self.node,
            incarnation: read_incarnation(self.incarnation.as_bytes())?,
        })
    }
}

pub(crate) fn write_incarnation(incarnation: u64) -> String {
    format!("{incarnation:016x}")
}

pub(crate) fn read_incarnation(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

pub(crate) fn write_record(record: &Record) -> Vec<u8> {
    let in_sync = record.in_sync.iter().map(ProcessJson::of).collect();
    let (leader, cas) = (ProcessJson::of(&record.leader), (record.cas.from, record.cas.to));
    let Record { epoch, unclean_after, .. } = *record;
    serde_json::to_vec(&RecordJson { epoch, leader, in_sync, cas, unclean_after })
        .unwrap_or_default()
}

pub(crate) fn read_record(text: &[u8]) -> Option<Record> {
    let RecordJson { epoch, leader, in_sync, cas: (from, to), unclean_after } =
        serde_json::from_slice(text).ok()?;
    let in_sync = in_sync.into_iter().map(ProcessJson::read).collect::<Option<_>>()?;
    let (leader, cas) = (leader.read()?, CasRange { from, to });
    let record = Record { epoch, leader, in_sync, cas, unclean_after };
    record.is_valid().then_some(record)
}

pub(crate) fn write_map(map: &ShardMap) -> Vec<u8> {
    let written = |(group, slots): (&str, &SlotSet)| (group.to_owned(), slots.to_string());
    let (slots, moves) =
        (map.owners().map(written).collect(), map.targets().map(written).collect());
    serde_json::to_vec(&MapJson { slots, moves }).unwrap_or_default()
}

pub(crate) fn read_map(text: &[u8]) -> Option<ShardMap> {
    let MapJson { slots, moves } = serde_json::from_slice(text).ok()?;
    let read = |sets: BTreeMap<String, String>| {
        let read = |(group, slots): (String, String)| Some((group, slots.parse().ok()?));
        sets.into_iter().map(read).collect::<Option<_>>()
    };
    ShardMap::new(read(slots)?, read(moves)?)
}

pub(crate) fn write_addresses(addresses: &Addresses) -> Vec<u8> {
    let Addresses { clients, members } = addresses.clone();
    serde_json::to_vec(&AddressesJson { clients, members }).unwrap_or_default()
}

pub(crate) fn read_addresses(text: &[u8]) -> Option<Addresses> {
    let AddressesJson { clients, members } = serde_json::from_slice(text).ok()?;
    Some(Addresses { clients, members })
}

pub(crate) fn write_settings(ack: AckMode) -> Vec<u8> {
    serde_json::to_vec(&SettingsJson { ack: ack.name().to_owned() }).unwrap_or_default()
}

pub(crate) fn read_ack(text: &[u8]) -> Option<AckMode> {
    AckMode::named(&serde_json::from_slice::<SettingsJson>(text).ok()?.ack)
}

pub(crate) fn write_transfer(epoch: u32, to: Option<String>) -> Vec<u8> {
    serde_json::to_vec(&TransferJson { epoch, to }).unwrap_or_default()
}

pub(crate) fn read_transfer(text: &[u8], number: Revision) -> Option<TransferRequest> {
    let TransferJson { epoch, to } = serde_json::from_slice(text).ok()?;
    Some(TransferRequest { number, epoch, to })
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_replica::EPOCH_MAX;

    #[test]
    fn values_round_trip_and_malformed_ones_are_refused() {
        let process = |node: &str, incarnation| Process { node: node.to_owned(), incarnation };
        let (a, b) = (process("a", u64::MAX), process("b\"", 0));
        let cas = CasRange { from: 3, to: 1 << 53 };
        let mut record = Record {
            epoch: EPOCH_MAX,
            leader: a.clone(),
            in_sync: vec![a, b],
            cas,
            unclean_after: None,
        };
        assert_eq!(read_record(&write_record(&record)).as_ref(), Some(&record));
        record.unclean_after = Some(30_000);
        assert_eq!(read_record(&write_record(&record)), Some(record));
        let addresses = Addresses { clients: None, members: "[::1]:11311".to_owned() };
        assert_eq!(read_addresses(&write_addresses(&addresses)), Some(addresses));
        assert_eq!(read_ack(&write_settings(AckMode::Writes)), Some(AckMode::Writes));
        assert_eq!(read_ack(br#"{"ack":"all"}"#), None);
        let request = TransferRequest { number: 9, epoch: 7, to: Some("a".to_owned()) };
        let written = write_transfer(7, Some("a".to_owned()));
        assert_eq!(read_transfer(&written, 9), Some(request));
        let mut map = ShardMap::single_group("0");
        map.plan_migration("1", Some(3)).unwrap();
        let written = write_map(&map);
        assert_eq!(
            String::from_utf8_lossy(&written),
            r#"{"slots":{"0":"0-4095"},"moves":{"1":"4093-4095"}}"#
        );
        assert_eq!(read_map(&written), Some(map));
        assert_eq!(read_map(br#"{"slots":{"0":"0-4094"}}"#), None);
        let with = |epoch, boot, cas| {
            format!(
                r#"{{"epoch":{epoch},"leader":{{"node":"a","boot":"{boot}"}},"in_sync":[]{cas}}}"#
            )
        };
        assert!(read_record(with("32768", "f", r#","cas":[1,1]"#).as_bytes()).is_some());
        for malformed in [
            String::new(),
            "{}".to_owned(),
            "7".to_owned(),
            with("1", "g", r#","cas":[1,9]"#),
            with("0", "f", r#","cas":[1,9]"#),
            with("2147483648", "f", r#","cas":[1,9]"#),
            with("1", "f", ""),
            with("1", "f", r#","cas":[0,9]"#),
            with("1", "f", r#","cas":[9,8]"#),
            with("1", "f", r#","cas":[1]"#),
            with("1", "f", r#","cas":[1,9007199254740993]"#),
            with("1", "f", r#","cas":"1-9""#),
        ] {
            assert_eq!(read_record(malformed.as_bytes()), None, "{malformed}");
        }
    }
}
