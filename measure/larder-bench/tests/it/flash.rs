//! Tests the reported flash activity, with memcached's extstore.

use crate::common::Server;
use tempfile::tempdir;

/// The server holds 48 MB of values in 32 MiB of memory, so the least recently set values are on
/// flash.
#[test]
fn hits_that_come_from_flash_are_counted_and_checked() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("flash");
    let options = format!("ext_page_size=8,ext_wbuf_size=2,ext_path={}:256m", file.display());
    let server = Server::memcached_with(&["-m", "32", "-o", &options]);
    let items =
        "--key-minimum 1 --key-maximum 24000 -d 2000 --verify -t 1 -c 4 --distinct-client-seed";
    let filled = server.load(&format!("{items} --ratio 1:0 --key-pattern P:P -n allkeys"));
    let written = filled.outcome.flash.expect("it has a flash tier");
    assert_eq!(written.sets, 24_000);
    assert!(written.written_bytes > 4 << 20, "{written:?}");
    assert_eq!(written.share_from_flash, None, "there were no hits yet");

    let outcome = server.load(&format!("{items} --ratio 0:1 -n 2000")).outcome;
    let flash = outcome.flash.unwrap();
    assert_eq!(outcome.faults.get("wrong value"), None);
    assert_eq!(flash.hits, outcome.total().hits);
    let share = flash.share_from_flash.unwrap();
    assert!((0.05..1.0).contains(&share), "{flash:?}");
    assert!(
        flash.items > 1000 && flash.used_bytes > 2_000_000 && flash.read_bytes > 0,
        "{flash:?}"
    );
}

#[test]
fn a_server_without_flash_has_no_such_figures() {
    let outcome = Server::memcached().load("--ratio 0:1 -t 1 -c 1 -n 10").outcome;
    assert_eq!(outcome.flash, None);
    assert!(outcome.server.unwrap().written_bytes.is_some(), "the process belongs to this user");
}
