//! How a connection begins: who is there, and whether both know the secret.

use crate::frame::{Frame, HelloMember, Nonce, Purpose, VERSION};
use crate::group::Process;
use crate::secret::{Secret, Side};

/// Why a connection does not become a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    /// The peer has another version of the format.
    #[error("it speaks version {0} of the replication format, and this server speaks {VERSION}")]
    Version(u16),
    /// The peer does not know the secret.
    #[error("it does not know the cluster secret")]
    Secret,
    /// The peer asks for a secret, and there is none.
    #[error("it asks for a cluster secret: give --cluster-secret")]
    SecretNeeded,
    /// The peer does not ask for the secret, so it may be anybody.
    #[error("it has no cluster secret, and this server has one")]
    SecretMissing,
    /// The peer is no member of this group.
    #[error("it belongs to another group")]
    Group,
    /// The peer is no member of this cluster.
    #[error("it belongs to another cluster")]
    Cluster,
    /// The leader refuses.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The peer sends something else.
    #[error("it does not speak the replication format")]
    Unexpected,
}

/// A peer that was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its name.
    pub name: String,
    /// Who it is, if it is a member of a group of the cluster.
    pub member: Option<Process>,
    /// The cluster and group that it is a member of, if it is one.
    pub group: Option<String>,
    /// What it asks for.
    pub purpose: Purpose,
}

/// Who has said welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcomed {
    /// The start of the leader's process.
    pub boot: u64,
    /// Its epoch in its group; 0 without one.
    pub epoch: u32,
}

/// The leader's side.
#[derive(Debug)]
pub struct LeaderGreeting {
    secret: Option<Secret>,
    nonce: Nonce,
    /// The group that this node is a member of.
    group: Option<String>,
    /// Who has said hello, and with which number.
    hello: Option<(Admitted, Nonce)>,
}

impl LeaderGreeting {
    /// For a new connection; `nonce` is drawn at random for it.
    #[must_use]
    pub fn new(secret: Option<Secret>, nonce: Nonce, group: Option<String>) -> Self {
        Self { secret, nonce, group, hello: None }
    }

    /// Answers the follower's next frame. The answer has to be sent also after an error.
    ///
    /// # Errors
    /// [`GreetingError`]: the connection has to be closed.
    pub fn receive(
        &mut self,
        frame: Frame<'_>,
        Welcomed { boot, epoch }: Welcomed,
        out: &mut Vec<u8>,
    ) -> Result<Option<Admitted>, GreetingError> {
        let admitted = self.judge(frame, out);
        match &admitted {
            Ok(Some(_)) => Frame::Welcome { boot, epoch }.write(out),
            Ok(None) => (),
            Err(error) => {
                let reason = match error {
                    GreetingError::Version(_) => format!("this leader speaks version {VERSION}"),
                    GreetingError::Secret => "the cluster secrets differ".to_owned(),
                    GreetingError::Group => "this node belongs to another group".to_owned(),
                    GreetingError::Cluster => "this node belongs to another cluster".to_owned(),
                    _ => "this is no follower".to_owned(),
                };
                Frame::Refused(&reason).write(out);
            }
        }
        admitted
    }

    fn judge(
        &mut self,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Admitted>, GreetingError> {
        match (frame, self.hello.take(), &self.secret) {
            (Frame::Hello { version, .. }, None, _) if version != VERSION => {
                Err(GreetingError::Version(version))
            }
            (Frame::Hello { nonce, name, member, purpose, .. }, None, secret) => {
                let admitted = self.admit(name, member.as_ref(), purpose)?;
                let Some(secret) = secret else { return Ok(Some(admitted)) };
                let proof = secret.proof(Side::Leader, &nonce, &self.nonce);
                Frame::Challenge { nonce: self.nonce, proof }.write(out);
                self.hello = Some((admitted, nonce));
                Ok(None)
            }
            (Frame::Proof(proof), Some((admitted, nonce)), Some(secret)) => {
                let is_proven = secret.is_proven(&proof, Side::Follower, &nonce, &self.nonce);
                if is_proven { Ok(Some(admitted)) } else { Err(GreetingError::Secret) }
            }
            _ => Err(GreetingError::Unexpected),
        }
    }
}

impl LeaderGreeting {
    /// Whether a peer may have what it asks for.
    fn admit(
        &self,
        name: &str,
        member: Option<&HelloMember<'_>>,
        purpose: Purpose,
    ) -> Result<Admitted, GreetingError> {
        let own = self.group.as_deref().unwrap_or_default();
        let is_of_group = member.is_none_or(|of| own == of.group);
        let is_of_cluster = member.is_none_or(|of| cluster(own) == cluster(of.group));
        match &purpose {
            Purpose::Follow(_) if !is_of_group => return Err(GreetingError::Group),
            Purpose::Forward | Purpose::Move(_) if member.is_none() => {
                return Err(GreetingError::Unexpected);
            }
            Purpose::Forward | Purpose::Move(_) if !is_of_cluster => {
                return Err(GreetingError::Cluster);
            }
            _ => (),
        }
        let group = member.map(|of| of.group.to_owned());
        let member = member.map(|of| Process { node: name.to_owned(), boot: of.boot });
        Ok(Admitted { name: name.to_owned(), member, group, purpose })
    }
}

/// The cluster in the names of a cluster and a group.
fn cluster(group: &str) -> &str {
    group.split('/').next().unwrap_or_default()
}

/// The follower's side.
#[derive(Debug)]
pub struct FollowerGreeting {
    secret: Option<Secret>,
    nonce: Nonce,
    is_proven: bool,
}

impl FollowerGreeting {
    /// For a new connection; `nonce` is drawn at random for it. Writes the hello.
    pub fn begin(
        secret: Option<Secret>,
        nonce: Nonce,
        name: &str,
        member: Option<HelloMember<'_>>,
        purpose: Purpose,
        out: &mut Vec<u8>,
    ) -> Self {
        Frame::Hello { version: VERSION, nonce, name, member, purpose }.write(out);
        Self { secret, nonce, is_proven: false }
    }

    /// Answers the leader's next frame; who it is once it has said welcome.
    ///
    /// # Errors
    /// [`GreetingError`]: the connection has to be closed.
    pub fn receive(
        &mut self,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Welcomed>, GreetingError> {
        match (frame, &self.secret) {
            (Frame::Challenge { .. }, None) => Err(GreetingError::SecretNeeded),
            (Frame::Challenge { nonce, proof }, Some(secret)) => {
                if !secret.is_proven(&proof, Side::Leader, &self.nonce, &nonce) {
                    return Err(GreetingError::Secret);
                }
                self.is_proven = true;
                Frame::Proof(secret.proof(Side::Follower, &self.nonce, &nonce)).write(out);
                Ok(None)
            }
            (Frame::Welcome { .. }, Some(_)) if !self.is_proven => {
                Err(GreetingError::SecretMissing)
            }
            (Frame::Welcome { boot, epoch }, _) => Ok(Some(Welcomed { boot, epoch })),
            (Frame::Refused(reason), _) => Err(GreetingError::Refused(reason.to_owned())),
            _ => Err(GreetingError::Unexpected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::GREETING_LEN_MAX;
    use crate::slots::SlotSet;

    const WELCOMED: Welcomed = Welcomed { boot: 77, epoch: 5 };
    const ONE: Option<&[u8]> = Some(b"a secret of the cluster");
    const OTHER: Option<&[u8]> = Some(b"another secret of it");

    fn leader(secret: Option<&[u8]>) -> LeaderGreeting {
        let secret = secret.map(|text| Secret::of(text).unwrap());
        LeaderGreeting::new(secret, [1; 32], Some("demo/0".to_owned()))
    }

    fn hello(version: u16, group: Option<&str>, purpose: Purpose) -> Frame<'_> {
        let member = group.map(|group| HelloMember { group, boot: 9 });
        Frame::Hello { version, nonce: [2; 32], name: "f", member, purpose }
    }

    /// What both sides think in the end.
    fn meet(
        leaders: Option<&[u8]>,
        followers: Option<&[u8]>,
    ) -> (Result<Option<Admitted>, GreetingError>, Result<Option<Welcomed>, GreetingError>) {
        let mut leader = leader(leaders);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let secret = followers.map(|text| Secret::of(text).unwrap());
        let member = Some(HelloMember { group: "demo/0", boot: 9 });
        let mut greeting =
            FollowerGreeting::begin(secret, [2; 32], "f", member, Purpose::Follow(None), &mut up);
        let (mut admitted, mut welcome) = (Ok(None), Ok(None));
        for _ in 0..3 {
            while let Ok(Some((frame, len))) = Frame::read(&up, GREETING_LEN_MAX) {
                admitted = leader.receive(frame, WELCOMED, &mut down);
                up.drain(..len);
            }
            while let Ok(Some((frame, len))) = Frame::read(&down, GREETING_LEN_MAX) {
                welcome = greeting.receive(frame, &mut up);
                down.drain(..len);
            }
        }
        (admitted, welcome)
    }

    #[test]
    fn those_who_share_a_secret_or_have_none_meet() {
        let member = Some(Process { node: "f".to_owned(), boot: 9 });
        let (group, purpose) = (Some("demo/0".to_owned()), Purpose::Follow(None));
        let admitted = Admitted { name: "f".to_owned(), member, group, purpose };
        let met = (Ok(Some(admitted)), Ok(Some(WELCOMED)));
        assert_eq!(meet(None, None), met);
        assert_eq!(meet(ONE, ONE), met);
    }

    #[test]
    fn all_others_do_not() {
        assert_eq!(meet(ONE, OTHER).1, Err(GreetingError::Secret));
        assert_eq!(meet(ONE, OTHER).0, Ok(None));
        assert_eq!(meet(ONE, None).1, Err(GreetingError::SecretNeeded));
        assert_eq!(meet(None, ONE).1, Err(GreetingError::SecretMissing));
    }

    #[test]
    fn a_follower_that_does_not_know_the_secret_is_refused() {
        let (mut greeting, mut out) = (leader(ONE), Vec::new());
        let follow = || Purpose::Follow(None);
        assert_eq!(greeting.receive(hello(VERSION, None, follow()), WELCOMED, &mut out), Ok(None));
        let refused = greeting.receive(Frame::Proof([0; 32]), WELCOMED, &mut out);
        assert_eq!(refused, Err(GreetingError::Secret));
        let refused = leader(ONE).receive(Frame::Proof([0; 32]), WELCOMED, &mut out);
        assert_eq!(refused, Err(GreetingError::Unexpected));
    }

    #[test]
    fn who_does_not_belong_there_is_refused() {
        let refused = |frame| leader(None).receive(frame, WELCOMED, &mut Vec::new());
        let follow = || Purpose::Follow(None);
        assert_eq!(refused(hello(9, None, follow())), Err(GreetingError::Version(9)));
        let other = refused(hello(VERSION, Some("demo/1"), follow()));
        assert_eq!(other, Err(GreetingError::Group));
        let stranger = refused(hello(VERSION, None, Purpose::Forward));
        assert_eq!(stranger, Err(GreetingError::Unexpected));
        let moves = || Purpose::Move(SlotSet::all());
        let stranger = refused(hello(VERSION, None, moves()));
        assert_eq!(stranger, Err(GreetingError::Unexpected));
        // Other groups of the cluster send requests, and take slots over.
        for purpose in [Purpose::Forward, moves()] {
            let admitted = refused(hello(VERSION, Some("demo/1"), purpose.clone()));
            assert_eq!(admitted.unwrap().unwrap().group.as_deref(), Some("demo/1"));
            let other = refused(hello(VERSION, Some("demos/0"), purpose));
            assert_eq!(other, Err(GreetingError::Cluster));
        }
        // Anybody who knows the secret may have a copy.
        assert!(refused(hello(VERSION, None, follow())).is_ok());
    }
}
