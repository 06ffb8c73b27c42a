//! Reads and writes of a whole range of a file, for threads that wait for them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Reads all of a range. With direct I/O only the end of the file makes a read end at a place that is no
/// multiple of `align`, and the system would refuse to go on from there.
///
/// # Errors
/// The system's; `UnexpectedEof` at the end of the file.
///
/// # Safety
/// `into` has room for `len` bytes, and nobody else reads or writes them meanwhile.
pub(crate) unsafe fn read_all(
    file: BorrowedFd<'_>,
    mut offset: u64,
    into: *mut u8,
    len: usize,
    align: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is less than `len`, and `into` has room for that much.
        let rest = unsafe { into.add(done) };
        // SAFETY: there is room for `len - done` bytes from `rest` on, and only this read uses them.
        let read = unsafe { libc::pread(file.as_raw_fd(), rest.cast(), len - done, at(offset)?) };
        match count(read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                done += read;
                offset += read as u64;
                if done < len && !done.is_multiple_of(align) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of a range.
///
/// # Errors
/// The system's.
///
/// # Safety
/// There are `len` bytes at `from`.
pub(crate) unsafe fn write_all(
    file: BorrowedFd<'_>,
    mut offset: u64,
    from: *const u8,
    len: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is less than `len`, the number of bytes at `from`.
        let rest = unsafe { from.add(done) };
        // SAFETY: there are `len - done` bytes from `rest` on, which the system only reads.
        let wrote = unsafe { libc::pwrite(file.as_raw_fd(), rest.cast(), len - done, at(offset)?) };
        match count(wrote) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(wrote) => {
                done += wrote;
                offset += wrote as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What a call of the system returned: a count or, if negative, an error.
fn count(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

fn at(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}
