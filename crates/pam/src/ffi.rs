//! The functions of libpam, and the two of libc that the standard library lacks. The only file with `unsafe`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
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

/// Of struct passwd only its beginning is read.
#[repr(C)]
struct Passwd {
    _name: *const c_char,
    _password: *const c_char,
    uid: u32,
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
    fn free(memory: *mut c_void);
}

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
    }

    /// Asks the user.
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
        let copied = match typed.is_null() {
            true => None,
            // SAFETY: a string that ends with NUL, which is ours now.
            false => unsafe { CStr::from_ptr(typed) }.to_str().ok().map(str::to_owned),
        };
        // SAFETY: the program allocated both with malloc(3), and gives them to the module.
        unsafe {
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

/// The number of a user.
pub(crate) fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the result is static memory or null. A program that logs users in looks others up in the same thread.
    let entry = unsafe { getpwnam(name.as_ptr()) };
    if entry.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to an entry.
    Some(unsafe { (*entry).uid })
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
