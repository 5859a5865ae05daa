//! The functions of libpam, and those of libc that the standard library lacks. The only file with `unsafe`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::time::Duration;

use crate::options::Echo;

/// Results of a module (security/_pam_types.h of Linux-PAM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    Success,
    ServiceError,
    AuthenticationError,
    AuthInfoUnavailable,
    UserUnknown,
    Ignore,
}

impl Return {
    pub(crate) fn code(self) -> c_int {
        match self {
            Self::Success => 0,
            Self::ServiceError => 3,
            Self::AuthenticationError => 7,
            Self::AuthInfoUnavailable => 9,
            Self::UserUnknown => 10,
            Self::Ignore => 25,
        }
    }
}

/// Items of a transaction that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Service,
    RemoteHost,
    Password,
}

impl Item {
    fn code(self) -> c_int {
        match self {
            Self::Service => 1,
            Self::RemoteHost => 4,
            Self::Password => 6,
        }
    }
}

/// PAM_CONV: how to talk to the user.
const CONVERSATION: c_int = 5;

/// A transaction of libpam.
pub(crate) struct Handle(*mut c_void);

#[repr(C)]
struct Message {
    _style: c_int,
    _text: *const c_char,
}

#[repr(C)]
struct Response {
    text: *mut c_char,
    _code: c_int,
}

type Converse = unsafe extern "C" fn(c_int, *mut *const Message, *mut *mut Response, *mut c_void) -> c_int;

#[repr(C)]
struct Conversation {
    converse: Option<Converse>,
    data: *mut c_void,
}

/// Of struct passwd (of Linux) only its beginning is read.
#[repr(C)]
struct Passwd {
    _name: *const c_char,
    _password: *const c_char,
    user: u32,
    group: u32,
    _about: *const c_char,
    home: *const c_char,
}

/// struct sockaddr_un
#[repr(C)]
struct Address {
    _family: u16,
    path: [u8; 108],
}

/// struct timeval
#[repr(C)]
struct Time {
    _seconds: i64,
    _microseconds: i64,
}

#[repr(C)]
struct Credentials {
    _pid: i32,
    uid: u32,
    _gid: u32,
}

unsafe extern "C" {
    fn pam_get_user(handle: *mut c_void, user: *mut *const c_char, prompt: *const c_char) -> c_int;
    fn pam_get_item(handle: *const c_void, item: c_int, value: *mut *const c_void) -> c_int;
    fn pam_set_item(handle: *mut c_void, item: c_int, value: *const c_void) -> c_int;
    fn pam_syslog(handle: *const c_void, priority: c_int, format: *const c_char, ...);
    fn getpwnam(name: *const c_char) -> *const Passwd;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn setsockopt(socket: c_int, level: c_int, option: c_int, value: *const c_void, length: u32) -> c_int;
    fn connect(socket: c_int, address: *const c_void, length: u32) -> c_int;
    fn getsockopt(socket: c_int, level: c_int, option: c_int, value: *mut c_void, length: *mut u32) -> c_int;
    #[link_name = "send"]
    fn libc_send(socket: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize;
    fn explicit_bzero(memory: *mut c_void, length: usize);
    fn geteuid() -> u32;
    fn getegid() -> u32;
    fn getgroups(count: c_int, groups: *mut u32) -> c_int;
    fn getgrouplist(name: *const c_char, group: u32, groups: *mut u32, count: *mut c_int) -> c_int;
    fn setfsuid(user: u32) -> c_int;
    fn setfsgid(group: u32) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn signal(number: c_int, handler: usize) -> usize;
    fn alarm(seconds: u32) -> u32;
    fn strlen(text: *const c_char) -> usize;
    fn free(memory: *mut c_void);
}

/// Number of setgroups(2). The function of libc changes the groups of all threads of the program; the call only those of this one.
#[cfg(target_arch = "x86_64")]
const SET_GROUPS: c_long = 116;
/// The same in the common table of newer architectures (aarch64, riscv64).
#[cfg(not(target_arch = "x86_64"))]
const SET_GROUPS: c_long = 159;

/// Number of close_range(2) on all architectures, and its flag CLOSE_RANGE_CLOEXEC.
const CLOSE_RANGE: c_long = 436;
const CLOSE_AT_EXEC: c_long = 4;

/// Most groups of one user (NGROUPS_MAX of Linux).
const MOST_GROUPS: usize = 65_536;

impl Handle {
    /// The transaction that libpam named; `None` if it named none.
    pub(crate) fn of(handle: *mut c_void) -> Option<Self> {
        (!handle.is_null()).then_some(Self(handle))
    }

    /// The user who wants to log in.
    pub(crate) fn user(&self) -> Option<String> {
        let mut user = ptr::null();
        // SAFETY: the handle is the one that libpam gave for this call, and it writes one pointer, which it owns.
        let code = unsafe { pam_get_user(self.0, &raw mut user, ptr::null()) };
        if code != 0 || user.is_null() {
            return None;
        }
        // SAFETY: libpam gives a string that ends with NUL and lives as long as the transaction.
        let user = unsafe { CStr::from_ptr(user) };
        user.to_str().ok().filter(|user| !user.is_empty()).map(str::to_owned)
    }

    /// A text of the transaction.
    pub(crate) fn item(&self, item: Item) -> Option<String> {
        let mut value = ptr::null();
        // SAFETY: as for the user; these items are strings.
        let code = unsafe { pam_get_item(self.0, item.code(), &raw mut value) };
        if code != 0 || value.is_null() {
            return None;
        }
        // SAFETY: libpam gives a string that ends with NUL and lives as long as the item is not set.
        unsafe { CStr::from_ptr(value.cast()) }.to_str().ok().map(str::to_owned)
    }

    /// Leaves a password to the modules behind this one.
    pub(crate) fn set_password(&self, password: &str) {
        let Ok(password) = CString::new(password) else { return };
        // SAFETY: libpam copies the string.
        unsafe { pam_set_item(self.0, Item::Password.code(), password.as_ptr().cast()) };
        wipe(&mut password.into_bytes());
    }

    /// Asks the user. The caller overwrites the answer.
    pub(crate) fn prompt(&self, text: &str, echo: Echo) -> Option<String> {
        let text = CString::new(text).ok()?;
        let mut value = ptr::null();
        // SAFETY: as for other items; this one is a struct pam_conv.
        let code = unsafe { pam_get_item(self.0, CONVERSATION, &raw mut value) };
        let conversation: *const Conversation = value.cast();
        if code != 0 || conversation.is_null() {
            return None;
        }
        // SAFETY: the program that started the transaction gave this struct, and it lives as long as that.
        let Conversation { converse, data } = unsafe { &*conversation };
        let style = match echo {
            Echo::Off => 1,
            Echo::On => 2,
        };
        let message = Message { _style: style, _text: text.as_ptr() };
        let mut messages: *const Message = &raw const message;
        let mut responses: *mut Response = ptr::null_mut();
        // SAFETY: one message, which lives during the call; the function allocates one response, or none.
        let code = unsafe { (*converse)?(1, &raw mut messages, &raw mut responses, *data) };
        if code != 0 || responses.is_null() {
            return None;
        }
        // SAFETY: the call succeeded, so there is one response.
        let typed = unsafe { (*responses).text };
        // SAFETY: if it is not null, it is a string that ends with NUL, which is ours now.
        let text = (!typed.is_null()).then(|| unsafe { CStr::from_ptr(typed) });
        let copied = text.and_then(|text| text.to_str().ok()).map(str::to_owned);
        // SAFETY: the program allocated both with malloc(3), and gives them to the module. What is overwritten is the string.
        unsafe {
            if !typed.is_null() {
                explicit_bzero(typed.cast(), strlen(typed));
            }
            free(typed.cast());
            free(responses.cast());
        }
        copied
    }

    /// Writes a line to the system's log of log-ins.
    pub(crate) fn log(&self, text: &str) {
        let Ok(text) = CString::new(text) else { return };
        // SAFETY: the format takes one string that ends with NUL. 3 is LOG_ERR.
        unsafe { pam_syslog(self.0, 3, c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// Connects to a socket at a path. connect(2) waits while the queue of a listener is full, which the standard library cannot limit.
pub(crate) fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let mut address = Address { _family: 1, path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays zero.
    if bytes.len() >= address.path.len() {
        return Err(io::Error::other("the path is too long for a socket"));
    }
    address.path[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: no pointer. 1 is AF_UNIX, then SOCK_STREAM with SOCK_CLOEXEC.
    let descriptor = unsafe { socket(1, 1 | 0o2_000_000, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened a moment ago, and no other owner knows it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let time = Time { _seconds: limit.as_secs().cast_signed(), _microseconds: limit.subsec_micros().into() };
    // SAFETY: the buffer has the size that is said. 1 is SOL_SOCKET, 21 is SO_SNDTIMEO.
    let set = unsafe {
        setsockopt(descriptor.as_raw_fd(), 1, 21, (&raw const time).cast(), size_of::<Time>() as u32)
    };
    // SAFETY: the structure has the size that is said.
    let connected = set == 0
        && unsafe {
            connect(descriptor.as_raw_fd(), (&raw const address).cast(), size_of::<Address>() as u32)
        } == 0;
    if connected { Ok(UnixStream::from(descriptor)) } else { Err(io::Error::last_os_error()) }
}

/// The user who owns the process at the other end of a socket, when it began to listen (SO_PEERCRED).
pub(crate) fn peer_of(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = Credentials { _pid: 0, uid: u32::MAX, _gid: u32::MAX };
    let mut length = size_of::<Credentials>() as u32;
    // SAFETY: the buffer has the size that is said, and any bytes are valid in it. 1 is SOL_SOCKET, 17 is SO_PEERCRED.
    let code = unsafe { getsockopt(stream.as_raw_fd(), 1, 17, (&raw mut peer).cast(), &raw mut length) };
    match code {
        0 => Ok(peer.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends bytes, or some of them. A daemon that has gone is an error: SIGPIPE would end the program that logs the user in.
pub(crate) fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    // 0x4000 is MSG_NOSIGNAL.
    // SAFETY: the buffer has the length that is said.
    let sent = unsafe { libc_send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0x4000) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Overwrites memory that had a secret.
pub(crate) fn wipe(memory: &mut [u8]) {
    // SAFETY: the memory has the length that is said, and any bytes are valid in it.
    unsafe { explicit_bzero(memory.as_mut_ptr().cast(), memory.len()) };
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: CString,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) home: PathBuf,
}

/// Looks a user up.
pub(crate) fn account(name: &str) -> Option<Account> {
    let name = CString::new(name).ok()?;
    // SAFETY: the result is static memory or null. A program that logs users in looks others up in the same thread.
    let entry = unsafe { getpwnam(name.as_ptr()) };
    if entry.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to an entry, whose texts end with NUL or are null.
    let Passwd { user, group, home, .. } = unsafe { &*entry };
    let home = match home.is_null() {
        true => PathBuf::new(),
        // SAFETY: as above.
        false => PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(*home) }.to_bytes())),
    };
    Some(Account { name, user: *user, group: *group, home })
}

/// The number of a user.
pub(crate) fn user_id(name: &str) -> Option<u32> {
    account(name).map(|account| account.user)
}

/// The user whose rights this program has.
pub(crate) fn own_user() -> u32 {
    // SAFETY: it takes and writes no memory.
    unsafe { geteuid() }
}

/// Lets a program that will be started have no descriptor of this one beside its standard ones (a kernel before 5.11 lets it have
/// those that the program that loaded this module has not marked), and lets the kernel end it after a time. No signal is sent to
/// it: the program that loaded this module may have waited for it already, and another process may have its number.
pub(crate) fn alone_for(command: &mut Command, limit: Duration) {
    let seconds = u32::try_from(limit.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1);
    let begin = move || {
        // SAFETY: no pointer. It marks descriptors of this process alone.
        unsafe { syscall(CLOSE_RANGE, 3 as c_long, c_long::from(u32::MAX), CLOSE_AT_EXEC) };
        // SAFETY: no pointer. 14 is SIGALRM and 0 is SIG_DFL: the signal, which outlives execve(2), ends the program.
        unsafe {
            signal(14, 0);
            alarm(seconds);
        }
        Ok(())
    };
    // SAFETY: between fork(2) and execve(2) the function makes three system calls, and allocates and locks nothing.
    unsafe { command.pre_exec(begin) };
}

/// Opens files with the rights of a user: user, group and supplementary groups of this thread, for as long as `act` runs.
pub(crate) fn as_user<T>(account: &Account, act: impl FnOnce() -> T) -> io::Result<T> {
    // SAFETY: these functions take and write no memory.
    let (own_user, own_group) = unsafe { (geteuid(), getegid()) };
    if own_user == account.user {
        return Ok(act());
    }
    if own_user != 0 {
        return Err(io::Error::other("the program does not run as root, and cannot read as the user"));
    }
    let before = own_groups()?;
    let groups = groups_of(account)?;
    let _back = Back { groups: before, group: own_group, user: own_user };
    set_groups(&groups)?;
    // SAFETY: as above. They return the number before, and do nothing without the right.
    let is_set = unsafe {
        setfsgid(account.group);
        setfsuid(account.user);
        (setfsgid(u32::MAX), setfsuid(u32::MAX)) == (account.group.cast_signed(), account.user.cast_signed())
    };
    match is_set {
        true => Ok(act()),
        false => Err(io::Error::other("the kernel does not let this program read as the user")),
    }
}

/// Gives the thread its rights back.
struct Back {
    groups: Vec<u32>,
    group: u32,
    user: u32,
}

impl Drop for Back {
    fn drop(&mut self) {
        // SAFETY: as in `as_user`.
        let is_back = unsafe {
            setfsuid(self.user);
            setfsgid(self.group);
            (setfsgid(u32::MAX), setfsuid(u32::MAX)) == (self.group.cast_signed(), self.user.cast_signed())
        };
        if set_groups(&self.groups).is_err() || !is_back {
            // The program would go on with rights that it does not know of.
            std::process::abort();
        }
    }
}

fn own_groups() -> io::Result<Vec<u32>> {
    // SAFETY: with a count of 0 nothing is written.
    let count = unsafe { getgroups(0, ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: the buffer has room for as many as is said.
    let count = unsafe { getgroups(count, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(groups)
}

fn groups_of(account: &Account) -> io::Result<Vec<u32>> {
    let mut room = 64;
    while room <= MOST_GROUPS {
        let mut groups = vec![0; room];
        let mut count = c_int::try_from(room).unwrap_or(c_int::MAX);
        // SAFETY: the buffer has room for as many as is said; the function writes no more, and how many there are.
        let code = unsafe {
            getgrouplist(account.name.as_ptr(), account.group, groups.as_mut_ptr(), &raw mut count)
        };
        if code >= 0 {
            groups.truncate(usize::try_from(count).unwrap_or(0));
            return Ok(groups);
        }
        room *= 4;
    }
    Err(io::Error::other("the user has too many groups"))
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the buffer has as many numbers as is said.
    let code = unsafe { syscall(SET_GROUPS, groups.len(), groups.as_ptr()) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The words behind the module.
pub(crate) fn words(count: c_int, words: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    let word = |at| {
        // SAFETY: libpam gives so many pointers to strings that end with NUL.
        unsafe { CStr::from_ptr(*words.add(at)) }.to_string_lossy().into_owned()
    };
    if words.is_null() { Vec::new() } else { (0..count).map(word).collect() }
}
