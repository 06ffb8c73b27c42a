//! The keys of a cluster in etcd.
//!
//! ```text
//! /larder/1/CLUSTER/identity, map, discovery
//! /larder/1/CLUSTER/groups/GROUP, settings/GROUP, transfer/GROUP
//! /larder/1/CLUSTER/live/GROUP/NODE, nodes/GROUP/NODE
//! ```

/// A valid key. The names in it consist of ASCII letters, digits, `-`, `_` and `.`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterKey<'k> {
    Identity,
    Map,
    Discovery,
    Record { group: &'k str },
    Settings { group: &'k str },
    Transfer,
    Live { group: &'k str, node: &'k str },
    Node { group: &'k str, node: &'k str },
}

impl<'k> ClusterKey<'k> {
    /// Parses a key under the prefix of a cluster. Returns `None` if the key is invalid.
    pub(crate) fn parse(key: &'k str) -> Option<Self> {
        let is_name = |name: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && name.chars().all(is_allowed)
        };
        // Skip the empty part before the first slash, `larder`, `1` and the cluster.
        let parts: Vec<&str> = key.split('/').skip(4).collect();
        let is_valid = parts.iter().all(|part| is_name(part));
        match *parts.as_slice() {
            _ if !is_valid => None,
            ["identity"] => Some(Self::Identity),
            ["map"] => Some(Self::Map),
            ["discovery"] => Some(Self::Discovery),
            ["groups", group] => Some(Self::Record { group }),
            ["settings", group] => Some(Self::Settings { group }),
            ["transfer", _] => Some(Self::Transfer),
            ["live", group, node] => Some(Self::Live { group, node }),
            ["nodes", group, node] => Some(Self::Node { group, node }),
            _ => None,
        }
    }

    /// Returns the group and the node, if the key belongs to a node.
    pub(crate) fn member(self) -> Option<(&'k str, &'k str)> {
        match self {
            Self::Live { group, node } | Self::Node { group, node } => Some((group, node)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_with_valid_names_at_the_right_depth_are_parsed() {
        let parse = |path: &str| ClusterKey::parse(&format!("/larder/1/demo/{path}")).is_some();
        for valid in [
            "identity",
            "map",
            "discovery",
            "groups/0",
            "settings/0",
            "transfer/0",
            "live/0/n-1.a_b",
        ] {
            assert!(parse(valid), "{valid}");
        }
        for invalid in
            ["", "maps", "map/0", "groups/", "groups/x/0", "live/0", "live/0/a/b", "nodes/0/a\nb"]
        {
            assert!(!parse(invalid), "{invalid}");
        }
        let node = ClusterKey::parse("/larder/1/demo/nodes/0/n1");
        assert_eq!(node.and_then(ClusterKey::member), Some(("0", "n1")));
    }
}
