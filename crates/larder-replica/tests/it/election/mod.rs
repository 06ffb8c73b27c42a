//! A simulation of the members of a group. A seed determines the clocks, the network and the
//! coordinator.
//!
//! The state machine is the real one. Faults: clocks differ in pace; nodes are paused, stopped and
//! restarted; links to the coordinator and between nodes are slow or cut, also in one direction;
//! the coordinator is unreachable, drops leases too early, and answers after the node has given up.
//! Leaders transfer their leadership. At every step, the test checks which nodes may answer
//! requests, and which may lead. A leader makes changes, and acknowledges each when all members in
//! sync have it: each later leader must have all acknowledged changes. Syncs are full or delta
//! syncs, which end after `SYNC_TIME`. After the last fault, a leader must exist soon, and then all
//! members must be in sync.
//!
//! ```text
//! cargo test -p larder-replica --test it election::
//! LARDER_SEEDS=100000 cargo test -p larder-replica --test it election::     this many seeds
//! LARDER_SEED=17 cargo test -p larder-replica --test it election::          this seed only
//! ```
//! Each seed runs twice, and must give the same trace both times.
//!
//! Each of these mutations of the member was made once, and made the test fail:
//!
//! | mutation | failing seeds of 2,000 |
//! |---|---|
//! | a member stands for election in spite of its promise | 469 |
//! | it makes a promise while it has a pending swap | 29 |
//! | the leader lease counts from the reply, not from the request | 56 |
//! | the promise of one member of many is enough | 34 |
//! | a swap without a reply is forgotten | 1 |
//! | the lease ignores members that a pending swap puts in sync | 79 |
//! | a silent member stays in sync | 169 |
//! | a restarted node may stand for election | 142 |
//! | one restarted node counts as all members in sync | 195 |
//! | a lease at the coordinator counts as leadership | 314 |
//! | a leader in a transfer relies on the promise of its successor | 34 |
//! | a failed transfer never ends | 4 |
//! | a transfer names a member that is not in sync any more | 4 |
//! | a transfer names all members, whether they have all changes or not | 1 |
//! | a member joins before it has all changes of the time from which replies wait for it | 1 |
//! | a member in sync before an election stays in sync without a sync | 35 |
//! | a full sync starts while the record names the member (both checks removed) | 1 |
#![allow(clippy::cast_possible_truncation, reason = "numbers of a simulation are small")]

mod followers;
mod nodes;
mod world;

use crate::seeds::run_seeds;
use larder_replica::{Command, DoubtPolicy, GroupView, Member, MemberSettings, Process, Record};
use nodes::World;
use std::collections::BTreeMap;

#[test]
fn at_most_one_leader_answers_and_a_leader_exists_after_faults() {
    run_seeds(|seed| World::new(seed).run());
}

/// The test transfers the leadership to a process whose predecessor on the same node has the lease
/// in the leader's view.
#[test]
fn a_leader_reads_the_group_again_after_a_transfer() {
    let process = |node: &str, incarnation| Process { node: node.to_owned(), incarnation };
    let (me, next) = (process("a", 1), process("b", 3));
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let mut member = Member::new(settings);
    member.note_founder();
    let live = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(member.next(0), Some(Command::Read));
    member.handle_view(1, Some(GroupView { live, ..GroupView::default() }));
    let swap = |member: &mut Member, now| {
        let Some(Command::Swap(revision, record)) = member.next(now) else { panic!("no swap") };
        member.handle_swap(now, Some(Some(revision + 1)));
        record
    };
    assert_eq!(swap(&mut member, 2).leader, me);
    member.note_ack(&next, Some(10), Some(10));
    assert_eq!(swap(&mut member, 10).in_sync, [me, next.clone()]);
    assert_eq!(member.start_transfer(11, None), std::slice::from_ref(&next));
    member.transfer_to(vec![next.clone()]);
    assert_eq!(swap(&mut member, 12).leader, next);
    assert_eq!(member.next(13), Some(Command::Read));
}

/// A process that starts after the coordinator has lost the record leaves it to the members that
/// know it.
#[test]
fn a_member_waits_before_it_writes_the_first_record() {
    let me = Process { node: "a".to_owned(), incarnation: 1 };
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let read = |member: &mut Member, now| {
        assert_eq!(member.next(now), Some(Command::Read), "{now}");
        member.handle_view(now, Some(GroupView::default()));
    };
    let leads = |member: &mut Member, now| match member.next(now) {
        Some(Command::Swap(0, record)) => record.epoch == 1 && record.leader == me,
        _ => false,
    };
    let mut founder = Member::new(settings.clone());
    founder.note_founder();
    read(&mut founder, 5000);
    assert!(leads(&mut founder, 5000));
    let mut other = Member::new(settings);
    read(&mut other, 5000);
    read(&mut other, 5500);
    assert!(!leads(&mut other, 5999));
    assert!(leads(&mut other, 6000));
}

/// Checks how long the members in sync with the previous leader stay in sync, and that none of them
/// starts a full sync before it has left.
#[test]
fn members_stay_in_sync_after_an_election() {
    let process = |node: &str, incarnation| Process { node: node.to_owned(), incarnation };
    let (former, me, other, gone) =
        (process("a", 1), process("b", 2), process("c", 3), process("d", 4));
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let before = vec![former.clone(), me.clone(), other.clone(), gone];
    let live = [&me, &other].map(|process| (process.node.clone(), process.incarnation));
    let view = GroupView {
        record: Some(Record { epoch: 1, leader: former.clone(), in_sync: before }),
        revision: 1,
        live: live.into_iter().collect(),
        ..GroupView::default()
    };
    let swap = |member: &mut Member, now| {
        let Some(Command::Swap(revision, record)) = member.next(now) else { panic!("no swap") };
        member.handle_swap(now, Some(Some(revision + 1)));
        record
    };
    let elect = || {
        let mut member = Member::new(settings.clone());
        assert_eq!(member.next(0), Some(Command::Read));
        member.handle_view(1, Some(view.clone()));
        assert!(!member.start_full_sync(), "the record names this member");
        assert!(member.may_start_delta_sync());
        assert!(!member.lacks_items());
        let record = swap(&mut member, 2);
        assert_eq!((record.epoch, &record.leader), (2, &me));
        assert_eq!(
            record.in_sync,
            [me.clone(), other.clone()],
            "the live ones but the former leader"
        );
        assert_eq!(
            member.named_in_sync().into_iter().collect::<Vec<_>>(),
            std::slice::from_ref(&other)
        );
        member
    };
    let mut member = elect();
    assert!(!matches!(member.next(5000), Some(Command::Swap(..))), "it is not ready yet");
    // An incomplete delta sync, and the end of a connection, change nothing for a second.
    let mut member = elect();
    member.note_ready(3);
    member.note_ack(&other, None, Some(3));
    member.note_disconnected(&other);
    assert_eq!(member.next(1000), Some(Command::Read));
    member.handle_view(1000, None);
    assert_eq!(swap(&mut member, 1004).in_sync, std::slice::from_ref(&me));
    // After its sync, the member stays while it acknowledges, and leaves when its connection ends.
    let mut member = elect();
    member.note_ack(&other, Some(900), Some(900));
    assert!(!matches!(member.next(1800), Some(Command::Swap(..))));
    member.note_disconnected(&other);
    assert_eq!(swap(&mut member, 1801).in_sync, std::slice::from_ref(&me));
    // A member that needs a full sync leaves at once.
    let mut member = elect();
    member.exclude(&other);
    assert!(member.may_be_in_sync(other.incarnation, 3), "the record names it");
    assert_eq!(swap(&mut member, 3).in_sync, std::slice::from_ref(&me));
    assert!(!member.may_be_in_sync(other.incarnation, 4));
    // A leader that was paused waits for acknowledgements before it removes a member.
    let mut member = elect();
    member.note_ready(3);
    member.note_ack(&other, Some(900), Some(900));
    assert_eq!(member.next(1000), Some(Command::Read));
    member.handle_view(1000, None);
    assert!(!matches!(member.next(3000), Some(Command::Swap(..))));
    member.handle_view(3000, None);
    assert_eq!(member.replacing_pause(3200), Some(2000), "no later request shows that it leads");
    assert_eq!(swap(&mut member, 3500).in_sync, std::slice::from_ref(&me));
    assert_eq!(member.replacing_pause(3600), None, "the leader has survived the pause");
}
