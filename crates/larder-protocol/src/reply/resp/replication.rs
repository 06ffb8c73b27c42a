//! What a server is to other servers, in the words of redis-server.

use std::fmt::Write;

/// What a server is to other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    /// The link to the server that it follows; `None` if it follows nobody.
    pub link: Option<Link>,
    /// The servers that follow it.
    pub followers: Vec<Follower>,
    /// How many bytes of changes it has written down for its followers.
    pub offset: u64,
}

/// The link of a follower to its leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Host and port of the leader; empty and 0 while nobody leads.
    pub leader: (String, u16),
    /// What the link does.
    pub state: LinkState,
    /// Seconds since the leader was last heard of; `None` if it never was.
    pub silence_secs: Option<u64>,
    /// Seconds since the link was lost; `None` if there has not been one.
    pub down_secs: Option<u64>,
    /// How many bytes of the leader's changes it has, as [`Replication::offset`]; `None` without a copy.
    pub offset: Option<u64>,
    /// Whether it refuses changes, rather than to send them to its leader.
    pub is_read_only: bool,
}

/// What a link does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is no connection.
    #[default]
    Connecting,
    /// Items come that were there before.
    Copying,
    /// Changes come as they are made.
    Following,
}

/// A follower, as its leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// Its IP address, or the name of its host.
    pub host: String,
    /// The port at which it serves; 0 if that is not known.
    pub port: u16,
    /// Whether it is sent items that were there before.
    pub is_copying: bool,
    /// How many bytes of changes it was sent, as [`Replication::offset`].
    pub offset: u64,
    /// How many seconds it may be behind.
    pub lag_secs: u64,
}

impl LinkState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Copying => "sync",
            Self::Following => "connected",
        }
    }
}

impl Replication {
    /// The lines of `INFO`'s section.
    pub(super) fn lines(&self) -> String {
        let mut lines = String::new();
        match &self.link {
            Some(link) => link.write_lines(&mut lines),
            None => line(&mut lines, "role", "master"),
        }
        line(&mut lines, "connected_slaves", self.followers.len());
        for (number, follower) in self.followers.iter().enumerate() {
            let Follower { host, port, is_copying, offset, lag_secs } = follower;
            let state = if *is_copying { "send_bulk" } else { "online" };
            let shown =
                format!("ip={host},port={port},state={state},offset={offset},lag={lag_secs}");
            line(&mut lines, &format!("slave{number}"), shown);
        }
        line(&mut lines, "master_repl_offset", self.offset);
        lines
    }
}

impl Link {
    fn write_lines(&self, lines: &mut String) {
        let is_up = self.state == LinkState::Following;
        let (host, port) = &self.leader;
        line(lines, "role", "slave");
        line(lines, "master_host", host);
        line(lines, "master_port", port);
        line(lines, "master_link_status", if is_up { "up" } else { "down" });
        line(lines, "master_last_io_seconds_ago", or_none(self.silence_secs));
        let is_copying = self.state == LinkState::Copying;
        line(lines, "master_sync_in_progress", u8::from(is_copying));
        line(lines, "slave_repl_offset", self.offset.unwrap_or_default());
        if !is_up {
            line(lines, "master_link_down_since_seconds", or_none(self.down_secs));
        }
        line(lines, "slave_read_only", u8::from(self.is_read_only));
    }
}

fn line(lines: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string succeeds.
    let _ = write!(lines, "{name}:{value}\r\n");
}

/// A number, or -1 if there is none.
pub(super) fn or_none(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::server_page::role;
    use super::*;

    fn shown(replication: &Replication) -> (String, String) {
        let mut out = Vec::new();
        role(replication, &mut out);
        let words = String::from_utf8(out).unwrap().replace("\r\n", " ");
        (replication.lines().replace("\r\n", " "), words)
    }

    #[test]
    fn a_leader_shows_its_followers() {
        let online = Follower {
            host: "10.0.0.2".to_owned(),
            port: 6380,
            offset: 90,
            lag_secs: 1,
            ..Follower::default()
        };
        let copying = Follower { host: "::1".to_owned(), is_copying: true, ..Follower::default() };
        let followers = vec![online, copying];
        let (lines, words) = shown(&Replication { link: None, followers, offset: 100 });
        assert_eq!(
            lines,
            "role:master connected_slaves:2 \
             slave0:ip=10.0.0.2,port=6380,state=online,offset=90,lag=1 \
             slave1:ip=::1,port=0,state=send_bulk,offset=0,lag=0 master_repl_offset:100 "
        );
        assert_eq!(words, "*3 $6 master :100 *1 *3 $8 10.0.0.2 $4 6380 $2 90 ");
        assert_eq!(shown(&Replication::default()).1, "*3 $6 master :0 *0 ");
    }

    #[test]
    fn a_follower_shows_its_link() {
        let link = Link {
            leader: ("leader.example".to_owned(), 11311),
            state: LinkState::Following,
            silence_secs: Some(0),
            offset: Some(70),
            is_read_only: true,
            down_secs: None,
        };
        let replication =
            Replication { link: Some(link.clone()), offset: 70, ..Replication::default() };
        let (lines, words) = shown(&replication);
        assert_eq!(
            lines,
            "role:slave master_host:leader.example master_port:11311 master_link_status:up \
             master_last_io_seconds_ago:0 master_sync_in_progress:0 slave_repl_offset:70 \
             slave_read_only:1 connected_slaves:0 master_repl_offset:70 "
        );
        assert_eq!(words, "*5 $5 slave $14 leader.example :11311 $9 connected :70 ");
        let link = Link { state: LinkState::Copying, silence_secs: None, offset: None, ..link };
        let (lines, words) = shown(&Replication { link: Some(link), ..Replication::default() });
        assert!(
            lines.contains("status:down master_last_io_seconds_ago:-1 master_sync_in_progress:1")
        );
        assert!(lines.contains("master_link_down_since_seconds:-1 slave_read_only:1"), "{lines}");
        assert_eq!(words, "*5 $5 slave $14 leader.example :11311 $4 sync :-1 ");
    }
}
