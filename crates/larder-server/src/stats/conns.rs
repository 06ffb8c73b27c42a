//! `stats conns`. memcached numbers listeners and connections by file descriptor; here they have
//! numbers of their own, which are not used again.

use super::Page;
use crate::server::Server;

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let now = server.clock.now().0;
    for (id, name) in (1..).zip(&server.listening()) {
        let udp = name.starts_with("udp");
        if udp {
            page.line(&format!("{id}:UDP"), "UDP");
        }
        page.line(&format!("{id}:addr"), name);
        let state = if udp { "conn_read" } else { "conn_listening" };
        page.line(&format!("{id}:state"), state);
        page.line(&format!("{id}:secs_since_last_cmd"), server.clock.uptime());
    }
    for (id, conn) in server.conns().iter() {
        page.line(&format!("{id}:addr"), &conn.peer);
        page.line(&format!("{id}:listen_addr"), &conn.listener);
        page.line(&format!("{id}:state"), conn.state());
        let idle = now.saturating_sub(conn.last_command());
        page.line(&format!("{id}:secs_since_last_cmd"), idle);
    }
}
