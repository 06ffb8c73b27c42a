//! Simulates the members of a group. A seed determines the clocks, the network and the coordinator.
//!
//! The test runs the real state machine. Faults: clocks run at different rates. Nodes are paused,
//! stopped and restarted. Links to the coordinator and between nodes are slow or cut, in one or
//! both directions. The coordinator is unreachable, drops leases too early, and replies after the
//! node has given up. Leaders also transfer their leadership. At every step, the test checks which
//! nodes may answer requests, and which may lead. A leader makes changes, and acknowledges a change
//! once all members in sync have it. Each later leader must have all acknowledged changes. A leader
//! also draws CAS values, and no value may be drawn twice unless all members in sync have ended.
//! In half of the seeds, members that are not in sync may stand for election after some time. Full
//! syncs and delta syncs take `SYNC_TIME`. Soon after the last fault, there must be a leader, and
//! then all members must be in sync.
//!
//! ```text
//! cargo test -p larder-replica --test it election::
//! LARDER_SEEDS=100000 cargo test -p larder-replica --test it election::     this many seeds
//! LARDER_SEED=17 cargo test -p larder-replica --test it election::          this seed only
//! ```
//! Each seed runs twice, and must give the same trace both times.
//!
//! Each of these mutations of the member made the test fail when it was tried:
//!
//! | mutation | failing seeds of 2,000 |
//! |---|---|
//! | a member stands for election in spite of its promise | 469 |
//! | a member makes a promise while it has a pending swap | 29 |
//! | the leader lease counts from the reply, not from the request | 56 |
//! | the promise of one of several members is enough | 34 |
//! | a member drops a swap that has no reply | 1 |
//! | the lease ignores members that a pending swap puts in sync | 79 |
//! | a silent member stays in sync | 169 |
//! | a restarted node may stand for election | 142 |
//! | one restarted node counts as all members in sync | 195 |
//! | a lease at the coordinator counts as leadership | 314 |
//! | a leader in a transfer relies on the promise of its successor | 34 |
//! | a failed transfer never ends | 4 |
//! | a transfer names a member that is no longer in sync | 4 |
//! | a transfer names all members, even those that lack changes | 1 |
//! | a member counts as in sync before it has all changes from before replies waited for it | 1 |
//! | a member in sync before an election stays in sync without a sync | 35 |
//! | a full sync starts while the record names the member (both checks removed) | 1 |
//! | promises count without a limit although a member out of sync may lead after `unclean_after` | 23 of 1,000 |
//! | every other step of the rules about `unclean_after`; the tests below catch them | 0 |
//! | any step of the rules about skipped and deferred reads; the tests below catch them | 0 of 400 |
//!
//! Mutations of the code for CAS values. The tests below and in `member/cas.rs` detect all of them,
//! including those with 0 failing seeds:
//!
//! | mutation | failing seeds of 300 |
//! |---|---|
//! | an election ignores the known range ends | 339 of 500 |
//! | a member ignores the end in a heartbeat | 23 |
//! | a single acknowledgement extends the values | 4 |
//! | a member acknowledges an end while it has a pending swap | 3 |
//! | the extension ignores members that a pending swap puts in sync | 2 |
//! | a leader draws values before their reservation is confirmed | 13 |
//! | a new leadership continues with the range of the last one | 204 |
//! | an election ignores the engine's counter | 0 |
//! | a leader answers while its transfer is pending; one under `--doubt serve` transfers its counter | 0 |
//! | a record, or the record of a transfer, lacks the end of the leader's values | 0 |
//! | a leader without other members extends its values while the coordinator replies | 0 |
//! | an importer draws values above the exporter's before it has reserved them | 0 |
#![allow(clippy::cast_possible_truncation, reason = "numbers of a simulation are small")]

mod followers;
mod nodes;
mod world;

use crate::seeds::run_seeds;
use larder_replica::{
    CAS_RANGE_LEN_MIN, CasRange, Command, DoubtPolicy, ElectionPromise, GroupView, LEADER_LEASE,
    Member, MemberSettings, Millis, Process, Record, Role, TRANSFER_HOLD_MAX, TRANSFER_TIME_MAX,
};
use nodes::World;
use std::collections::BTreeMap;

#[test]
fn at_most_one_leader_answers_and_a_leader_exists_after_faults() {
    run_seeds(|seed| World::new(seed).run());
}

/// Returns an election promise for a heartbeat whose `cas_end` is 0.
fn promise(sent: Millis) -> Option<ElectionPromise> {
    Some(ElectionPromise { sent, cas_end: 0 })
}

/// Transfers the leadership to a restarted node. In the leader's view, the node's previous process
/// still has the lease.
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
    member.note_ack(10, &next, Some(10), promise(10));
    assert_eq!(swap(&mut member, 10).in_sync, [me, next.clone()]);
    assert_eq!(member.start_transfer(11, None), std::slice::from_ref(&next));
    member.note_next_cas(12, 40);
    member.transfer_to(vec![next.clone()]);
    let record = swap(&mut member, 12);
    assert_eq!((record.leader, record.cas), (next, CasRange::starting_at(40)));
    assert_eq!(member.next(13), Some(Command::Read));
}

/// If a process starts after the coordinator has lost the record, it first gives members that know
/// the record time to restore it.
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

/// A member that is not in sync stands for election after the time in the record, not after the
/// time in its own settings.
#[test]
fn a_member_counts_the_time_without_a_leader_from_recent_reads() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, leader] = ["me", "leader"].map(process);
    let stands = |unclean_after, times: &[Millis], own| {
        let settings =
            MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: own };
        let mut member = Member::new(settings);
        let (in_sync, cas) = (vec![leader.clone()], CasRange::starting_at(1));
        let record = Record { epoch: 1, leader: leader.clone(), in_sync, cas, unclean_after };
        let live = BTreeMap::from([("me".to_owned(), 1)]);
        let view = GroupView { record: Some(record), revision: 1, live, ..GroupView::default() };
        let mut elected = None;
        for time in times {
            while let Some(command) = member.next(*time) {
                match command {
                    Command::Read => member.handle_view(*time, Some(view.clone())),
                    Command::Swap(_, record) => {
                        elected.get_or_insert((*time, record.unclean_after));
                        member.handle_swap(*time, Some(None));
                        member.handle_view(*time, Some(view.clone()));
                        break;
                    }
                }
            }
        }
        elected
    };
    let every: Vec<Millis> = (0..12).map(|i| 10_000 + i * 500).collect();
    assert_eq!(stands(Some(3000), &every, Some(70)), Some((13_000, Some(70))));
    assert_eq!(stands(Some(3000), &every, None), Some((13_000, None)));
    assert_eq!(stands(None, &every, Some(70)), None);
    // The member did not read the group for a while, and may have missed a lease.
    let with_gap = [10_000, 10_500, 12_900, 13_400, 14_000, 14_600, 15_200, 15_800, 16_400];
    assert_eq!(stands(Some(3000), &with_gap, None), Some((16_400, None)));
    let late = [10_000, 10_600, 11_200, 11_800, 12_400, 13_900];
    assert_eq!(stands(Some(3000), &late, None), None);
}

/// A leader that cannot reach the coordinator relies on promises until a member that is not in sync
/// may lead.
#[test]
fn promises_count_until_a_member_may_stand_for_election_by_time() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, other] = ["me", "other"].map(process);
    let settings =
        MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: Some(5000) };
    let mut member = Member::new(settings);
    member.note_founder();
    let live = BTreeMap::from([("me".to_owned(), 1), ("other".to_owned(), 1)]);
    let mut view = GroupView { live: live.clone(), ..GroupView::default() };
    answer(&mut member, 0, &mut view);
    member.note_ack(0, &other, Some(0), promise(0));
    let record = answer(&mut member, 1, &mut view).expect("the member joins");
    assert_eq!(record.unclean_after, Some(5000));
    answer(&mut member, 1000, &mut view);
    let serves = |member: &mut Member, now| {
        while member.next(now).is_some() {
            member.handle_view(now, None);
        }
        member.note_ack(now, &other, Some(now), promise(now));
        member.serves_until()
    };
    assert_eq!(serves(&mut member, 4000), 4000 + LEADER_LEASE);
    assert_eq!(serves(&mut member, 9000), 1000 + 4900 + LEADER_LEASE);
    // The leader's lease was lost and granted again. Until the record has another revision, a
    // member may have counted the time since the loss.
    view.live.remove("me");
    assert_eq!(answer(&mut member, 10_000, &mut view), None);
    view.live = live;
    let revision = view.revision;
    member.note_ack(10_400, &other, Some(10_400), promise(10_400));
    assert_eq!(answer(&mut member, 10_400, &mut view), Some(record));
    assert_eq!(view.revision, revision + 1);
    answer(&mut member, 10_800, &mut view);
    assert_eq!(serves(&mut member, 12_000), 12_000 + LEADER_LEASE);
    // The leader did not read the group for a while, and may have missed the loss of its lease.
    let revision = view.revision;
    member.note_ack(14_000, &other, Some(14_000), promise(14_000));
    answer(&mut member, 14_000, &mut view).expect("another revision");
    assert_eq!(view.revision, revision + 1);
    // The last leader had no `unclean_after`. This leader's swap, which sets `unclean_after`, has
    // no reply and may still take effect.
    let settings =
        MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: Some(5000) };
    let mut next = Member::new(settings);
    view.record = view.record.map(|record| Record { unclean_after: None, ..record });
    assert_eq!(next.next(20_000), Some(Command::Read));
    next.handle_view(20_000, Some(view));
    let Some(Command::Swap(_, record)) = next.next(20_000) else { panic!("no swap") };
    assert_eq!(record.unclean_after, Some(5000));
    next.handle_swap(20_000, None);
    assert_eq!(serves(&mut next, 30_000), 20_000 + 4900 + LEADER_LEASE);
}

/// A follower that hears its leader skips reads for about a second.
#[test]
fn a_follower_skips_reads_only_while_it_hears_its_leader() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, leader] = ["me", "leader"].map(process);
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let record = Record {
        epoch: 1,
        leader: leader.clone(),
        in_sync: vec![leader.clone(), me.clone()],
        cas: CasRange::starting_at(1),
        unclean_after: None,
    };
    let live = BTreeMap::from([("me".to_owned(), 1), ("leader".to_owned(), 1)]);
    let seen = GroupView { record: Some(record), revision: 1, live, ..GroupView::default() };
    // Returns a member that has read the group at 10,000, and received a heartbeat then.
    let member = |view: &GroupView| {
        let mut member = Member::new(settings.clone());
        assert_eq!(member.next(10_000), Some(Command::Read));
        member.handle_view(10_000, Some(view.clone()));
        assert!(member.note_heartbeat(&leader, 0, 10_000));
        member
    };
    let mut follower = member(&seen);
    for due in [10_500, 11_000] {
        assert_eq!(follower.next(due), Some(Command::Read));
        assert!(follower.skip_read(due));
        assert_eq!((follower.next(due), follower.idle_time(due)), (None, 500));
        assert!(follower.note_heartbeat(&leader, 0, due));
    }
    assert!(!follower.skip_read(11_500), "the last read is too old");
    let mut follower = member(&seen);
    follower.read_soon();
    assert!(!follower.skip_read(10_500), "an event has requested the read");
    let mut follower = member(&seen);
    follower.handle_view(10_100, None);
    assert!(follower.skip_read(10_500), "the view is still known");
    let mut silent = Member::new(settings.clone());
    assert_eq!(silent.next(10_000), Some(Command::Read));
    silent.handle_view(10_000, Some(seen.clone()));
    assert!(!silent.skip_read(10_500), "no heartbeat has arrived");
    let mut elected = member(&seen);
    let record = seen.record.clone().map(|record| Record { leader: me, epoch: 2, ..record });
    elected.handle_view(10_100, Some(GroupView { record, revision: 2, ..seen.clone() }));
    assert!(!elected.skip_read(10_500), "a leader must prove that it leads");
    let dead = GroupView { live: BTreeMap::from([("me".to_owned(), 1)]), ..seen };
    assert!(!member(&dead).skip_read(10_500), "the leader has no lease");
}

/// A leader reads the group less often while it has the promises of all members in sync.
#[test]
fn promises_defer_the_reads_of_a_leader() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, other] = ["me", "other"].map(process);
    // Returns the times of the reads within three seconds. Each reply takes 250 ms. The member has
    // promises up to the time `promised_until`.
    let reads = |unclean_after, promised_until: Millis| {
        let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after };
        let mut member = Member::new(settings);
        member.note_founder();
        let live = BTreeMap::from([("me".to_owned(), 1), ("other".to_owned(), 1)]);
        let mut view = GroupView { live, ..GroupView::default() };
        answer(&mut member, 0, &mut view);
        member.note_ack(0, &other, Some(0), promise(0));
        answer(&mut member, 1, &mut view).expect("the member joins");
        let (mut times, mut arrives) = (Vec::new(), None);
        for now in (10..3000).step_by(10) {
            if now % 100 == 0 {
                let promise = promise(now).filter(|_| now <= promised_until);
                member.note_ack(now, &other, Some(now), promise);
            }
            if arrives.take_if(|at| *at <= now).is_some() {
                member.handle_view(now, Some(view.clone()));
            }
            if arrives.is_none()
                && let Some(command) = member.next(now)
            {
                assert_eq!(command, Command::Read, "at {now}: no swap is needed");
                times.push(now);
                arrives = Some(now + 250);
            }
            assert!(arrives.is_some() || member.idle_time(now) > 0, "the loop must wait");
        }
        times
    };
    let gaps = |times: &[Millis]| times.windows(2).map(|two| two[1] - two[0]).collect::<Vec<_>>();
    assert!(gaps(&reads(None, 3000)).iter().all(|gap| *gap == 800));
    assert_eq!(gaps(&reads(Some(60_000), 3000)).iter().max(), Some(&300), "the lease must be read");
    // The first read after the last promise follows soon, and the others at the short interval.
    let times = reads(None, 1000);
    assert!(times.iter().any(|time| (1000..=1400).contains(time)), "{times:?}");
    assert!(gaps(&times).iter().rev().take(3).all(|gap| *gap == 300), "{times:?}");
}

/// A member with incomplete data leads once the group has had no leader for `unclean_after`. The
/// member keeps its items, even if the reply to its swap is lost.
#[test]
fn a_member_that_was_elected_by_time_keeps_its_items() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, first, second] = ["me", "first", "second"].map(process);
    let unclean_after = Some(3000);
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after };
    let mut member = Member::new(settings);
    let record = |epoch, leader: &Process| {
        let (in_sync, cas) = (vec![leader.clone()], CasRange::starting_at(1));
        Some(Record { epoch, leader: leader.clone(), in_sync, cas, unclean_after })
    };
    let live = BTreeMap::from([("me".to_owned(), 1)]);
    let view = |record, revision| GroupView {
        record,
        revision,
        live: live.clone(),
        ..GroupView::default()
    };
    let read = |member: &mut Member, now, view: &GroupView| {
        assert_eq!(member.next(now), Some(Command::Read), "{now}");
        member.handle_view(now, Some(view.clone()));
    };
    // The time without the first leader does not count for the second leader.
    for now in [10_000, 10_600, 11_200, 11_800, 12_400] {
        read(&mut member, now, &view(record(1, &first), 1));
    }
    for now in [12_950, 13_500, 14_100, 14_700, 15_300] {
        read(&mut member, now, &view(record(2, &second), 2));
    }
    let Some(Command::Swap(2, elected)) = member.next(15_960) else { panic!("no swap") };
    assert_eq!((elected.epoch, &elected.leader), (3, &me));
    member.handle_swap(16_600, None);
    read(&mut member, 17_600, &view(Some(elected), 3));
    assert_eq!(member.role(), Role::Leader { epoch: 3, starts_empty: false });
}

/// The coordinator's data is replaced by a backup with an earlier record.
#[test]
fn a_record_of_a_backup_is_replaced_by_the_last_one() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, other] = ["me", "other"].map(process);
    let member = || {
        let settings =
            MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
        Member::new(settings)
    };
    let cas = CasRange::starting_at(1);
    let record = |leader: &Process, in_sync: &[&Process], epoch| {
        let in_sync = in_sync.iter().copied().cloned().collect();
        Some(Record { epoch, leader: leader.clone(), in_sync, cas, unclean_after: None })
    };
    let last = record(&other, &[&other, &me], 7);
    let backup = record(&me, &[&me], 3);
    let live = BTreeMap::from([("me".to_owned(), 1), ("other".to_owned(), 1)]);
    let mut view = GroupView { record: last, revision: 20, live, ..GroupView::default() };
    let mut follower = member();
    answer(&mut follower, 0, &mut view);
    assert_eq!(follower.role(), Role::Follower { leader: other.clone(), epoch: 7 });
    (view.record, view.revision) = (backup.clone(), 4);
    let restored = answer(&mut follower, 1000, &mut view).expect("it replaces the record");
    assert_eq!((restored.epoch, restored.leader), (8, me.clone()));
    assert_eq!(restored.in_sync, std::slice::from_ref(&me));
    // A member that was not in sync leaves the restoration to the others.
    let mut view = GroupView { record: record(&other, &[&other], 7), ..view };
    let mut outside = member();
    answer(&mut outside, 0, &mut view);
    (view.record, view.revision) = (backup, 4);
    assert_eq!(answer(&mut outside, 1000, &mut view), None);
    assert_eq!((outside.role(), outside.serves_until()), (Role::Leaderless, 0));
}

/// Checks that a leader answers requests again if its transfer takes too long. If the swap to
/// another leader may still take effect, the leader must first replace the record.
#[test]
fn a_leader_answers_again_after_a_transfer_without_result() {
    let process = |node: &str, incarnation| Process { node: node.to_owned(), incarnation };
    let (me, next) = (process("a", 1), process("b", 2));
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let mut member = Member::new(settings);
    member.note_founder();
    let live = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(member.next(0), Some(Command::Read));
    let view = GroupView { live, ..GroupView::default() };
    member.handle_view(1, Some(view.clone()));
    let swap = |member: &mut Member, now| {
        let Some(Command::Swap(revision, record)) = member.next(now) else { panic!("no swap") };
        (revision, record)
    };
    let (revision, _) = swap(&mut member, 2);
    member.handle_swap(2, Some(Some(revision + 1)));
    member.note_ack(10, &next, Some(10), promise(10));
    let (revision, record) = swap(&mut member, 10);
    member.handle_swap(10, Some(Some(revision + 1)));
    assert!(member.serves_until() > 10);
    // No candidate gets all changes in time.
    assert_eq!(member.start_transfer(11, None), std::slice::from_ref(&next));
    assert_eq!(member.serves_until(), 0);
    let _ = member.next(11 + TRANSFER_HOLD_MAX);
    assert!(member.serves_until() > 0);
    // The swap has no reply.
    assert_eq!(member.start_transfer(400, None), std::slice::from_ref(&next));
    member.transfer_to(vec![next.clone(), me.clone()]);
    let (revision, named) = swap(&mut member, 401);
    assert_eq!(named.leader, next);
    member.handle_swap(500, None);
    member.end_transfer();
    member.note_ack(500, &next, Some(500), promise(500));
    assert_eq!(member.serves_until(), 0);
    assert_eq!(member.next(1000), Some(Command::Read));
    member.handle_view(1000, Some(GroupView { record: Some(record), revision, ..view }));
    assert_eq!(member.serves_until(), 0, "the record may still be written");
    let (revision, own) = swap(&mut member, 1001);
    assert_eq!(own.leader, me);
    member.handle_swap(1001, Some(Some(revision + 1)));
    assert!(member.serves_until() > 1001);
}

/// Checks how long the members in sync with the previous leader stay in sync, and that none of them
/// starts a full sync while it is in sync.
#[test]
fn members_stay_in_sync_after_an_election() {
    let process = |node: &str, incarnation| Process { node: node.to_owned(), incarnation };
    let (former, me, other, gone) =
        (process("a", 1), process("b", 2), process("c", 3), process("d", 4));
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let before = vec![former.clone(), me.clone(), other.clone(), gone];
    let live = [&me, &other].map(|process| (process.node.clone(), process.incarnation));
    let view = GroupView {
        record: Some(Record {
            epoch: 1,
            leader: former.clone(),
            in_sync: before,
            cas: CasRange::starting_at(1),
            unclean_after: None,
        }),
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
    // Within the first second, an incomplete delta sync and the end of a connection have no effect.
    let mut member = elect();
    member.note_ready(3);
    member.note_ack(3, &other, None, promise(3));
    member.note_disconnected(&other);
    assert_eq!(member.next(1000), Some(Command::Read));
    member.handle_view(1000, None);
    assert_eq!(swap(&mut member, 1004).in_sync, std::slice::from_ref(&me));
    // After its sync, the member stays in sync while it sends acknowledgements. When its connection
    // ends, the leader removes it from the members in sync.
    let mut member = elect();
    member.note_ack(900, &other, Some(900), promise(900));
    assert!(!matches!(member.next(1800), Some(Command::Swap(..))));
    member.note_disconnected(&other);
    assert_eq!(swap(&mut member, 1801).in_sync, std::slice::from_ref(&me));
    // The leader immediately removes a member that needs a full sync from the members in sync.
    let mut member = elect();
    member.exclude(&other);
    assert!(member.may_be_in_sync(other.incarnation, 3), "the record names it");
    assert_eq!(swap(&mut member, 3).in_sync, std::slice::from_ref(&me));
    assert!(!member.may_be_in_sync(other.incarnation, 4));
    // A leader that was paused waits for acknowledgements before it removes a member.
    let mut member = elect();
    member.note_ready(3);
    member.note_ack(900, &other, Some(900), promise(900));
    assert_eq!(member.next(1000), Some(Command::Read));
    member.handle_view(1000, None);
    assert!(!matches!(member.next(3000), Some(Command::Swap(..))));
    member.handle_view(3000, None);
    assert_eq!(member.replacing_pause(3200), Some(2000), "no later request shows that it leads");
    assert_eq!(swap(&mut member, 3500).in_sync, std::slice::from_ref(&me));
    assert_eq!(member.replacing_pause(3600), None, "the leader has survived the pause");
}

/// Answers the member's reads with `view`, and its swaps with the next revision, until the member
/// has no further request. Returns the record of the last swap.
fn answer(member: &mut Member, now: Millis, view: &mut GroupView) -> Option<Record> {
    let mut last = None;
    while let Some(command) = member.next(now) {
        match command {
            Command::Read => member.handle_view(now, Some(view.clone())),
            Command::Swap(revision, record) => {
                assert_eq!(revision, view.revision);
                (view.record, view.revision) = (Some(record.clone()), revision + 1);
                member.handle_swap(now, Some(Some(revision + 1)));
                last = Some(record);
            }
        }
    }
    last
}

/// Tests a leader that uses up its CAS values while the coordinator does not reply.
#[test]
fn members_extend_cas_values_without_the_coordinator() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, a, b] = ["me", "a", "b"].map(process);
    let settings =
        MemberSettings { me: me.clone(), doubt: DoubtPolicy::Serve, unclean_after: None };
    let mut member = Member::new(settings);
    member.note_founder();
    let mut view = GroupView::default();
    answer(&mut member, 0, &mut view);
    for other in [&a, &b] {
        member.note_ack(0, other, Some(0), promise(0));
    }
    let record = answer(&mut member, 1, &mut view).expect("the members join");
    assert_eq!(record.in_sync.len(), 3);
    let first = record.cas.to;
    assert_eq!(member.cas_values(), 1..first);
    // While the coordinator replies, heartbeats contain no higher end of the CAS range than the
    // record.
    member.note_next_cas(2, first - 1);
    assert_eq!(member.heartbeat_cas_end(2), first);
    // The coordinator stops replying.
    while member.next(2).is_some() {
        member.handle_swap(2, None);
    }
    let now = 2 + LEADER_LEASE;
    let offer = member.heartbeat_cas_end(now);
    assert!(offer >= first + CAS_RANGE_LEN_MIN / 2, "{offer} after {first}");
    let promise = |sent, cas_end| Some(ElectionPromise { sent, cas_end });
    member.note_ack(now, &a, Some(now), promise(now, offer));
    assert_eq!(member.cas_values(), 1..first, "one member has not acknowledged the end");
    member.note_next_cas(now, first);
    assert!(member.lacks_cas());
    // An acknowledgement without an election promise does not count.
    member.note_ack(now, &b, Some(now), None);
    assert!(member.lacks_cas());
    member.note_ack(now, &b, Some(now), promise(now, offer));
    assert_eq!(member.cas_values(), 1..offer);
    assert!(!member.lacks_cas());
    // The next record contains the extended end of the range.
    let record = answer(&mut member, now + 1000, &mut view).expect("a reservation");
    assert!(record.cas.to >= offer && record.cas.from == 1, "{record:?}");
    // If a member has acknowledged the end of a leader's range, its own range starts above that
    // end, even if the member has read only an older record.
    let settings = MemberSettings { me: a.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let mut follower = Member::new(settings);
    let cas = CasRange::starting_at(1);
    let in_sync = vec![me.clone(), a.clone()];
    let older = Record { epoch: 1, leader: me.clone(), in_sync, cas, unclean_after: None };
    let mut view = GroupView { record: Some(older), revision: 1, ..GroupView::default() };
    view.live = [(a.node.clone(), 1), (me.node.clone(), 1)].into_iter().collect();
    answer(&mut follower, 0, &mut view);
    assert!(follower.note_heartbeat(&me, offer, 1));
    follower.note_replaced(&me);
    let record = answer(&mut follower, 2, &mut view).expect("an election");
    assert_eq!((record.leader, record.cas), (a, CasRange::starting_at(offer)));
}

/// Tests that a leader answers no requests while the swap of its transfer has no reply. The next
/// leader may already draw values, starting at this leader's counter.
#[test]
fn a_leader_does_not_answer_while_a_transfer_is_pending() {
    let process = |node: &str| Process { node: node.to_owned(), incarnation: 1 };
    let [me, next] = ["me", "next"].map(process);
    for doubt in [DoubtPolicy::Stop, DoubtPolicy::Serve] {
        let mut member = Member::new(MemberSettings { me: me.clone(), doubt, unclean_after: None });
        member.note_founder();
        let mut view = GroupView::default();
        answer(&mut member, 0, &mut view);
        member.note_ack(0, &next, Some(0), promise(0));
        let cas = answer(&mut member, 1, &mut view).expect("the member joins").cas;
        assert_eq!(member.start_transfer(2, None), std::slice::from_ref(&next));
        member.note_next_cas(2, 70);
        member.transfer_to(vec![next.clone()]);
        let Some(Command::Swap(revision, record)) = member.next(2) else { panic!("no swap") };
        let is_exclusive = doubt == DoubtPolicy::Stop;
        assert_eq!(record.cas, CasRange::starting_at(if is_exclusive { 70 } else { cas.to }));
        member.handle_swap(2, None);
        // The leader abandons the transfer.
        let now = 2 + TRANSFER_TIME_MAX;
        member.note_ack(now, &next, Some(now), promise(now));
        assert_eq!(member.next(now), Some(Command::Read));
        member.handle_view(now, Some(view.clone()));
        assert_eq!(member.serves_until(), if is_exclusive { 0 } else { Millis::MAX });
        let Some(Command::Swap(again, record)) = member.next(now) else { panic!("no swap") };
        assert_eq!((again, &record.leader), (revision, &me));
        member.handle_swap(now, Some(Some(again + 1)));
        assert!(member.serves_until() > now);
    }
}
