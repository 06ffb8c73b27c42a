//! How a connection begins: who is there, and whether both know the secret.

use crate::frame::{Frame, Nonce, Position, VERSION};
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
    /// The leader refuses.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The peer sends something else.
    #[error("it does not speak the replication format")]
    Unexpected,
}

/// A follower that was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its name.
    pub name: String,
    /// Where it can go on.
    pub position: Option<Position>,
}

/// The leader's side.
#[derive(Debug)]
pub struct LeaderGreeting {
    secret: Option<Secret>,
    nonce: Nonce,
    /// Who has said hello, and with which number.
    hello: Option<(Admitted, Nonce)>,
}

impl LeaderGreeting {
    /// For a new connection; `nonce` is drawn at random for it.
    #[must_use]
    pub fn new(secret: Option<Secret>, nonce: Nonce) -> Self {
        Self { secret, nonce, hello: None }
    }

    /// Answers the follower's next frame. The answer has to be sent also after an error.
    ///
    /// # Errors
    /// [`GreetingError`]: the connection has to be closed.
    pub fn receive(
        &mut self,
        frame: Frame<'_>,
        boot: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<Admitted>, GreetingError> {
        let admitted = self.judge(frame, out);
        match &admitted {
            Ok(Some(_)) => Frame::Welcome { boot }.write(out),
            Ok(None) => (),
            Err(error) => {
                let reason = match error {
                    GreetingError::Version(_) => format!("this leader speaks version {VERSION}"),
                    GreetingError::Secret => "the cluster secrets differ".to_owned(),
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
            (Frame::Hello { nonce, name, position, .. }, None, secret) => {
                let admitted = Admitted { name: name.to_owned(), position };
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
        position: Option<Position>,
        out: &mut Vec<u8>,
    ) -> Self {
        Frame::Hello { version: VERSION, nonce, name, position }.write(out);
        Self { secret, nonce, is_proven: false }
    }

    /// Answers the leader's next frame; the number of its process once it has said welcome.
    ///
    /// # Errors
    /// [`GreetingError`]: the connection has to be closed.
    pub fn receive(
        &mut self,
        frame: Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>, GreetingError> {
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
            (Frame::Welcome { boot }, _) => Ok(Some(boot)),
            (Frame::Refused(reason), _) => Err(GreetingError::Refused(reason.to_owned())),
            _ => Err(GreetingError::Unexpected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::GREETING_LEN_MAX;

    /// What both sides think in the end.
    fn meet(
        leader: Option<&[u8]>,
        follower: Option<&[u8]>,
    ) -> (Result<Option<Admitted>, GreetingError>, Result<Option<u64>, GreetingError>) {
        let secret = |text: Option<&[u8]>| text.map(|text| Secret::of(text).unwrap());
        let mut leader = LeaderGreeting::new(secret(leader), [1; 32]);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let mut greeting = FollowerGreeting::begin(secret(follower), [2; 32], "f", None, &mut up);
        let (mut admitted, mut welcome) = (Ok(None), Ok(None));
        for _ in 0..3 {
            while let Ok(Some((frame, len))) = Frame::read(&up, GREETING_LEN_MAX) {
                admitted = leader.receive(frame, 77, &mut down);
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
        let admitted = Ok(Some(Admitted { name: "f".to_owned(), position: None }));
        let secret = Some(&b"a secret of the cluster"[..]);
        assert_eq!(meet(None, None), (admitted.clone(), Ok(Some(77))));
        assert_eq!(meet(secret, secret), (admitted, Ok(Some(77))));
    }

    #[test]
    fn all_others_do_not() {
        let (one, two) =
            (Some(&b"a secret of the cluster"[..]), Some(&b"another secret of it"[..]));
        assert_eq!(meet(one, two).1, Err(GreetingError::Secret));
        assert_eq!(meet(one, two).0, Ok(None));
        assert_eq!(meet(one, None).1, Err(GreetingError::SecretNeeded));
        assert_eq!(meet(None, one).1, Err(GreetingError::SecretMissing));
    }

    #[test]
    fn a_follower_that_does_not_know_the_secret_is_refused() {
        let mut leader = LeaderGreeting::new(Secret::of(b"a secret of the cluster"), [1; 32]);
        let mut out = Vec::new();
        let hello = Frame::Hello { version: VERSION, nonce: [2; 32], name: "f", position: None };
        assert_eq!(leader.receive(hello, 1, &mut out), Ok(None));
        assert_eq!(leader.receive(Frame::Proof([0; 32]), 1, &mut out), Err(GreetingError::Secret));
        let mut leader = LeaderGreeting::new(Secret::of(b"a secret of the cluster"), [1; 32]);
        let refused = leader.receive(Frame::Proof([0; 32]), 1, &mut out);
        assert_eq!(refused, Err(GreetingError::Unexpected));
        let hello = Frame::Hello { version: 9, nonce: [2; 32], name: "f", position: None };
        let mut leader = LeaderGreeting::new(None, [1; 32]);
        assert_eq!(leader.receive(hello, 1, &mut out), Err(GreetingError::Version(9)));
    }
}
