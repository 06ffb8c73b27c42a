//! Blocking reads and writes that transfer a complete range of a file.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Reads a complete range, with several system calls if necessary. If a system call returns a
/// number of bytes that is not a multiple of `align`, the file ends there, and a further direct
/// read from that offset would be refused.
///
/// # Errors
/// Returns the operating system's error, or `UnexpectedEof` at the end of the file.
///
/// # Safety
/// `into` has space for `len` bytes, and no other thread reads or writes them until this function
/// returns.
pub(crate) unsafe fn read_all(
    file: BorrowedFd<'_>,
    mut offset: u64,
    into: *mut u8,
    len: usize,
    align: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is less than `len`, and `into` has space for `len` bytes.
        let rest = unsafe { into.add(done) };
        // SAFETY: there is room for `len - done` bytes at `rest`, and only this read uses them.
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

/// Writes a complete range, with several system calls if necessary.
///
/// # Errors
/// Returns the operating system's error.
///
/// # Safety
/// `from` points to `len` initialised bytes.
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
        // SAFETY: `rest` has `len - done` bytes, which the system only reads.
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

/// Converts the result of a system call. A negative result stands for the error in `errno`.
fn count(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

fn at(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}
