//! `stats slabs`: the classes of `stats items` with the pages that memcached would need for them.

use super::Page;
use super::items::sum;
use crate::server::Server;
use crate::slab_classes::PAGE_LEN;

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let gauges = server.gauges();
    let classes = &server.settings.limits.classes;
    let mut active = 0;
    for (class, gauge) in gauges.classes.iter().enumerate().filter(|(_, gauge)| gauge.items > 0) {
        active += 1;
        let chunk_size = classes.bound(class) as u64;
        let per_page = PAGE_LEN as u64 / chunk_size;
        let chunks = gauge.items.max(gauge.bytes.div_ceil(chunk_size));
        let pages = chunks.div_ceil(per_page);
        let mut line = |name: &str, value: u64| page.line(&format!("{}:{name}", class + 1), value);
        line("chunk_size", chunk_size);
        line("chunks_per_page", per_page);
        line("total_pages", pages);
        line("total_chunks", pages * per_page);
        line("used_chunks", chunks);
        line("free_chunks", pages * per_page - chunks);
        line("free_chunks_end", 0);
        line("get_hits", sum(server, class, |c| &c.get_hits));
        line("cmd_set", sum(server, class, |c| &c.cmd_set));
        line("delete_hits", sum(server, class, |c| &c.delete_hits));
        line("incr_hits", sum(server, class, |c| &c.incr_hits));
        line("decr_hits", sum(server, class, |c| &c.decr_hits));
        line("cas_hits", sum(server, class, |c| &c.cas_hits));
        line("cas_badval", sum(server, class, |c| &c.cas_badval));
        line("touch_hits", sum(server, class, |c| &c.touch_hits));
    }
    page.line("active_slabs", active);
    page.line("total_malloced", gauges.used_bytes);
}
