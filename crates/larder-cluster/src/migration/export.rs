//! Gives slots to another group: sends its leader all their items, and answers nothing about them from when it asks
//! for that.

use crate::group::Group;
use crate::peers::{PeerStream, is_silence};
use crate::replication::leader::{Alarm, Beats, Leader, refuse_peer};
use larder_replica::{Frame, GREETING_LEN_MAX, Move, Sender, SlotSet, Step};
use larder_store::cache::Cache;
use larder_store::journal::Bell;
use larder_support::clock::boot_millis;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long slots are given up for, if the other group does not take them over.
const GIVEN_MAX: Duration = Duration::from_secs(5);
/// A peer that says nothing for this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How often it is looked whether batches have ended.
const LOOKS: Duration = Duration::from_millis(1);

impl Leader {
    /// Gives slots to the group of this name.
    pub(crate) fn give(
        &self,
        group: &Group,
        (to, slots): (&str, SlotSet),
        stream: &PeerStream,
        leadership: u32,
    ) -> io::Result<()> {
        let refuse = |why: &str| {
            refuse_peer(stream, why)?;
            Err(io::Error::other(why.to_owned()))
        };
        let from = group.name.group.clone();
        let wanted = Move { from, to: to.to_owned(), slots };
        if group.leadership() != Some(leadership) {
            return refuse("this node does not lead its group");
        }
        if group.topology.next_move().as_ref() != Some(&wanted) {
            group.topology.look_soon();
            return refuse("these slots are not to move there, as far as this node knows");
        }
        if self.cache.journals.flush_pends(self.node.clock.now()) {
            return refuse("a flush is still to come");
        }
        let (has_asked, mut has_given) = (AtomicBool::new(false), false);
        let bell = self.cache.journals.bell();
        let ended = std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().name("acks".to_owned());
            let reader = reader.spawn_scoped(scope, || {
                let ended = read(stream, &has_asked, bell);
                let _ = stream.shutdown(Shutdown::Both);
                ended
            })?;
            let sent =
                self.send_slots(group, &wanted, stream, leadership, (&has_asked, &mut has_given));
            let _ = stream.shutdown(Shutdown::Both);
            reader.join().unwrap_or(Ok(())).and(sent)
        });
        if has_given {
            group.topology.end_giving();
        }
        ended
    }

    fn send_slots(
        &self,
        group: &Group,
        wanted: &Move,
        mut stream: &PeerStream,
        leadership: u32,
        (has_asked, has_given): (&AtomicBool, &mut bool),
    ) -> io::Result<()> {
        let journals = &self.cache.journals;
        let (engine, slots) = (self.cache.plain.engine(), wanted.slots.clone());
        let mut sender = Sender::of_slots(engine, Arc::clone(journals), slots);
        let alarm = Arc::new(Alarm::new(journals.bell()));
        let waker = Waker::from(Arc::clone(&alarm));
        let (mut beats, mut out) = (Beats::default(), Vec::new());
        let (mut given, mut under_way, mut ends, mut is_done) = (None, Vec::new(), None, false);
        while !self.stop.is_set() {
            if group.leadership() != Some(leadership) {
                return Err(io::Error::other("this server does not lead any more"));
            }
            if let Some(number) = beats.due() {
                Frame::Beat { number, behind_millis: None, sent: boot_millis() }.write(&mut out);
            }
            let step = sender.step(self.node.clock.moment().into(), &waker, &mut out);
            // Nobody acknowledges them.
            drop(sender.take_reached());
            if given.is_none() && has_asked.load(Ordering::Acquire) {
                if !group.topology.give_up(&wanted.slots, &wanted.to, leadership) {
                    return Err(io::Error::other(
                        "the slots are given up already, or another group's",
                    ));
                }
                *has_given = true;
                given = Some(Instant::now());
            }
            // Whatever was about to be answered is in the journals when its batch has ended.
            if given.is_some() && ends.is_none() && journals.settle(&mut under_way) {
                ends = Some(journals.ends());
            }
            if !is_done && ends.as_ref().is_some_and(|ends| sender.has_sent(ends)) {
                Frame::Barrier.write(&mut out);
                is_done = true;
            }
            stream.write_all(&out)?;
            out.clear();
            if given.is_some_and(|given: Instant| given.elapsed() > GIVEN_MAX) {
                return Err(io::Error::other("they were not taken over in time"));
            }
            match step {
                Step::More => (),
                Step::Idle if given.is_some() && !is_done => std::thread::sleep(LOOKS),
                Step::Idle => {
                    let has_more = || sender.has_more() || self.stop.is_set();
                    let asks = || given.is_none() && has_asked.load(Ordering::Acquire);
                    journals.bell().wait(beats.left(), || has_more() || asks());
                }
                Step::Waiting => {
                    journals.bell().wait(beats.left(), || alarm.take());
                }
            }
        }
        Ok(())
    }
}

/// Reads what the other leader says, until the connection ends.
fn read(mut stream: &PeerStream, has_asked: &AtomicBool, bell: &Bell) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let (mut input, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let len = match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_silence(&error) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it says nothing"));
            }
            Err(error) => return Err(error),
        };
        input.extend_from_slice(bytes.get(..len).unwrap_or_default());
        while let Some((frame, len)) =
            Frame::read(&input, GREETING_LEN_MAX).map_err(io::Error::other)?
        {
            match frame {
                Frame::Ack { .. } => (),
                Frame::GiveUp => {
                    has_asked.store(true, Ordering::Release);
                    bell.ring();
                }
                _ => return Err(io::Error::other("it sends what does not belong there")),
            }
            input.drain(..len);
        }
    }
}
