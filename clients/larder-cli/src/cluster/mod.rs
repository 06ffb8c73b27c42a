//! `larder cluster`: shows a cluster's groups as recorded in etcd, and carries out operator
//! commands.

mod forget;
mod leadership;
mod moves;
mod node_stats;
mod options;
mod progress;
mod set_secret;
mod status;
mod status_json;

use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use forget::forget;
use larder_etcd::EtcdGroup;
use larder_replica::{AckMode, Coordinator};
use leadership::{GroupSnapshot, promote, transfer_leadership};
use moves::{MovePlan, cancel_moves, run_moves};
use options::{ClusterArguments, GroupArguments, NodeArguments, message};
use set_secret::set_secret;
use status::ClusterStatus;
use std::io::Write;
use std::path::PathBuf;

/// Subcommands of `larder cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the leader, members and slots of each group, and the lag and memory of each member
    Status {
        #[command(flatten)]
        at: ClusterArguments,
        #[command(flatten)]
        nodes: NodeArguments,
        /// Print one JSON object [default: text]
        #[arg(long)]
        json: bool,
    },
    /// Set the acknowledgement mode of all nodes of a group, overriding larderd's --ack
    Set {
        #[command(flatten)]
        group: GroupArguments,
        /// Changes that are answered only after every in-sync node has them
        #[arg(long, value_name = "CHANGES", value_parser = ack_modes())]
        ack: AckSetting,
    },
    /// Set the secret that the nodes must have, while all nodes of the cluster are stopped
    #[command(group = clap::ArgGroup::new("secret").required(true))]
    SetSecret {
        #[command(flatten)]
        at: ClusterArguments,
        /// File with the new secret: larderd's --cluster-secret
        #[arg(group = "secret", value_name = "FILE")]
        file: Option<PathBuf>,
        /// The nodes have no secret any more [default: read FILE]
        #[arg(long, group = "secret")]
        none: bool,
    },
    /// Transfer leadership to another in-sync node; requests in progress are completed first
    TransferLeadership {
        #[command(flatten)]
        group: GroupArguments,
        /// New leader [default: any in-sync node]
        node: Option<String>,
    },
    /// Make a node with incomplete data the leader, after the leader and all in-sync nodes are lost
    ///
    /// Items that the node lacks are lost. Check first that the process of the old leader has
    /// ended: a leader that is only partitioned from etcd still answers requests.
    Promote {
        #[command(flatten)]
        group: GroupArguments,
        /// New leader
        node: String,
        /// Accept the loss of items that the new leader lacks
        #[arg(long, required = true)]
        unclean: bool,
    },
    /// Remove a node that is gone for good from etcd; fails while the node is alive or leads
    Forget {
        #[command(flatten)]
        group: GroupArguments,
        /// Name of the node
        node: String,
    },
    /// Exit with success if a node is in sync, for readiness probes
    Ready {
        #[command(flatten)]
        group: GroupArguments,
        /// Name of the node
        node: String,
        /// Exit with success also if etcd is unreachable [default: exit with failure]
        #[arg(long)]
        or_unknown: bool,
    },
    /// Move slots and their items to a group, from the groups with the most slots
    ///
    /// The leaders of the groups move the slots. This command plans the moves and waits for them.
    Move {
        #[command(flatten)]
        at: ClusterArguments,
        /// Name of the group that receives slots
        #[arg(long, value_name = "GROUP")]
        to: String,
        /// Number of slots to move [default: as many as the group lacks for an even share]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
        count: Option<u16>,
        /// Return after planning the moves [default: wait until all slots have moved]
        #[arg(long)]
        no_wait: bool,
    },
    /// Move all slots of a group to the other groups, so that the group can be stopped
    Drain {
        #[command(flatten)]
        at: ClusterArguments,
        /// Name of the group to empty
        group: String,
        /// Return after planning the moves [default: wait until all slots have moved]
        #[arg(long)]
        no_wait: bool,
    },
    /// Cancel all planned moves; a move under way ends without effect
    CancelMoves(ClusterArguments),
}

/// The acknowledgement mode of a group. `None` selects the mode of its leader (`--ack`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSetting(Option<AckMode>);

fn ack_modes() -> impl TypedValueParser<Value = AckSetting> {
    let modes = AckMode::ALL.map(|mode| PossibleValue::new(mode.name()).help(ack_help(mode)));
    let default = PossibleValue::new("default").help("Use larderd's --ack again");
    let values = modes.into_iter().chain([default]);
    PossibleValuesParser::new(values).map(|name| AckSetting(AckMode::named(&name)))
}

fn ack_help(mode: AckMode) -> &'static str {
    match mode {
        AckMode::None => "Answer every change at once",
        AckMode::Deletes => {
            "Wait for every in-sync node before answering a delete, invalidation, empty value or flush"
        }
        AckMode::Writes => "Wait for every in-sync node before answering any change",
    }
}

/// Runs a subcommand and prints the result.
///
/// # Errors
/// A message for the operator.
pub(crate) fn command(task: &ClusterCommand, out: &mut impl Write) -> Result<(), String> {
    match task {
        ClusterCommand::Status { at, nodes, json } => {
            let status = ClusterStatus::read(at, nodes)?;
            let printed = if *json {
                writeln!(out, "{}", status_json::cluster(&status))
            } else {
                status.show(out)
            };
            printed.map_err(message)
        }
        ClusterCommand::Set { group, ack } => {
            let mut snapshot = GroupSnapshot::read(group)?;
            // A misspelled name must not create a group.
            snapshot.record()?;
            snapshot.group.set_ack(ack.0).map_err(message)
        }
        ClusterCommand::SetSecret { at, file, none: _ } => set_secret(at, file.as_deref(), out),
        ClusterCommand::TransferLeadership { group, node } => {
            transfer_leadership(GroupSnapshot::read(group)?, node.clone(), out)
        }
        ClusterCommand::Promote { group, node, .. } => {
            promote(GroupSnapshot::read(group)?, node, out)
        }
        ClusterCommand::Forget { group, node } => forget(GroupSnapshot::read(group)?, node, out),
        ClusterCommand::Ready { group, node, or_unknown } => {
            let mut etcd_group = EtcdGroup::new(group.at.etcd_for_probe()?, group.name());
            let snapshot = match etcd_group.read() {
                Err(error) if *or_unknown => {
                    return writeln!(out, "state of {node} unknown: {error}").map_err(message);
                }
                view => GroupSnapshot {
                    name: group.name(),
                    group: etcd_group,
                    view: view.map_err(message)?,
                },
            };
            if !snapshot.record()?.in_sync.contains(&snapshot.live(node)?) {
                return Err(format!("{node} is not in sync"));
            }
            writeln!(out, "{node} is in sync").map_err(message)
        }
        ClusterCommand::Move { at, to, count, no_wait } => {
            let plan = MovePlan::MoveTo(to, count.map(usize::from));
            run_moves(at, &plan, !no_wait, out)
        }
        ClusterCommand::Drain { at, group, no_wait } => {
            run_moves(at, &MovePlan::Drain(group), !no_wait, out)
        }
        ClusterCommand::CancelMoves(at) => cancel_moves(at, out),
    }
}
