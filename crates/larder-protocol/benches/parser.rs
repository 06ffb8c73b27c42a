//! Benchmarks of the parser: `cargo bench -p larder-protocol`. Times are for a batch of [`BATCH`]
//! requests. Rates are in requests, not batches, per second.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use larder_protocol::{Parsed, Parser};

const BATCH: usize = 16;

fn main() {
    divan::main();
}

/// Measures how fast the parser reads a pipeline of identical requests.
fn parse(bencher: Bencher<'_, '_>, request: &[u8]) {
    let input = request.repeat(BATCH);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        let (mut parser, mut rest) = (Parser::default(), black_box(&input[..]));
        while !rest.is_empty() {
            let Parsed::Request { consumed, .. } = black_box(parser.parse(rest)) else {
                panic!("expected a complete request");
            };
            rest = &rest[consumed..];
        }
    });
}

#[divan::bench]
fn text_get(bencher: Bencher<'_, '_>) {
    parse(bencher, b"get key:0000000000000001\r\n");
}

#[divan::bench]
fn text_set(bencher: Bencher<'_, '_>) {
    let line = b"set key:0000000000000001 0 0 100\r\n";
    parse(bencher, &[&line[..], &[b'v'; 100], b"\r\n"].concat());
}

#[divan::bench]
fn meta_get(bencher: Bencher<'_, '_>) {
    parse(bencher, b"mg key:0000000000000001 v f t\r\n");
}

#[divan::bench]
fn binary_get(bencher: Bencher<'_, '_>) {
    let mut packet = [0; 24];
    (packet[0], packet[3], packet[11]) = (0x80, 20, 20);
    parse(bencher, &[&packet[..], b"key:0000000000000001"].concat());
}
