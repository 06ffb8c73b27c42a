//! The replication section of `INFO` and the reply to `ROLE`, in redis-server's format.

use std::fmt::Write;

/// The replication state of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    /// The link to the leader; `None` if the server follows no leader.
    pub link: Option<Link>,
    /// The followers of the server.
    pub followers: Vec<Follower>,
    /// The number of bytes that the server has written to its journals. If the server has no
    /// journals, this field equals [`Link::offset`].
    pub offset: u64,
}

/// The link of a follower to its leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Host and port of the leader. Without a leader, the host is empty and the port is 0.
    pub leader: (String, u16),
    /// The state of the link.
    pub state: LinkState,
    /// Seconds since bytes last arrived from the leader. Bytes that arrive while the replication
    /// lag is unknown do not count. `None` until a heartbeat shows the lag for the first time.
    pub silence_secs: Option<u64>,
    /// Seconds since the last connection to the leader was closed; `None` if no connection has been
    /// closed.
    pub down_secs: Option<u64>,
    /// The position in the leader's journals, in bytes, up to which this follower has all changes.
    /// `None` until the leader has sent the first watermark, which reports this position.
    pub offset: Option<u64>,
    /// Whether the follower refuses changes, rather than forwarding them to the leader.
    pub is_read_only: bool,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is no connection.
    #[default]
    Connecting,
    /// There is a connection, and a sync is running.
    FullSync,
    /// The follower receives changes as they happen.
    Following,
}

/// The state of a follower at its leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// The IP address or host name.
    pub host: String,
    /// The port for clients; 0 if it is unknown.
    pub port: u16,
    /// Whether a full sync is running.
    pub is_copying: bool,
    /// The position in the journals, in bytes, up to which changes were sent to the follower.
    pub offset: u64,
    /// An upper bound of this follower's replication lag, in seconds.
    pub lag_secs: u64,
}

impl LinkState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::FullSync => "sync",
            Self::Following => "connected",
        }
    }
}

impl Replication {
    /// Returns the lines of the replication section of `INFO`.
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
        let is_copying = self.state == LinkState::FullSync;
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

/// Returns a number, or -1 if there is none.
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
        let link = Link { state: LinkState::FullSync, silence_secs: None, offset: None, ..link };
        let (lines, words) = shown(&Replication { link: Some(link), ..Replication::default() });
        assert!(
            lines.contains("status:down master_last_io_seconds_ago:-1 master_sync_in_progress:1")
        );
        assert!(lines.contains("master_link_down_since_seconds:-1 slave_read_only:1"), "{lines}");
        assert_eq!(words, "*5 $5 slave $14 leader.example :11311 $4 sync :-1 ");
    }
}
