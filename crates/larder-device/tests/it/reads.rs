//! Reads through rings and threads.

use crate::support::{Buffer, LONG, PAGE_LEN, Random, Read, filled, folder, specs};
use larder_device::{Device, Faults, Files, Memory, Opening, Pool, ReadParameters, Reader, Target};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEPTH: usize = 32;

/// Runs a test with a ring if the system supports it, and then with threads.
fn with_readers(device: &Arc<dyn Device>, test: impl Fn(Reader)) {
    let pool = Pool::new(4);
    let reader = Reader::new(Arc::clone(device), DEPTH, &pool);
    assert_eq!(reader.fd().is_some(), reader.uses_ring());
    if reader.uses_ring() {
        test(reader);
    }
    let reader = Reader::threaded(Arc::clone(device), DEPTH, &pool);
    assert!(!reader.uses_ring());
    test(reader);
}

/// Waits until all reads have ended.
fn end_all(reader: &mut Reader) {
    let begun = Instant::now();
    while reader.under_way() > 0 {
        reader.reap();
        assert!(begun.elapsed() < LONG, "{reader:?}");
        std::thread::yield_now();
    }
}

#[test]
fn random_places_are_read_with_many_under_way() {
    let folder = folder();
    let files = filled(&specs(folder.path(), &[20 * PAGE_LEN, 12 * PAGE_LEN]));
    let align = files.align() as u64;
    let device: Arc<dyn Device> = files;
    with_readers(&device, |mut reader| {
        let mut random = Random(1);
        let mut reads = Vec::new();
        while reads.len() < 1000 {
            let len = (1 + random.below(16)) * align;
            let page = random.below(32) * PAGE_LEN;
            let offset = page + random.below((PAGE_LEN - len) / align + 1) * align;
            let mut read = Read::new(offset, usize::try_from(len).unwrap());
            reads.push(Arc::clone(&read));
            let begun = Instant::now();
            while let Err(refused) = reader.start(read) {
                assert!(begun.elapsed() < LONG, "{reader:?}");
                read = refused;
                reader.submit();
                reader.reap();
            }
        }
        reader.submit();
        end_all(&mut reader);
        for read in &reads {
            read.wait().unwrap();
            assert!(read.is_right(), "at {}", read.offset);
        }
    });
}

#[test]
fn no_more_than_the_depth_is_under_way() {
    let memory = Memory::new(1 << 20, 1);
    memory.set_faults(Faults { hangs: true, ..Faults::default() });
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let pool = Pool::new(2);
    let mut reader = Reader::new(device, 3, &pool);
    assert!(!reader.uses_ring() && reader.fd().is_none());
    for _ in 0..3 {
        reader.start(Read::new(0, 512)).ok().unwrap();
    }
    assert!(reader.start(Read::new(0, 512)).is_err());
    reader.submit();
    assert_eq!(reader.under_way(), 3);
    memory.set_faults(Faults::default());
    end_all(&mut reader);
    assert!(reader.start(Read::new(0, 512)).is_ok());
    assert_eq!(reader.under_way(), 1);
}

#[test]
fn dropping_a_reader_waits_for_its_reads() {
    let folder = folder();
    let files = filled(&specs(folder.path(), &[64 * PAGE_LEN]));
    let device: Arc<dyn Device> = files;
    with_readers(&device, |mut reader| {
        let reads: Vec<_> =
            (0..DEPTH as u64).map(|page| Read::new(page * PAGE_LEN, 65_536)).collect();
        for (number, read) in reads.iter().enumerate() {
            reader.start(Arc::clone(read)).ok().unwrap();
            // Submit the reads that were started so far. The later reads are submitted when the
            // reader is dropped.
            if number == DEPTH / 2 {
                reader.submit();
            }
        }
        drop(reader);
        assert!(reads.iter().all(|read| read.has_ended() && read.is_right()));
        assert!(reads.iter().all(|read| Arc::strong_count(read) == 1));
    });
}

#[test]
fn dropping_a_reader_waits_for_a_device_that_hangs() {
    let memory = Memory::new(1 << 20, 1);
    memory.set_faults(Faults { hangs: true, ..Faults::default() });
    let pool = Pool::new(2);
    let mut reader = Reader::new(Arc::new(memory.clone()), 8, &pool);
    let reads: Vec<_> = (0..8).map(|at| Read::new(at * 512, 512)).collect();
    reads.iter().for_each(|read| reader.start(Arc::clone(read)).ok().unwrap());
    reader.submit();
    let is_dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(reader);
            is_dropped.store(true, Ordering::SeqCst);
        });
        while memory.reads() < 2 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!is_dropped.load(Ordering::SeqCst));
        memory.set_faults(Faults::default());
    });
    assert!(reads.iter().all(|read| read.wait().is_ok()));
}

#[test]
fn reads_that_a_pool_was_given_end_before_it_does() {
    let memory = Memory::new(1 << 20, 1);
    memory.set_faults(Faults { delay_max: Duration::from_millis(2), ..Faults::default() });
    let pool = Pool::new(2);
    let mut reader = Reader::new(Arc::new(memory), 64, &pool);
    let reads: Vec<_> = (0..40).map(|at| Read::new(at * 512, 512)).collect();
    reads.iter().for_each(|read| reader.start(Arc::clone(read)).ok().unwrap());
    reader.submit();
    drop(pool);
    assert!(reads.iter().all(|read| read.has_ended()));
    let late = Read::new(0, 512);
    reader.start(Arc::clone(&late)).ok().unwrap();
    reader.submit();
    assert!(late.wait().is_err());
}

#[test]
fn a_file_that_became_short_is_an_error() {
    let folder = folder();
    let specs = specs(folder.path(), &[4 * PAGE_LEN]);
    let device: Arc<dyn Device> = filled(&specs);
    let file = OpenOptions::new().write(true).open(&specs[0].path).unwrap();
    // Truncate the file to its header, half a page and part of a sector.
    file.set_len(4096 + PAGE_LEN / 2 + 100).unwrap();
    with_readers(&device, |mut reader| {
        for (offset, is_there) in [(0, true), (PAGE_LEN / 4, false), (2 * PAGE_LEN, false)] {
            let read = Read::new(offset, 32 << 10);
            reader.start(Arc::clone(&read)).ok().unwrap();
            reader.submit();
            end_all(&mut reader);
            let result = read.wait().map_err(|error| error.kind());
            let expected = if is_there { Ok(()) } else { Err(ErrorKind::UnexpectedEof) };
            assert_eq!(result, expected, "at {offset}");
        }
        let outside = Read::new(8 * PAGE_LEN, 4096);
        reader.start(Arc::clone(&outside)).ok().unwrap();
        reader.submit();
        end_all(&mut reader);
        assert!(outside.wait().is_err());
    });
}

#[test]
fn files_are_unlocked_when_readers_and_device_are_gone() {
    let folder = folder();
    let specs = specs(folder.path(), &[4 * PAGE_LEN]);
    drop(filled(&specs));
    for _ in 0..20 {
        let opening = Opening { patience: Duration::ZERO, ..Opening::default() };
        let files = Files::open(&specs, PAGE_LEN, &opening).unwrap();
        let device: Arc<dyn Device> = Arc::new(files);
        with_readers(&device, |mut reader| {
            reader.start(Read::new(0, 4096)).ok().unwrap();
            reader.submit();
        });
    }
}

#[test]
fn a_reader_may_move_to_another_thread() {
    let folder = folder();
    let device: Arc<dyn Device> = filled(&specs(folder.path(), &[8 * PAGE_LEN]));
    with_readers(&device, |mut reader| {
        for offset in (0..8).map(|page| page * PAGE_LEN) {
            let (first, second) = (Read::new(offset, 4096), Read::new(offset + 8192, 4096));
            reader.start(Arc::clone(&first)).ok().unwrap();
            reader.submit();
            reader = std::thread::scope(|scope| {
                let moved = scope.spawn(|| {
                    let mut reader = reader;
                    reader.start(Arc::clone(&second)).ok().unwrap();
                    reader.submit();
                    end_all(&mut reader);
                    reader
                });
                moved.join().unwrap()
            });
            assert!(first.wait().is_ok() && second.wait().is_ok());
            assert!(first.is_right() && second.is_right());
        }
    });
}

/// Drivers poll the ring's own descriptor with edge triggering. Here, mio does the same.
#[cfg(target_os = "linux")]
#[test]
fn the_end_of_a_read_can_be_polled_for() {
    use mio::unix::SourceFd;
    use mio::{Events, Interest, Poll, Token};
    use std::os::fd::AsRawFd;

    let folder = folder();
    let files: Arc<Files> = filled(&specs(folder.path(), &[8 * PAGE_LEN]));
    let mut reader: Reader = Reader::new(files, DEPTH, &Pool::new(1));
    let Some(fd) = reader.fd().map(|fd| fd.as_raw_fd()) else { return };
    let mut poll = Poll::new().unwrap();
    poll.registry().register(&mut SourceFd(&fd), Token(7), Interest::READABLE).unwrap();
    let mut events = Events::with_capacity(8);
    let mut random = Random(3);
    for _ in 0..200 {
        let wanted = 1 + random.below(4);
        let reads: Vec<_> =
            (0..wanted).map(|_| Read::new(random.below(100) * 4096, 4096)).collect();
        for read in &reads {
            reader.start(Arc::clone(read)).ok().unwrap();
        }
        reader.submit();
        let begun = Instant::now();
        while reader.under_way() > 0 {
            match poll.poll(&mut events, Some(LONG)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.unwrap(),
            }
            assert!(begun.elapsed() < LONG, "the descriptor was not readable");
            assert!(events.iter().all(|event| event.token() == Token(7)));
            reader.reap();
        }
        assert!(reads.iter().all(|read| read.wait().is_ok() && read.is_right()));
    }
    assert_eq!(reader.reap(), 0);
}

/// A target that panics when its read ends.
struct Panics(Buffer);

// SAFETY: only the read uses the buffer.
unsafe impl Target for Panics {
    fn parameters(&self) -> ReadParameters {
        ReadParameters { offset: 0, into: self.0.pointer(), len: 512 }
    }

    fn finish(self: Arc<Self>, _: std::io::Result<()>) {
        panic!("on purpose");
    }
}

#[test]
fn panics_of_targets_do_not_end_threads() {
    let pool = Pool::new(1);
    let memory: Arc<dyn Device> = Arc::new(Memory::new(512, 1));
    let mut reader = Reader::new(Arc::clone(&memory), 1, &pool);
    for _ in 0..3 {
        reader.start(Arc::new(Panics(Buffer::new(512)))).ok().unwrap();
        reader.submit();
        while reader.under_way() > 0 {
            std::thread::yield_now();
        }
    }
    let mut other = Reader::new(memory, 1, &pool);
    let read = Read::new(0, 512);
    other.start(Arc::clone(&read)).ok().unwrap();
    other.submit();
    read.wait().unwrap();
}

#[test]
fn panics_of_targets_leave_a_ring_usable() {
    let folder = folder();
    let files = filled(&specs(folder.path(), &[PAGE_LEN]));
    let mut reader = Reader::new(files, 8, &Pool::new(1));
    if !reader.uses_ring() {
        return;
    }
    (0..8).for_each(|_| reader.start(Arc::new(Panics(Buffer::new(512)))).ok().unwrap());
    reader.submit();
    let (begun, mut panics) = (Instant::now(), 0);
    while reader.under_way() > 0 {
        assert!(begun.elapsed() < LONG, "{panics} of 8 targets were called");
        panics += i32::from(catch_unwind(AssertUnwindSafe(|| reader.reap())).is_err());
    }
    assert_eq!(panics, 8);
}
