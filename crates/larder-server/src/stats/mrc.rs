//! `stats mrc`, Larder's own: what the hit ratio would be with less memory or with more.

use super::Page;
use crate::server::Server;

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let Some(curve) = server.miss_ratio_curve() else {
        return page.line("mrc", "none");
    };
    for (factor, ratio) in curve.hit_ratios {
        page.line(&format!("mrc:{factor}"), format_args!("{ratio:.4}"));
    }
    page.line("mrc:samples", curve.samples);
    page.line("mrc:keys", curve.keys);
    page.line("mrc:sampled", format_args!("{:.6}", curve.sampled));
}
