//! `larder cluster`: shows the groups of a cluster, as etcd has them, and changes what operators decide.

mod leaders;
mod moves;
mod options;
mod status;
mod watch;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use larder_etcd::EtcdGroup;
use larder_replica::{AckMode, Coordinator};
use leaders::{Seen, hand_over, promote};
use moves::{Plan, cancel_moves, carry_out};
use options::{Where, Which, message};
use status::status;
use std::io::Write;

/// What is to be done with a cluster
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Show who leads each group, who has all items, and who is alive
    Status(Where),
    /// Say which changes of a group wait until all nodes in sync have them, whatever the nodes were given
    Set {
        #[command(flatten)]
        group: Which,
        /// Which changes wait: none, those after which nobody may find an item as it was, or all
        #[arg(long, value_name = "CHANGES", value_parser = ack_modes())]
        ack: AckMode,
    },
    /// Have another node lead, which loses nothing and fails no request of other nodes' clients
    HandOver {
        #[command(flatten)]
        group: Which,
        /// The node that is to lead; any that is in sync, if none is given
        node: Option<String>,
    },
    /// Have a node lead that may lack items, because the leader is gone for good and no node in sync is left. Make sure
    /// that the leader's process has ended: if it is only cut off from etcd, it still answers
    Promote {
        #[command(flatten)]
        group: Which,
        /// The node that is to lead, with whatever it has
        node: String,
        /// What it lacks is lost
        #[arg(long, required = true)]
        unclean: bool,
    },
    /// Succeed if a node has all items of its group, and fail if not: for readiness probes
    Ready {
        #[command(flatten)]
        group: Which,
        /// The node
        node: String,
        /// Succeed also if etcd can't be asked
        #[arg(long)]
        or_unknown: bool,
    },
    /// Have slots, and the items whose keys belong to them, move to a group from those that have the most. The leaders of
    /// the groups move them; this command plans that, and waits
    Move {
        #[command(flatten)]
        at: Where,
        /// Name of the group that is to get slots
        #[arg(long, value_name = "GROUP")]
        to: String,
        /// How many slots it is to get [default: as many as it lacks of an even share]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
        count: Option<u16>,
        /// Do not wait until they have moved
        #[arg(long)]
        no_wait: bool,
    },
    /// Have all slots of a group move to the other groups that have slots, so that the group can be stopped
    Drain {
        #[command(flatten)]
        at: Where,
        /// Name of the group that is to have no slots
        group: String,
        /// Do not wait until they have moved
        #[arg(long)]
        no_wait: bool,
    },
    /// Have all slots stay where they are that are still to move. A move that is under way ends without effect
    CancelMoves(Where),
}

fn ack_modes() -> impl TypedValueParser<Value = AckMode> {
    let names = PossibleValuesParser::new(AckMode::ALL.map(AckMode::name));
    names.map(|name| AckMode::named(&name).unwrap_or_default())
}

/// Does it.
///
/// # Errors
/// A message for whoever gave the command.
pub(crate) fn command(task: &Task, out: &mut impl Write) -> Result<(), String> {
    match task {
        Task::Status(cluster) => status(cluster, out),
        Task::Set { group, ack } => {
            let mut seen = Seen::look(group)?;
            seen.group.set_ack(*ack).map_err(message)
        }
        Task::HandOver { group, node } => hand_over(Seen::look(group)?, node.clone(), out),
        Task::Promote { group, node, .. } => promote(Seen::look(group)?, node, out),
        Task::Ready { group, node, or_unknown } => {
            let mut asked = EtcdGroup::new(group.at.etcd()?, group.name());
            let seen = match asked.read() {
                Err(error) if *or_unknown => {
                    return writeln!(out, "nobody knows of {node}: {error}").map_err(message);
                }
                view => Seen { name: group.name(), group: asked, view: view.map_err(message)? },
            };
            if !seen.record()?.in_sync.contains(&seen.live(node)?) {
                return Err(format!("{node} does not have all items yet"));
            }
            writeln!(out, "{node} has all items").map_err(message)
        }
        Task::Move { at, to, count, no_wait } => {
            let plan = Plan::MoveTo(to, count.map(usize::from));
            carry_out(at, &plan, !no_wait, out)
        }
        Task::Drain { at, group, no_wait } => carry_out(at, &Plan::Drain(group), !no_wait, out),
        Task::CancelMoves(at) => cancel_moves(at, out),
    }
}
