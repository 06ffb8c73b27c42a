//! Measures random reads from a file: the rate, the latency, and the processor time per read.
//!
//! ```text
//! cargo run --release -p larder-device --example reads -- --file FILE --bytes 4294967296 \
//!     --depth 32 --len 8192 --seconds 5 [--ring | --threads]
//! ```
//!
//! The program creates and fills the file, unless an earlier run has created it with the same size.
#![expect(clippy::print_stdout, reason = "the program prints its results")]

use larder_device::{Device, FileSpec, Files, Opening, Pool, ReadParameters, Reader, Target};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE_LEN: u64 = 1 << 20;
/// The id that marks a file as filled by this program.
const FILLED: u128 = 0x7265_6164_7300;

struct Options {
    file: PathBuf,
    bytes: u64,
    depth: usize,
    len: usize,
    time: Duration,
    wants_ring: bool,
}

impl Options {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            file: PathBuf::new(),
            bytes: 4 << 30,
            depth: 32,
            len: 4096,
            time: Duration::from_secs(5),
            wants_ring: true,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--file" => options.file = value()?.into(),
                "--bytes" => options.bytes = value()?.parse()?,
                "--depth" => options.depth = value()?.parse()?,
                "--len" => options.len = value()?.parse()?,
                "--seconds" => options.time = Duration::from_secs(value()?.parse()?),
                "--ring" => options.wants_ring = true,
                "--threads" => options.wants_ring = false,
                _ => return Err(format!("{word}: there is no such option").into()),
            }
        }
        Ok(options)
    }
}

type CompletedRead = (Arc<Read>, Duration, io::Result<()>);

/// A buffer, and the pending read into it.
struct Read {
    into: *mut u8,
    layout: Layout,
    offset: AtomicU64,
    begun: Mutex<Instant>,
    ended: Sender<CompletedRead>,
}

// SAFETY: this value owns the memory at `into`, and only `drop` frees it.
unsafe impl Send for Read {}
// SAFETY: only the pending read uses the memory at `into` through a shared reference.
unsafe impl Sync for Read {}

impl Read {
    fn new(len: usize, ended: Sender<CompletedRead>) -> Arc<Self> {
        let layout = Layout::from_size_align(len, 4096).expect("a small power of two");
        // SAFETY: the length is not 0.
        let into = unsafe { alloc_zeroed(layout) };
        if into.is_null() {
            handle_alloc_error(layout);
        }
        let begun = Mutex::new(Instant::now());
        Arc::new(Self { into, layout, offset: AtomicU64::new(0), begun, ended })
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and no read is pending any more.
        unsafe { std::alloc::dealloc(self.into, self.layout) };
    }
}

// SAFETY: only the pending read uses the bytes, and `offset` does not change until this read has
// completed.
unsafe impl Target for Read {
    fn parameters(&self) -> ReadParameters {
        let offset = self.offset.load(Ordering::Relaxed);
        ReadParameters { offset, into: self.into, len: self.layout.size() }
    }

    fn finish(self: Arc<Self>, result: io::Result<()>) {
        let time = self.begun.lock().expect("no thread panics while it holds the lock").elapsed();
        let ended = self.ended.clone();
        // Sending fails if `measure` has dropped the receiver because the time is over.
        let _ = ended.send((self, time, result));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse()?;
    let spec = FileSpec { path: options.file.clone(), bytes: options.bytes };
    let files = Arc::new(Files::open(&[spec], PAGE_LEN, &Opening::default())?);
    let align = files.align();
    println!("{} bytes, direct: {}, alignment: {align}", files.len(), files.is_direct());
    if options.len == 0 || !options.len.is_multiple_of(align) {
        return Err(format!("--len must be a multiple of {align}").into());
    }
    fill(&files)?;
    let pool = Pool::new(options.depth);
    let device: Arc<dyn Device> = files;
    let reader: Reader = if options.wants_ring {
        Reader::new(Arc::clone(&device), options.depth, &pool)
    } else {
        Reader::threaded(Arc::clone(&device), options.depth, &pool)
    };
    measure(&options, &*device, reader)
}

/// Writes the whole file, because reads of unwritten ranges do not access the disk. Does nothing if
/// an earlier run has written the file.
fn fill(files: &Files) -> io::Result<()> {
    if files.id() == Some(FILLED) {
        return Ok(());
    }
    let (ended, _) = channel();
    let page = Read::new(usize::try_from(PAGE_LEN).expect("a mebibyte"), ended);
    let mut random = 1;
    for offset in (0..files.len()).step_by(page.layout.size()) {
        for at in (0..page.layout.size()).step_by(8) {
            // SAFETY: `at` is within the page, whose length is a multiple of 8.
            let word = unsafe { page.into.add(at) };
            // SAFETY: the page is aligned, and no other thread uses it.
            unsafe { word.cast::<u64>().write(draw(&mut random)) };
        }
        // SAFETY: the pointer and the length are those of the page, whose bytes are initialised.
        unsafe { files.write(offset, page.into, page.layout.size()) }?;
    }
    files.sync()?;
    files.set_id(FILLED)
}

/// Returns a random number (a Weyl sequence through SplitMix64's finaliser, Steele et al. 2014).
fn draw(weyl: &mut u64) -> u64 {
    *weyl = weyl.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*weyl ^ (*weyl >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn measure(
    options: &Options,
    device: &dyn Device,
    mut reader: Reader,
) -> Result<(), Box<dyn Error>> {
    let (ended, all_ended) = channel();
    let mut idle: Vec<_> =
        (0..options.depth).map(|_| Read::new(options.len, ended.clone())).collect();
    let mut waiting = CompletionWaiter::new(&reader)?;
    let places = (device.len() - options.len as u64) / device.align() as u64 + 1;
    let mut random = u64::from(std::process::id());
    let mut times = Vec::with_capacity(1 << 20);
    let (started, cpu_before) = (Instant::now(), cpu_time());
    while started.elapsed() < options.time {
        for read in idle.drain(..) {
            let place = draw(&mut random) % places * device.align() as u64;
            read.offset.store(place, Ordering::Relaxed);
            *read.begun.lock().expect("no thread panics while it holds the lock") = Instant::now();
            reader.start(read).map_err(|_| "the reader refuses a read")?;
        }
        reader.submit();
        waiting.wait(&mut reader, &all_ended, |(read, time, result)| {
            times.push(time);
            idle.push(read);
            result
        })?;
    }
    let (elapsed, cpu) = (started.elapsed(), cpu_time() - cpu_before);
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    println!(
        "{}, depth {}, {} bytes: {:.0} reads/s, p50 {:.0} us, p99 {:.0} us, {:.2} us of CPU each",
        if reader.uses_ring() { "ring" } else { "threads" },
        options.depth,
        options.len,
        times.len() as f64 / elapsed.as_secs_f64(),
        at(50),
        at(99),
        cpu.as_secs_f64() * 1e6 / times.len() as f64,
    );
    Ok(())
}

/// Waits for the completion of reads. With a ring, it polls the ring's descriptor, as a server
/// does. Without a ring, it receives from a channel.
struct CompletionWaiter {
    poll: Option<(mio::Poll, mio::Events)>,
}

impl CompletionWaiter {
    fn new(reader: &Reader) -> io::Result<Self> {
        let Some(fd) = reader.fd() else { return Ok(Self { poll: None }) };
        let poll = mio::Poll::new()?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let mut source = mio::unix::SourceFd(&fd);
        poll.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE)?;
        Ok(Self { poll: Some((poll, mio::Events::with_capacity(4))) })
    }

    fn wait(
        &mut self,
        reader: &mut Reader,
        all_ended: &Receiver<CompletedRead>,
        mut take: impl FnMut(CompletedRead) -> io::Result<()>,
    ) -> Result<(), Box<dyn Error>> {
        if let Some((poll, events)) = &mut self.poll {
            while reader.reap() == 0 {
                match poll.poll(events, None) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                    polled => polled?,
                }
            }
        } else {
            take(all_ended.recv()?)?;
        }
        Ok(all_ended.try_iter().try_for_each(take)?)
    }
}

/// Returns the processor time of this process, user and system together.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has space for the result.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: the struct consists of integers. If the system wrote nothing, they are zeros, which
    // are valid.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        let (secs, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
        Duration::from_secs(secs.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
