//! What a peer can make a session hold, and for how long it can keep a thread to itself.

use crate::common::{Peer, Subject, World, pattern, set, text};
use larder_session::{Next, State};
use larder_store::{Engine, HashedKey, Lookup, Value, dashmap, segment};

/// A peer that asks and asks but never reads is answered up to the limit, and no further.
fn output_is_bounded<E: Subject>() {
    let mut world = World::<E>::new();
    world.settings.requests_per_turn = usize::MAX;
    let value = pattern(1000);
    world.ask(&set("a", &value));
    let asks = b"get a\r\n".repeat(10_000);
    let mut peer = Peer::new();
    peer.unread.extend(&asks);
    for _ in 0..10 {
        assert_eq!(peer.turn(&mut world).next, Next::Write);
    }
    let answer = "VALUE a 0 1000\r\n".len() + value.len() + "\r\nEND\r\n".len();
    assert!(peer.unsent.len() <= world.settings.output_max + answer, "{}", peer.unsent.len());
    assert_eq!(peer.unsent.len() / answer, (asks.len() - peer.unread.len()) / 7, "none is lost");
    peer.received.append(&mut peer.unsent);
    peer.send(&mut world, b"");
    assert_eq!(peer.received.len(), 10_000 * answer);
    assert!(peer.received.chunks(answer).all(|chunk| chunk == &peer.received[..answer]));
}

/// Others get their turn after so many requests, whether or not more is waiting.
fn a_turn_is_bounded<E: Subject>() {
    let mut world = World::<E>::new();
    for (requests, turns) in [
        (1, vec![(5, Next::Read { wanted: 1 })]),
        (20, vec![(100, Next::Read { wanted: 1 })]),
        (21, vec![(100, Next::Yield), (5, Next::Read { wanted: 1 })]),
        (60, vec![(100, Next::Yield), (100, Next::Yield), (100, Next::Read { wanted: 1 })]),
    ] {
        let mut peer = Peer::new();
        peer.unread = b"get a".to_vec();
        peer.unread = b"mn  \n".repeat(requests);
        for (consumed, next) in turns {
            let turn = peer.turn(&mut world);
            assert_eq!((turn.consumed, turn.next), (consumed, next), "{requests} requests");
        }
        assert_eq!(peer.unsent.len(), 4 * requests);
    }
}

/// Sessions that wait for the rest of a request hold next to nothing, and let others work.
fn a_stalled_body_holds_little<E: Subject>() {
    let mut world = World::<E>::new();
    let request = set("a", &pattern(200_000));
    let mut stalled: Vec<Peer<E>> = (0..100).map(|_| Peer::new()).collect();
    for peer in &mut stalled {
        peer.send(&mut world, &request[..30_000]);
        assert_eq!((peer.session.state(), peer.unread.len()), (State::Receiving, 0));
    }
    assert!(world.server.held() < 100 * 100, "{}", world.server.held());
    assert_eq!(
        text(&world.ask(b"set a 0 0 1\r\n1\r\nget a\r\n")),
        "STORED\\r\\nVALUE a 0 1\\r\\n1\\r\\nEND\\r\\n"
    );
    stalled.iter_mut().for_each(|peer| peer.session.close(&world.server));
    assert_eq!(world.server.held(), 0);
}

/// A value that is short enough is left with the driver, which is told how much is missing.
fn a_short_body_is_waited_for<E: Subject>() {
    let mut world = World::<E>::new();
    let mut peer = Peer::new();
    peer.unread.extend(b"mn\r\nset a 0 0 1000\r\nabc");
    let turn = peer.turn(&mut world);
    assert_eq!((turn.consumed, turn.next), (4, Next::Read { wanted: 999 }));
    assert_eq!(peer.session.state(), State::Waiting);
}

/// Where all connections together may hold no more, a store is refused as one without memory is.
fn an_upload_may_be_refused<E: Subject>() {
    let mut world = World::<E>::new();
    world.ask(b"set a 0 0 3\r\nold\r\nset b 0 0 3\r\nold\r\n");
    world.server.limit = 0;
    let mut peer = Peer::new();
    for request in
        [set("a", &[b'x'; 200_000]), crate::common::store("append b 0 0 200000", &[b'x'; 200_000])]
    {
        let (front, back) = request.split_at(70_000);
        peer.send(&mut world, front);
        assert_eq!(peer.session.state(), State::Swallowing);
        peer.send(&mut world, back);
    }
    peer.send(&mut world, b"get a b\r\n");
    let says =
        "SERVER_ERROR out of memory storing object\r\n".repeat(2) + "VALUE b 0 3\r\nold\r\nEND\r\n";
    assert_eq!(text(&peer.received), text(says.as_bytes()));
    assert_eq!(world.counters.thread.store_no_memory.get(), 2);
}

for_each_engine!(
    output_is_bounded a_turn_is_bounded a_stalled_body_holds_little a_short_body_is_waited_for
    an_upload_may_be_refused
);

/// Leases of a large value: as many as it takes until no more of it is lent.
fn lease_all<E: Engine>(engine: &mut E, key: &[u8]) -> Vec<E::Lease> {
    let key = HashedKey { bytes: key, hash: engine.hash(key) };
    let mut leases = Vec::new();
    loop {
        let lent = engine.content(key, |content| match &content.value {
            Value::Large(lease) => Some(lease.clone()),
            Value::Busy { .. } => None,
            Value::Whole(_) => panic!("the value is not large"),
        });
        match lent {
            Lookup::Hit(Some(lease)) => leases.push(lease),
            Lookup::Hit(None) => return leases,
            _ => panic!("the value is not there"),
        }
    }
}

/// A line of keys ends with the first value that can't be sent, because too much of the memory is
/// leased: a client reads no further.
#[test]
fn a_get_without_memory_ends_its_line() {
    let mut world = World::<segment::Handle>::new();
    let value = pattern(290_000);
    world.ask(&[set("small", b"1"), set("large", &value)].concat());
    let leases = lease_all(&mut world.engine, b"large");
    assert!(!leases.is_empty());
    let no_memory = "SERVER_ERROR out of memory writing get response\r\n";
    for (asks, says) in [
        ("get large", no_memory.to_owned()),
        ("get small large small large", "VALUE small 0 1\r\n1\r\n".to_owned() + no_memory),
        ("mg large v", no_memory.to_owned()),
        ("mg large s", "HD s290000\r\n".to_owned()),
    ] {
        let answer = world.ask(format!("{asks}\r\nmn\r\n").as_bytes());
        let start = &answer[..answer.len().min(200)];
        assert_eq!(text(start), text(format!("{says}MN\r\n").as_bytes()), "{asks}");
    }
    assert_eq!(world.counters.thread.response_obj_oom.get(), 3);
    drop(leases);
    let answer = world.ask(b"get large\r\nmn\r\n");
    let whole = [b"VALUE large 0 290000\r\n", &value[..], b"\r\nEND\r\nMN\r\n"].concat();
    assert!(answer == whole, "{} bytes for {}", answer.len(), whole.len());
    assert_eq!(world.server.held(), 0);
}

/// A session that is between requests is all that ten thousand idle connections cost.
#[test]
fn an_idle_session_is_small() {
    assert!(size_of::<larder_session::Session<dashmap::Handle>>() <= 96);
    assert!(size_of::<larder_session::Session<segment::Handle>>() <= 96);
}
