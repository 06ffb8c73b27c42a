//! The handshake at the start of a connection: both sides identify themselves, and authenticate
//! each other with the cluster secret.
//!
//! ```text
//! peer that connects (FollowerHandshake)        node that accepts (LeaderHandshake)
//!           Hello ──────────────────────────────▶
//!                 ◀────────────────────────────── Challenge (with a secret)
//!           Proof ──────────────────────────────▶
//!                 ◀────────────────────────────── Accepted, or Refused at any point
//! ```

use crate::frame::{Frame, HelloMember, Nonce, Purpose, VERSION};
use crate::group::Process;
use crate::secret::{Secret, Side};

/// The reason for a failed handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer has another version of the format.
    #[error("the peer speaks version {0} of the replication format, this server version {VERSION}")]
    Version(u16),
    /// The proof of the peer is wrong.
    #[error("the peer failed cluster-secret authentication")]
    Secret,
    /// The peer requires a secret, and this node has none.
    #[error("the peer requires a cluster secret: set --cluster-secret")]
    SecretNeeded,
    /// This node requires a proof of the secret, and the peer sent none.
    #[error("the peer has no cluster secret, and this server requires one")]
    SecretMissing,
    /// The peer requests to follow the leader, but is a member of another group.
    #[error("the peer belongs to another group")]
    Group,
    /// The peer is a member of another cluster.
    #[error("the peer belongs to another cluster")]
    Cluster,
    /// The peer is a member of another cluster with the same name.
    #[error("the peer belongs to another cluster of the same name")]
    Identity,
    /// The peer has refused the connection for this reason.
    #[error("the peer refuses: {0}")]
    Refused(String),
    /// The peer's frame is not valid at this point of the handshake, or the peer lacks the
    /// membership that its purpose requires.
    #[error("unexpected frame in the handshake")]
    Unexpected,
}

/// An authenticated peer and its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedPeer {
    /// The peer's name, for logs and statistics.
    pub name: String,
    /// The peer's process, if the peer is a member of a group.
    pub member: Option<Process>,
    /// The peer's cluster and group (`CLUSTER/GROUP`), if the peer is a member of one.
    pub group: Option<String>,
    /// The peer's request.
    pub purpose: Purpose,
    /// The number of the connection. It rises with each connection that the peer's process opens.
    pub link: u64,
}

/// The identity of the process that has accepted a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderIdentity {
    /// The name of the process's node; empty for a server that is not a member of a cluster.
    pub node: String,
    /// The incarnation of the process.
    pub incarnation: u64,
    /// The epoch in which the process leads its group; 0 if the process does not lead or is not
    /// ready to lead.
    pub epoch: u32,
    /// The time at which the process accepted the connection, in milliseconds on its clock.
    pub time: u64,
}

/// The handshake as seen by the side that accepts the connection.
#[derive(Debug)]
pub struct LeaderHandshake {
    secret: Option<Secret>,
    nonce: Nonce,
    /// The group of this node.
    group: Option<String>,
    /// The identity of this node's cluster; 0 if it is unknown.
    cluster: u128,
    /// The peer and its nonce, while this side waits for the peer's proof.
    hello: Option<(AdmittedPeer, Nonce)>,
}

impl LeaderHandshake {
    /// Creates the state of a new connection. `nonce` must be a fresh random number. `group` is the
    /// group of this node (`CLUSTER/GROUP`). `cluster` is the identity of its cluster, or 0 if it
    /// is unknown.
    #[must_use]
    pub fn new(secret: Option<Secret>, nonce: Nonce, group: Option<String>, cluster: u128) -> Self {
        Self { secret, nonce, group, cluster, hello: None }
    }

    /// Handles the peer's next frame, and appends the reply to `out`. Returns the peer once it is
    /// admitted; `None` before. After an error, `out` contains the refusal, and the caller must
    /// send it before it closes the connection.
    ///
    /// # Errors
    /// [`HandshakeError`]: the caller must close the connection.
    pub fn receive(
        &mut self,
        frame: Frame<'_>,
        identity: &LeaderIdentity,
        out: &mut Vec<u8>,
    ) -> Result<Option<AdmittedPeer>, HandshakeError> {
        let admitted = self.authenticate(frame, out);
        match &admitted {
            Ok(Some(_)) => {
                let LeaderIdentity { ref node, incarnation, epoch, time: sent } = *identity;
                Frame::Accepted { incarnation, epoch, sent, node }.write(out);
            }
            Ok(None) => (),
            Err(error) => {
                let reason = match error {
                    HandshakeError::Version(_) => format!("this leader speaks version {VERSION}"),
                    HandshakeError::Secret => "the cluster secrets differ".to_owned(),
                    HandshakeError::Group => "this node belongs to another group".to_owned(),
                    HandshakeError::Cluster => "this node belongs to another cluster".to_owned(),
                    HandshakeError::Identity => {
                        "this node belongs to another cluster of the same name".to_owned()
                    }
                    _ => "unexpected frame in the handshake".to_owned(),
                };
                Frame::Refused(&reason).write(out);
            }
        }
        admitted
    }

    fn authenticate(
        &mut self,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<AdmittedPeer>, HandshakeError> {
        match (frame, self.hello.take(), &self.secret) {
            (Frame::Hello { version, .. }, None, _) if version != VERSION => {
                Err(HandshakeError::Version(version))
            }
            (Frame::Hello { nonce, name, member, purpose, link, .. }, None, secret) => {
                let admitted = self.admit(name, member.as_ref(), purpose, link)?;
                let Some(secret) = secret else { return Ok(Some(admitted)) };
                let proof = secret.proof(Side::Leader, &nonce, &self.nonce);
                Frame::Challenge { nonce: self.nonce, proof }.write(out);
                self.hello = Some((admitted, nonce));
                Ok(None)
            }
            (Frame::Proof(proof), Some((admitted, nonce)), Some(secret)) => {
                let is_proven = secret.is_proven(&proof, Side::Follower, &nonce, &self.nonce);
                if is_proven { Ok(Some(admitted)) } else { Err(HandshakeError::Secret) }
            }
            _ => Err(HandshakeError::Unexpected),
        }
    }

    /// Checks whether the peer's membership permits its request.
    fn admit(
        &self,
        name: &str,
        member: Option<&HelloMember<'_>>,
        purpose: Purpose,
        link: u64,
    ) -> Result<AdmittedPeer, HandshakeError> {
        let own = self.group.as_deref().unwrap_or_default();
        let is_of_group = member.is_none_or(|hello| own == hello.group);
        let is_of_cluster = member.is_none_or(|hello| cluster(own) == cluster(hello.group));
        let is_other = |hello: &HelloMember<'_>| {
            is_of_cluster && ![0, self.cluster].contains(&hello.cluster) && self.cluster != 0
        };
        match &purpose {
            _ if member.is_some_and(is_other) => return Err(HandshakeError::Identity),
            Purpose::Follow(_) if !is_of_group => return Err(HandshakeError::Group),
            Purpose::Forward | Purpose::Import(_) if member.is_none() => {
                return Err(HandshakeError::Unexpected);
            }
            Purpose::Forward | Purpose::Import(_) if !is_of_cluster => {
                return Err(HandshakeError::Cluster);
            }
            _ => (),
        }
        let group = member.map(|hello| hello.group.to_owned());
        let member =
            member.map(|hello| Process { node: name.to_owned(), incarnation: hello.incarnation });
        Ok(AdmittedPeer { name: name.to_owned(), member, group, purpose, link })
    }
}

/// Returns the cluster part of a name `CLUSTER/GROUP`.
fn cluster(group: &str) -> &str {
    group.split('/').next().unwrap_or_default()
}

/// The handshake as seen by the side that opens the connection.
#[derive(Debug)]
pub struct FollowerHandshake {
    secret: Option<Secret>,
    nonce: Nonce,
    is_proven: bool,
}

impl FollowerHandshake {
    /// Starts the handshake: appends the `Hello` to `out`. `nonce` must be a fresh random number,
    /// and `link` must rise with each connection of this process.
    pub fn start(
        secret: Option<Secret>,
        nonce: Nonce,
        (name, member): (&str, Option<HelloMember<'_>>),
        purpose: Purpose,
        link: u64,
        out: &mut Vec<u8>,
    ) -> Self {
        Frame::Hello { version: VERSION, nonce, name, member, purpose, link }.write(out);
        Self { secret, nonce, is_proven: false }
    }

    /// Handles the peer's next frame, and appends the reply to `out`. Returns the peer's identity
    /// once the peer accepts the connection; `None` before.
    ///
    /// # Errors
    /// [`HandshakeError`]: the caller must close the connection.
    pub fn receive(
        &mut self,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<LeaderIdentity>, HandshakeError> {
        match (frame, &self.secret) {
            (Frame::Challenge { .. }, None) => Err(HandshakeError::SecretNeeded),
            (Frame::Challenge { nonce, proof }, Some(secret)) => {
                if !secret.is_proven(&proof, Side::Leader, &self.nonce, &nonce) {
                    return Err(HandshakeError::Secret);
                }
                self.is_proven = true;
                Frame::Proof(secret.proof(Side::Follower, &self.nonce, &nonce)).write(out);
                Ok(None)
            }
            (Frame::Accepted { .. }, Some(_)) if !self.is_proven => {
                Err(HandshakeError::SecretMissing)
            }
            (Frame::Accepted { incarnation, epoch, sent, node }, _) => {
                let (node, time) = (node.to_owned(), sent);
                Ok(Some(LeaderIdentity { node, incarnation, epoch, time }))
            }
            (Frame::Refused(reason), _) => Err(HandshakeError::Refused(reason.to_owned())),
            _ => Err(HandshakeError::Unexpected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HANDSHAKE_FRAME_LEN_MAX;
    use crate::slot_set::SlotSet;

    fn identity() -> LeaderIdentity {
        LeaderIdentity { node: "n".to_owned(), incarnation: 77, epoch: 5, time: 8 }
    }

    const ONE: Option<&[u8]> = Some(b"a secret of the cluster");
    const OTHER: Option<&[u8]> = Some(b"another secret of it");

    fn leader(secret: Option<&[u8]>) -> LeaderHandshake {
        let secret = secret.map(|text| Secret::of(text).unwrap());
        LeaderHandshake::new(secret, [1; 32], Some("demo/0".to_owned()), 44)
    }

    fn hello(version: u16, group: Option<&str>, purpose: Purpose) -> Frame<'_> {
        let member = group.map(|group| HelloMember { group, incarnation: 9, cluster: 44 });
        Frame::Hello { version, nonce: [2; 32], name: "f", member, purpose, link: 3 }
    }

    /// Runs a handshake, and returns the results of both sides.
    fn run_handshake(
        leaders: Option<&[u8]>,
        followers: Option<&[u8]>,
    ) -> (
        Result<Option<AdmittedPeer>, HandshakeError>,
        Result<Option<LeaderIdentity>, HandshakeError>,
    ) {
        let mut leader = leader(leaders);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let secret = followers.map(|text| Secret::of(text).unwrap());
        let member = Some(HelloMember { group: "demo/0", incarnation: 9, cluster: 44 });
        let mut handshake = FollowerHandshake::start(
            secret,
            [2; 32],
            ("f", member),
            Purpose::Follow(None),
            3,
            &mut up,
        );
        let (mut admitted, mut accepted) = (Ok(None), Ok(None));
        for _ in 0..3 {
            while let Ok(Some((frame, len))) = Frame::read(&up, HANDSHAKE_FRAME_LEN_MAX) {
                admitted = leader.receive(frame, &identity(), &mut down);
                up.drain(..len);
            }
            while let Ok(Some((frame, len))) = Frame::read(&down, HANDSHAKE_FRAME_LEN_MAX) {
                accepted = handshake.receive(frame, &mut up);
                down.drain(..len);
            }
        }
        (admitted, accepted)
    }

    #[test]
    fn the_same_secret_or_none_on_both_sides_succeeds() {
        let member = Some(Process { node: "f".to_owned(), incarnation: 9 });
        let (group, purpose) = (Some("demo/0".to_owned()), Purpose::Follow(None));
        let admitted = AdmittedPeer { name: "f".to_owned(), member, group, purpose, link: 3 };
        let success = (Ok(Some(admitted)), Ok(Some(identity())));
        assert_eq!(run_handshake(None, None), success);
        assert_eq!(run_handshake(ONE, ONE), success);
    }

    #[test]
    fn differing_secrets_fail() {
        assert_eq!(run_handshake(ONE, OTHER).1, Err(HandshakeError::Secret));
        assert_eq!(run_handshake(ONE, OTHER).0, Ok(None));
        assert_eq!(run_handshake(ONE, None).1, Err(HandshakeError::SecretNeeded));
        assert_eq!(run_handshake(None, ONE).1, Err(HandshakeError::SecretMissing));
    }

    #[test]
    fn a_wrong_or_early_proof_is_refused() {
        let (mut handshake, mut out) = (leader(ONE), Vec::new());
        let follow = || Purpose::Follow(None);
        assert_eq!(
            handshake.receive(hello(VERSION, None, follow()), &identity(), &mut out),
            Ok(None)
        );
        let refused = handshake.receive(Frame::Proof([0; 32]), &identity(), &mut out);
        assert_eq!(refused, Err(HandshakeError::Secret));
        let refused = leader(ONE).receive(Frame::Proof([0; 32]), &identity(), &mut out);
        assert_eq!(refused, Err(HandshakeError::Unexpected));
    }

    #[test]
    fn each_request_requires_its_membership() {
        let refused = |frame| leader(None).receive(frame, &identity(), &mut Vec::new());
        let follow = || Purpose::Follow(None);
        assert_eq!(refused(hello(9, None, follow())), Err(HandshakeError::Version(9)));
        let other = refused(hello(VERSION, Some("demo/1"), follow()));
        assert_eq!(other, Err(HandshakeError::Group));
        let stranger = refused(hello(VERSION, None, Purpose::Forward));
        assert_eq!(stranger, Err(HandshakeError::Unexpected));
        let moves = || Purpose::Import(SlotSet::all());
        let stranger = refused(hello(VERSION, None, moves()));
        assert_eq!(stranger, Err(HandshakeError::Unexpected));
        // Other groups of the cluster may forward requests and import slots.
        for purpose in [Purpose::Forward, moves()] {
            let admitted = refused(hello(VERSION, Some("demo/1"), purpose.clone()));
            assert_eq!(admitted.unwrap().unwrap().group.as_deref(), Some("demo/1"));
            let other = refused(hello(VERSION, Some("demos/0"), purpose));
            assert_eq!(other, Err(HandshakeError::Cluster));
        }
        // Clusters with the same name but different identities refuse each other if both know their
        // identity.
        for purpose in [follow(), Purpose::Forward, moves()] {
            for (own, peers, is_admitted) in [(44, 45, false), (44, 0, true), (0, 45, true)] {
                let mut leader =
                    LeaderHandshake::new(None, [1; 32], Some("demo/0".to_owned()), own);
                let Frame::Hello { version, nonce, name, purpose, link, .. } =
                    hello(VERSION, None, purpose.clone())
                else {
                    unreachable!()
                };
                let member = Some(HelloMember { group: "demo/0", incarnation: 9, cluster: peers });
                let hello = Frame::Hello { version, nonce, name, member, purpose, link };
                let admitted = leader.receive(hello, &identity(), &mut Vec::new());
                assert_eq!(admitted.is_ok(), is_admitted, "{own} {peers}");
                assert!(is_admitted || admitted == Err(HandshakeError::Identity));
            }
        }
        // A follower that belongs to no group is admitted.
        assert!(refused(hello(VERSION, None, follow())).is_ok());
    }
}
