//! `stats conns`. memcached numbers connections by file descriptor; here they have numbers of their
//! own, which are not used again.

use super::Page;
use crate::server::Server;
use std::sync::PoisonError;

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let now = server.clock.now().0;
    let listeners = server.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (index, name) in listeners.iter().enumerate() {
        page.line(&format!("L{index}:addr"), name);
        page.line(&format!("L{index}:state"), "conn_listening");
        page.line(&format!("L{index}:secs_since_last_cmd"), server.clock.uptime());
    }
    for (id, conn) in server.conns().iter() {
        page.line(&format!("{id}:addr"), &conn.peer);
        page.line(&format!("{id}:listen_addr"), &conn.listener);
        page.line(&format!("{id}:state"), conn.state());
        let idle = now.saturating_sub(conn.last_command());
        page.line(&format!("{id}:secs_since_last_cmd"), idle);
    }
}
