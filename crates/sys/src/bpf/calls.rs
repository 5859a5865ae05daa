//! Commands of bpf(2). The library has most of them, too; where the kernel refuses a link it silently takes an older way to
//! attach a program, which displaces others.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

/// The commands of a process after its start: it reads one entry of a map, and many at once. And it gives a link another
/// program, by which a start that fails puts the earlier one back.
pub const AFTER_START: [u32; 3] = [LOOK_UP, LOOK_AT_ENTRIES, REPLACE];

const LOOK_UP: u32 = 1;
const LOOK_AT_ENTRIES: u32 = 24;
const PIN: u32 = 6;
const GET: u32 = 7;
const OPEN_PROGRAM: u32 = 13;
const INFO: u32 = 15;
const QUERY: u32 = 16;
const ATTACH: u32 = 28;
const REPLACE: u32 = 29;
const DETACH: u32 = 34;

/// Bytes of a key of the table of flows, of one of the table of fragments, and of a value of either.
pub(super) const KEY: usize = 24;
pub(super) const FRAGMENT_KEY: usize = 40;
pub(super) const VALUE: usize = 16;

fn call<T>(command: u32, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the attributes are a struct of this command with its true size; pointers in it live until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[repr(C)]
struct Batch {
    place_before: u64,
    place_after: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// A look at all entries of a map, a part after the other, with room for what is read.
#[derive(Debug)]
pub struct Look {
    place: Option<u32>,
    keys: Vec<[u8; KEY]>,
    values: Vec<[u8; VALUE]>,
}

impl Look {
    /// About `most` entries are read at once.
    pub fn new(most: usize) -> Self {
        Self { place: None, keys: vec![[0; KEY]; most], values: vec![[0; VALUE]; most] }
    }

    pub fn is_at_start(&self) -> bool {
        self.place.is_none()
    }
}

/// Reads the next part. `Ok(true)`: there are no more, and the next one is the first again.
pub(super) fn look_at_entries(
    map: BorrowedFd<'_>,
    look: &mut Look,
    mut each: impl FnMut(&[u8; VALUE]),
) -> io::Result<bool> {
    let Look { place, keys, values } = look;
    let most = keys.len();
    let (before, mut after) = (*place, 0_u32);
    let mut batch = Batch {
        place_before: before.as_ref().map_or(0, |place| std::ptr::from_ref(place) as u64),
        place_after: std::ptr::from_mut(&mut after) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: most as u32,
        map: map.as_raw_fd() as u32,
        element_flags: 0,
        flags: 0,
    };
    let result = call(LOOK_AT_ENTRIES, &mut batch);
    let is_end = match result {
        Ok(_) => false,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    values.iter().take(batch.count as usize).for_each(&mut each);
    *place = (!is_end).then_some(after);
    Ok(is_end)
}

#[repr(C)]
struct Entry {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Reads the value of a key. `None`: the map does not have it.
pub(super) fn look_up<const KEY: usize>(
    map: BorrowedFd<'_>,
    key: &[u8; KEY],
) -> io::Result<Option<[u8; VALUE]>> {
    let mut value = [0_u8; VALUE];
    let mut entry = Entry {
        map: map.as_raw_fd() as u32,
        unused: 0,
        key: key.as_ptr() as u64,
        value: value.as_mut_ptr() as u64,
        flags: 0,
    };
    match call(LOOK_UP, &mut entry) {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

#[repr(C)]
struct Attach {
    program: u32,
    interface: u32,
    kind: u32,
    flags: u32,
    /// Where among others; zeroes are the end.
    order: [u64; 2],
}

/// Puts a program on an interface. Returns the link, which takes it away when it is closed, unless it is pinned.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, kind: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    opened(call(ATTACH, &mut Attach { program, interface, kind, flags, order: [0; 2] })?)
}

#[repr(C)]
struct Replace {
    link: u32,
    program: u32,
    flags: u32,
    before: u32,
}

/// Gives a link another program.
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let (link, program) = (link.as_raw_fd() as u32, program.as_raw_fd() as u32);
    call(REPLACE, &mut Replace { link, program, flags: 0, before: 0 })?;
    Ok(())
}

/// Takes the program of a link away from its interface, before the call returns.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    call(DETACH, &mut link.as_raw_fd())?;
    Ok(())
}

#[repr(C)]
struct Name {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Gives a map or link a name in a BPF file system.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    call(PIN, &mut Name { path: path.as_ptr() as u64, fd: object.as_raw_fd() as u32, flags: 0 })?;
    Ok(())
}

/// Opens what has a name.
pub(super) fn get(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    opened(call(GET, &mut Name { path: path.as_ptr() as u64, fd: 0, flags: 0 })?)
}

fn opened(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Index of the interface that a link is on; 0 if that is gone.
pub(super) fn interface_of(link: BorrowedFd<'_>) -> io::Result<u32> {
    // `struct bpf_link_info`: type, number, program, a gap; then of a link on an interface the index of that.
    Ok(information(link)?[4])
}

/// Opens the program of a link, which only root may.
pub(super) fn program_of(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Number {
        program: u32,
        next: u32,
        flags: u32,
    }
    let program = information(link)?[2];
    opened(call(OPEN_PROGRAM, &mut Number { program, next: 0, flags: 0 })?)
}

/// Number of the program of a link.
pub(super) fn program_number(link: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(information(link)?[2])
}

/// Number of a program.
pub(super) fn number_of(program: BorrowedFd<'_>) -> io::Result<u32> {
    // `struct bpf_prog_info`: type, number.
    Ok(information(program)?[1])
}

/// Numbers of the programs at a place of an interface (`BPF_TCX_INGRESS` and the like).
pub(super) fn programs_at(interface: u32, kind: u32) -> io::Result<Vec<u32>> {
    #[repr(C)]
    struct Query {
        interface: u32,
        kind: u32,
        flags: u32,
        attach_flags: u32,
        numbers: u64,
        count: u32,
        unused: u32,
        /// What else is told of each, which is not asked for.
        further: [u64; 4],
    }
    // As many as the kernel lets be there (BPF_MPROG_MAX).
    let mut numbers = vec![0_u32; 64];
    let mut query = Query {
        interface,
        kind,
        flags: 0,
        attach_flags: 0,
        numbers: numbers.as_mut_ptr() as u64,
        count: numbers.len() as u32,
        unused: 0,
        further: [0; 4],
    };
    call(QUERY, &mut query)?;
    numbers.truncate(query.count as usize);
    Ok(numbers)
}

/// The number of entries for which the kernel made a map (`max_entries`).
pub(super) fn entries_of(map: BorrowedFd<'_>) -> io::Result<u32> {
    // `struct bpf_map_info`: type, number, sizes of key and value, entries.
    Ok(information(map)?[4])
}

fn information(object: BorrowedFd<'_>) -> io::Result<[u32; 32]> {
    #[repr(C)]
    struct About {
        fd: u32,
        length: u32,
        info: u64,
    }
    let mut info = [0; 32];
    let length = size_of_val(&info) as u32;
    call(INFO, &mut About { fd: object.as_raw_fd() as u32, length, info: info.as_mut_ptr() as u64 })?;
    Ok(info)
}

/// Number of processors that there can be: one more than the largest number of any.
pub(super) fn cpus() -> io::Result<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible is no list"))
}

/// The clock of the programs, in nanoseconds.
pub fn coarse_now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE);
    time.map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
