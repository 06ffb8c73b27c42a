//! The faults of the simulated device.

use crate::support::Buffer;
use larder_device::{Device, Faults, Memory};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 8192;

/// Returns a device with numbered bytes and these faults.
fn memory(faults: Faults) -> Memory {
    let memory = Memory::new(16 * LEN, 42);
    Buffer::numbered(0, 16 * LEN).write(&memory, 0).unwrap();
    memory.set_faults(faults);
    memory
}

/// Returns the number of wrong bits in the bytes read at offset 0.
fn wrong_bits(buffer: &Buffer) -> u32 {
    let right = Buffer::numbered(0, LEN);
    buffer.bytes().iter().zip(right.bytes()).map(|(one, other)| (one ^ other).count_ones()).sum()
}

#[test]
fn without_faults_bytes_are_kept() {
    let memory = memory(Faults::default());
    let buffer = Buffer::new(LEN);
    buffer.read(&memory, 0).unwrap();
    assert_eq!(wrong_bits(&buffer), 0);
    assert_eq!((memory.reads(), memory.writes()), (1, 1));
    assert_eq!((memory.len(), memory.descriptor(0)), (16 * LEN as u64, None));
    assert!(buffer.read(&memory, 1).is_err(), "an unaligned offset is refused");
    assert!(buffer.read(&memory, 16 * LEN as u64).is_err(), "a read behind the end is refused");
    assert!(
        buffer.write(&memory, 16 * LEN as u64 - 512).is_err(),
        "a write beyond the end is refused"
    );
}

#[test]
fn reads_fail_at_the_rate_that_was_asked_for() {
    let buffer = Buffer::new(LEN);
    let failures = |faults, kind: fn(&std::io::Error) -> bool| {
        let memory = memory(faults);
        (0..1000).filter(|_| buffer.read(&memory, 0).is_err_and(|error| kind(&error))).count()
    };
    let eio = |error: &std::io::Error| error.raw_os_error() == Some(5);
    let short = |error: &std::io::Error| error.kind() == ErrorKind::UnexpectedEof;
    let count = failures(Faults { read_errors: 10, ..Faults::default() }, eio);
    assert!((50..200).contains(&count), "{count}");
    let count = failures(Faults { short_reads: 10, ..Faults::default() }, short);
    assert!((50..200).contains(&count), "{count}");
}

#[test]
fn a_read_with_a_flipped_bit_has_one_wrong_bit() {
    let memory = memory(Faults { flipped_bits: 1, ..Faults::default() });
    let buffer = Buffer::new(LEN);
    for _ in 0..20 {
        buffer.read(&memory, 0).unwrap();
        assert_eq!(wrong_bits(&buffer), 1);
    }
    memory.set_faults(Faults::default());
    buffer.read(&memory, 0).unwrap();
    assert_eq!(wrong_bits(&buffer), 0);
}

#[test]
fn torn_writes_end_behind_a_sector() {
    for torn_unnoticed in [false, true] {
        let memory = Memory::new(LEN, 3);
        memory.set_faults(Faults { torn_writes: 1, torn_unnoticed, ..Faults::default() });
        let mut ones = Buffer::new(LEN);
        ones.bytes_mut().fill(1);
        let mut lengths = Vec::new();
        for _ in 0..50 {
            let result = ones.write(&memory, 0);
            assert_eq!(result.is_ok(), torn_unnoticed);
            let (now, faults) = (Buffer::new(LEN), memory.faults());
            memory.set_faults(Faults::default());
            now.read(&memory, 0).unwrap();
            let written = now.bytes().iter().position(|byte| *byte == 0).unwrap();
            assert!(written.is_multiple_of(512) && now.bytes()[written..].iter().all(|b| *b == 0));
            lengths.push(written);
            Buffer::new(LEN).write(&memory, 0).unwrap();
            memory.set_faults(faults);
        }
        lengths.sort_unstable();
        lengths.dedup();
        assert!(lengths.len() > 5, "{lengths:?}");
    }
}

#[test]
fn writes_fail_when_it_is_full_or_broken() {
    let memory = memory(Faults { is_full: true, ..Faults::default() });
    let buffer = Buffer::new(LEN);
    assert_eq!(buffer.write(&memory, 0).unwrap_err().kind(), ErrorKind::StorageFull);
    memory.set_faults(Faults { write_errors: 1, ..Faults::default() });
    assert_eq!(buffer.write(&memory, 0).unwrap_err().raw_os_error(), Some(5));
    buffer.read(&memory, 0).unwrap();
    assert_eq!(wrong_bits(&buffer), 0);
}

#[test]
fn reads_take_time() {
    let delay_max = Duration::from_millis(4);
    let memory = memory(Faults { delay_max, ..Faults::default() });
    let begun = Instant::now();
    (0..20).for_each(|_| Buffer::new(LEN).read(&memory, 0).unwrap());
    assert!(begun.elapsed() >= delay_max * 5, "{:?}", begun.elapsed());
}

#[test]
fn operations_hang_until_the_fault_is_cleared() {
    let memory = memory(Faults { hangs: true, ..Faults::default() });
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            Buffer::new(LEN).read(&memory, 0).unwrap();
            has_ended.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| Buffer::numbered(0, LEN).write(&memory, 0).unwrap());
        scope.spawn(|| memory.sync().unwrap());
        while (memory.reads(), memory.writes()) != (1, 2) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(10));
        assert!(!has_ended.load(Ordering::SeqCst));
        memory.set_faults(Faults::default());
    });
    assert!(has_ended.load(Ordering::SeqCst));
}
