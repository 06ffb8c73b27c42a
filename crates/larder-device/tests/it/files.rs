//! Files and their headers.

use crate::support::{Buffer, LONG, PAGE_LEN, folder, open, specs};
use larder_device::{Device, FileSpec, Files, FilesError, HEADER_LEN, Opening};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::{Duration, Instant};

#[test]
fn a_read_returns_the_written_bytes() {
    let folder = folder();
    let specs = specs(folder.path(), &[3 * PAGE_LEN + 5, 2 * PAGE_LEN]);
    let files = open(&specs).unwrap();
    assert_eq!(files.len(), 5 * PAGE_LEN);
    let align = files.align();
    assert!(align.is_power_of_two() && (512..=4096).contains(&align), "{align}");
    // Write the first and the last page of each file.
    for offset in [0, 2 * PAGE_LEN, 3 * PAGE_LEN, 4 * PAGE_LEN] {
        Buffer::numbered(offset, usize::try_from(PAGE_LEN).unwrap()).write(&files, offset).unwrap();
    }
    files.sync().unwrap();
    for offset in [align as u64, 3 * PAGE_LEN - align as u64, 3 * PAGE_LEN, 5 * PAGE_LEN - 4096] {
        let buffer = Buffer::new(align);
        buffer.read(&files, offset).unwrap();
        assert_eq!(buffer.bytes(), Buffer::numbered(offset, align).bytes());
    }
    let written = fs::read(&specs[1].path).unwrap();
    assert_eq!(written.len() as u64, HEADER_LEN + 2 * PAGE_LEN);
    assert_eq!(written[4096..4104], (3 * PAGE_LEN).to_le_bytes());
    let mode = fs::metadata(&specs[0].path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn places_outside_of_the_files_are_refused() {
    let folder = folder();
    let files = open(&specs(folder.path(), &[PAGE_LEN, PAGE_LEN])).unwrap();
    let buffer = Buffer::new(8192);
    for offset in [2 * PAGE_LEN, 2 * PAGE_LEN - 4096, PAGE_LEN - 4096, u64::MAX - 4095] {
        assert!(buffer.read(&files, offset).is_err(), "{offset}");
        assert!(buffer.write(&files, offset).is_err(), "{offset}");
    }
    assert_eq!(files.descriptor(2 * PAGE_LEN), None);
    let (first, second) = (files.descriptor(0).unwrap(), files.descriptor(PAGE_LEN).unwrap());
    assert_ne!(first.0, second.0);
    assert_eq!((first.1, second.1), (HEADER_LEN, HEADER_LEN));
}

#[test]
fn an_id_is_kept_for_the_same_files() {
    let folder = folder();
    let sizes = [2 * PAGE_LEN, 3 * PAGE_LEN];
    let specs = specs(folder.path(), &sizes);
    let id = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
    {
        let files = open(&specs).unwrap();
        assert_eq!(files.id(), None);
        files.set_id(9).unwrap();
        files.set_id(id).unwrap();
        assert_eq!(files.id(), Some(id));
    }
    assert_eq!(open(&specs).unwrap().id(), Some(id));
    let longer_pages = Files::open(&specs, 2 * PAGE_LEN, &Opening::default()).unwrap();
    assert_eq!(longer_pages.id(), None);
    drop(longer_pages);
    // The size of the second file was rounded down to a multiple of the longer page length.
    assert_eq!(open(&specs).unwrap().id(), Some(id));
    let swapped: Vec<FileSpec> = specs.iter().rev().cloned().collect();
    assert_eq!(open(&swapped).unwrap().id(), None);
    let only = &specs[..1];
    assert_eq!(open(only).unwrap().id(), None);
    let larger = [specs[0].clone(), FileSpec { bytes: 4 * PAGE_LEN, ..specs[1].clone() }];
    assert_eq!(open(&larger).unwrap().id(), None);
    // Additional bytes do not matter if they are less than a page.
    let same = [specs[0].clone(), FileSpec { bytes: 3 * PAGE_LEN + 4096, ..specs[1].clone() }];
    assert_eq!(open(&same).unwrap().id(), Some(id));
}

#[test]
fn a_damaged_header_has_no_id() {
    let folder = folder();
    let specs = specs(folder.path(), &[PAGE_LEN]);
    open(&specs).unwrap().set_id(5).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&specs[0].path).unwrap();
    for at in (0..10 * 8).chain([100, 4095]) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        assert_eq!(open(&specs).unwrap().id(), None, "byte {at}");
        file.write_all_at(&byte, at).unwrap();
        assert_eq!(open(&specs).unwrap().id(), Some(5), "byte {at}");
    }
    assert_eq!(open(&specs).unwrap().id(), Some(5));
}

#[test]
fn files_in_use_are_waited_for() {
    let folder = folder();
    let specs = specs(folder.path(), &[PAGE_LEN]);
    let first = open(&specs).unwrap();
    let begun = Instant::now();
    let refused = open(&specs).unwrap_err();
    assert!(matches!(refused, FilesError::InUse { .. }), "{refused}");
    assert!(begun.elapsed() >= Duration::from_millis(100));
    std::thread::scope(|scope| {
        let specs = &specs;
        let opening = Opening { patience: LONG, ..Opening::default() };
        let second = scope.spawn(move || Files::open(specs, PAGE_LEN, &opening).map(drop));
        drop(first);
        second.join().unwrap().unwrap();
    });
}

#[test]
fn shared_linked_and_foreign_files_are_not_overwritten() {
    let folder = folder();
    let specs = specs(folder.path(), &[PAGE_LEN]);
    let path = &specs[0].path;
    let refusal = || open(&specs).unwrap_err().to_string();

    fs::write(path, "a letter").unwrap();
    assert!(refusal().contains("chmod 600"), "{}", refusal());
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(refusal().contains("it contains something else"), "{}", refusal());
    fs::write(path, "a longer letter".repeat(1000)).unwrap();
    assert!(refusal().contains("it contains something else"), "{}", refusal());
    assert_eq!(fs::read(path).unwrap().len(), 15_000);

    let other = folder.path().join("other");
    fs::write(path, "").unwrap();
    fs::hard_link(path, &other).unwrap();
    assert!(refusal().contains("more than one name"), "{}", refusal());
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(&other, path).unwrap();
    assert!(refusal().contains("symbolic link"), "{}", refusal());
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
    assert!(open(&specs).is_err());
    fs::remove_dir(path).unwrap();
    // A file that contains only zeros is accepted like an empty file.
    fs::write(path, vec![0; 10_000]).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(open(&specs).unwrap().len(), PAGE_LEN);
}

#[test]
fn sizes_that_are_not_possible_are_refused() {
    let folder = folder();
    let path = folder.path().join("flash");
    let with = |bytes| open(&[FileSpec { path: path.clone(), bytes }]).unwrap_err();
    assert!(matches!(with(PAGE_LEN - 1), FilesError::NoPage { .. }));
    assert!(!path.exists());
    let huge = with(1 << 50);
    assert!(matches!(huge, FilesError::NoRoom { .. } | FilesError::Io { .. }), "{huge}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert!(matches!(open(&[]).unwrap_err(), FilesError::None));
    let twice = FileSpec { path: path.clone(), bytes: PAGE_LEN };
    let twice = open(&[twice.clone(), twice]).unwrap_err();
    assert!(matches!(twice, FilesError::Twice { .. }), "{twice}");
    let nowhere = FileSpec { path: folder.path().join("no/file"), bytes: PAGE_LEN };
    assert!(matches!(open(&[nowhere]).unwrap_err(), FilesError::Io { .. }));
}
