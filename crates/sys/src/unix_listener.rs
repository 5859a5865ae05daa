//! Listeners on Unix sockets that appear at their path only when they are complete, and that never replace a live
//! socket.
//!
//! A socket that is bound at its path has the mode of the umask until chmod(2), and refuses clients until listen(2). So
//! this module makes the socket in a private directory beside the path, and links it to the path when it is ready. It
//! removes a socket that is already at the path only if the kernel refuses a connection to that socket, and if no
//! process has bound that socket without listening on it yet. It checks both again after it has moved the socket aside.
//! Programs that start at the same moment lock the directory one after the other, so that they do not remove each
//! other's socket.

mod bound;

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

/// Reason why there is no listener at a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenUnixError {
    /// A process listens on the socket at the path: to replace the socket would cut off the clients of the process.
    #[error("{} is in use: a running process answers there", .path.display())]
    InUse { path: PathBuf },
    /// The file at the path is not a socket. It may belong to another program, so penstock does not remove it.
    #[error("{} exists and is not a socket", .path.display())]
    NotASocket { path: PathBuf },
    /// The path is longer than the kernel's address structure.
    #[error("{} is too long for a socket: at most {LONGEST_DIRECTORY} bytes for the directory and {LONGEST_PATH} in total", .path.display())]
    TooLong { path: PathBuf },
    /// A step failed, for example because the directory does not exist or is not writable.
    #[error("{step} {} failed", .path.display())]
    Io {
        /// Description of the step, as the start of a sentence that names the path.
        step: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Listens at `path` with exactly the permission bits `mode` (for example 0o600), nonblocking and with close-on-exec.
/// The function replaces a socket on which no process listens. The listener's `local_addr` returns the private path at
/// which the socket was made; [`SocketFile::path`] returns `path`, and [`SocketFile::remove`] removes the socket at
/// `path`.
pub fn listen_unix(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), ListenUnixError> {
    let directory = directory_of(path);
    if path.as_os_str().len() > LONGEST_PATH || directory.as_os_str().len() > LONGEST_DIRECTORY {
        return Err(ListenUnixError::TooLong { path: path.to_owned() });
    }
    let cradle = PrivateDirectory::create_in(directory)?;
    let listener = cradle.listen(mode)?;
    let file = SocketFile { path: path.to_owned(), file: socket_at(&cradle.socket()) };
    let _turn = wait_for_turn(directory);
    for _ in 0..PLACING_ATTEMPTS {
        match fs::hard_link(cradle.socket(), path) {
            Ok(()) => return Ok((listener, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => cradle.take_away_stale(path)?,
            Err(source) => {
                return Err(ListenUnixError::Io { step: "placing", path: path.to_owned(), source });
            }
        }
    }
    // Another process creates a socket at the path after each removal, so the process is alive.
    Err(ListenUnixError::InUse { path: path.to_owned() })
}

/// Result of [`remove_stale_unix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The function has removed a socket on which no process listened.
    Removed,
    /// The function has removed no file: the path is free, a live process uses it, or it is not a socket.
    Kept,
}

/// Removes the socket at `path` if no process listens on the socket. The function locks the directory, moves the socket
/// aside and checks the socket again: so the socket of another program that binds the path meanwhile stays.
pub fn remove_stale_unix(path: &Path) -> Result<Removal, ListenUnixError> {
    let looked_at = inspect(path, path).map_err(|source| ListenUnixError::Io {
        step: "looking at",
        path: path.to_owned(),
        source,
    })?;
    if !matches!(looked_at, Occupant::Stale) {
        return Ok(Removal::Kept);
    }
    let cradle = PrivateDirectory::create_in(directory_of(path))?;
    let _turn = wait_for_turn(directory_of(path));
    match cradle.take_away_stale(path) {
        Ok(()) => Ok(Removal::Removed),
        Err(ListenUnixError::InUse { .. } | ListenUnixError::NotASocket { .. }) => Ok(Removal::Kept),
        Err(error) => Err(error),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path of a socket that [`listen_unix`] made. Device and inode tell the socket from a later file at the same path.
#[derive(Debug, Clone)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket; `None` if they could not be read.
    file: Option<(u64, u64)>,
}

impl SocketFile {
    /// The socket at `path` that another process has made and passed on. `None` if another file is there by now.
    #[must_use]
    pub fn passed_on(path: &Path, identity: (u64, u64)) -> Option<Self> {
        let file = Self { path: path.to_owned(), file: Some(identity) };
        file.has_its_name().then_some(file)
    }

    /// Device and inode of the socket, for a process that it is passed on to.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.file
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket, unless another file is at its path by now. The listener must still be open: while the
    /// listener is open, the file system gives the inode of the socket to no other file.
    pub fn remove(&self) -> Removal {
        match self.has_its_name() && fs::remove_file(&self.path).is_ok() {
            true => Removal::Removed,
            false => Removal::Kept,
        }
    }

    /// Removes the socket after the listener was closed, unless another file is at its path by now, or a process
    /// listens there: the file system may have given the inode to the socket of another program.
    pub fn remove_closed(&self) -> Removal {
        match self.has_its_name() {
            // This process may have lost the right to write to the directory; the next start replaces the stale socket.
            true => remove_stale_unix(&self.path).unwrap_or(Removal::Kept),
            false => Removal::Kept,
        }
    }

    fn has_its_name(&self) -> bool {
        self.file.is_some() && socket_at(&self.path) == self.file
    }
}

fn socket_at(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
    Some((found.dev(), found.ino()))
}

/// The private directory in which the socket is made. Removed on drop, unless it holds a file that could not be moved
/// back.
struct PrivateDirectory {
    directory: PathBuf,
}

impl PrivateDirectory {
    fn create_in(parent: &Path) -> Result<Self, ListenUnixError> {
        // mkdtemp(3) creates the directory with mode 0700 under any umask: only this user can reach the files in it.
        nix::unistd::mkdtemp(&parent.join(CRADLE_TEMPLATE)).map(|directory| Self { directory }).map_err(
            |errno| {
                let path = parent.to_owned();
                ListenUnixError::Io { step: "creating a directory in", path, source: errno.into() }
            },
        )
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    fn replaced(&self) -> PathBuf {
        self.directory.join("r")
    }

    fn listen(&self, mode: u32) -> Result<UnixListener, ListenUnixError> {
        let path = self.socket();
        let listen = || {
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        listen().map_err(|source| ListenUnixError::Io { step: "binding", path: path.clone(), source })
    }

    fn take_away_stale(&self, path: &Path) -> Result<(), ListenUnixError> {
        let io = |step| move |source| ListenUnixError::Io { step, path: path.to_owned(), source };
        match inspect(path, path).map_err(io("inspecting"))? {
            Occupant::Nothing => return Ok(()),
            Occupant::Live => return Err(ListenUnixError::InUse { path: path.to_owned() }),
            Occupant::NotASocket => return Err(ListenUnixError::NotASocket { path: path.to_owned() }),
            Occupant::Stale => {}
        }
        match fs::rename(path, self.replaced()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(io("replacing")(source)),
        }
        // Another program may have put a live socket or a file at the path between the check and the rename.
        if matches!(inspect(&self.replaced(), path), Ok(Occupant::Stale)) {
            return fs::remove_file(self.replaced()).map_err(io("replacing"));
        }
        fs::hard_link(self.replaced(), path).map_err(|source| ListenUnixError::Io {
            step: "restoring what was moved to",
            path: self.replaced(),
            source,
        })?;
        // The live socket is at its own path again, so the code removes this second link.
        let _ = fs::remove_file(self.replaced());
        Err(ListenUnixError::InUse { path: path.to_owned() })
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // The code does not use remove_dir_all: the socket is the only file made here. A file that could not be moved
        // back stays, and the error names the file.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Locks the directory until the returned file is dropped. Any user who may read the directory can hold the lock; if
/// penstock does not get the lock, it continues without, and only the second check protects live sockets.
fn wait_for_turn(directory: &Path) -> Option<File> {
    let directory = File::open(directory).ok()?;
    for _ in 0..TURN_ATTEMPTS {
        match directory.try_lock() {
            Ok(()) => return Some(directory),
            Err(TryLockError::WouldBlock) => thread::sleep(TURN_PAUSE),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

enum Occupant {
    Nothing,
    Stale,
    Live,
    NotASocket,
}

/// Finds out what is at `path`. `bound` is the path at which a program has bound the socket: it differs from `path` if
/// the socket was moved aside.
fn inspect(path: &Path, bound: &Path) -> io::Result<Occupant> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Ok(Occupant::NotASocket),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Occupant::Nothing),
        Err(error) => return Err(error),
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full queue must give EAGAIN here: a blocking connect(2) would wait for a process that may be stopped.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(Occupant::Live),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            // The kernel also refuses a connection to a socket that is bound and does not listen yet.
            Some(Errno::ECONNREFUSED) if bound::is_bound(bound) => Ok(Occupant::Live),
            Some(Errno::ECONNREFUSED) => Ok(Occupant::Stale),
            // The queue of the socket is full, or the socket has another type: a process has it open.
            Some(Errno::EAGAIN | Errno::EPROTOTYPE) => Ok(Occupant::Live),
            Some(Errno::ENOENT) => Ok(Occupant::Nothing),
            _ => Err(error),
        },
    }
}

/// Maximum length of `sockaddr_un.sun_path` in bytes, without its final zero.
const LONGEST_PATH: usize = 107;
const CRADLE_TEMPLATE: &str = ".pXXXXXX";
/// Maximum length of the directory, when `/.pXXXXXX/s` is added.
const LONGEST_DIRECTORY: usize = LONGEST_PATH - CRADLE_TEMPLATE.len() - 3;
const PLACING_ATTEMPTS: usize = 8;
const TURN_ATTEMPTS: usize = 50;
const TURN_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::sync::Barrier;
    use std::time::Instant;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use tempfile::{TempDir, tempdir};

    use super::*;

    fn names_in(directory: &TempDir) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Waits until the socket at this path is closed everywhere: until it calls execve(2), a child that another test has just
    /// started holds what this process had open.
    fn wait_until_stale(path: &Path) {
        let begun = Instant::now();
        while !matches!(inspect(path, path), Ok(Occupant::Stale)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} is in use", path.display());
            thread::yield_now();
        }
    }

    #[test]
    fn socket_file_is_removed_and_what_has_its_name_later_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (_listener, file) = listen_unix(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert_eq!(file.remove(), Removal::Kept);
        fs::remove_file(&path).unwrap();
        let (_successor, its_file) = listen_unix(&path, 0o600).unwrap();
        assert_eq!((file.remove(), file.remove_closed()), (Removal::Kept, Removal::Kept));
        assert_eq!(its_file.remove_closed(), Removal::Kept, "a process listens there");
        assert_eq!(its_file.remove(), Removal::Removed);
        assert!(!path.exists());
        // A stale socket of another program stays.
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(its_file.remove_closed(), Removal::Kept);
        assert!(path.exists());
    }

    #[test]
    fn a_listener_has_the_mode_asked_for_and_leaves_no_other_name() {
        let directory = tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = directory.path().join(format!("{mode:o}.sock"));
            let (listener, _) = listen_unix(&path, mode).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
            assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            let flags = FdFlag::from_bits_retain(fcntl(listener.as_fd(), FcntlArg::F_GETFD).unwrap());
            assert!(flags.contains(FdFlag::FD_CLOEXEC));
            UnixStream::connect(&path).unwrap();
            listener.accept().unwrap();
        }
        assert_eq!(names_in(&directory), ["600.sock", "660.sock", "666.sock"]);
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        drop(listen_unix(&path, 0o600).unwrap());
        wait_until_stale(&path);
        let (listener, _) = listen_unix(&path, 0o600).unwrap();
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        assert_eq!(names_in(&directory), ["s.sock"]);
    }

    #[test]
    fn a_live_socket_is_left_alone() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let (listener, _) = listen_unix(&path, 0o600).unwrap();
        let error = listen_unix(&path, 0o600).unwrap_err();
        assert!(matches!(error, ListenUnixError::InUse { .. }), "{error}");
        // The refused attempt has made one connection to the listener.
        listener.accept().unwrap();
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        assert_eq!(names_in(&directory), ["s.sock"]);
    }

    #[test]
    fn a_live_socket_with_a_full_queue_is_left_alone() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let error = listen_unix(&path, 0o600).unwrap_err();
        assert!(matches!(error, ListenUnixError::InUse { .. }), "{error}");
    }

    #[test]
    fn a_datagram_socket_in_use_is_left_alone() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let _datagrams = UnixDatagram::bind(&path).unwrap();
        let error = listen_unix(&path, 0o600).unwrap_err();
        assert!(matches!(error, ListenUnixError::InUse { .. }), "{error}");
    }

    #[test]
    fn a_socket_that_is_bound_and_does_not_listen_yet_is_left_alone() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        for kind in [Type::STREAM, Type::SEQPACKET] {
            let socket = Socket::new(Domain::UNIX, kind, None).unwrap();
            socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
            let error = listen_unix(&path, 0o600).unwrap_err();
            assert!(matches!(error, ListenUnixError::InUse { .. }), "{error}");
            assert_eq!(remove_stale_unix(&path).unwrap(), Removal::Kept);
            assert_eq!(names_in(&directory), ["s.sock"]);
            drop(socket);
            wait_until_stale(&path);
            assert_eq!(remove_stale_unix(&path).unwrap(), Removal::Removed);
        }
    }

    #[test]
    fn a_socket_whose_listener_is_gone_is_replaced_while_its_connections_live() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let _connection = listener.accept().unwrap();
        drop(listener);
        wait_until_stale(&path);
        listen_unix(&path, 0o600).unwrap();
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let directory = tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "kept").unwrap();
        let link = directory.path().join("link");
        let live = directory.path().join("s.sock");
        let (_listener, _) = listen_unix(&live, 0o600).unwrap();
        std::os::unix::fs::symlink(&live, &link).unwrap();
        for path in [&file, &link, &directory.path().to_owned()] {
            let error = listen_unix(path, 0o600).unwrap_err();
            assert!(matches!(error, ListenUnixError::NotASocket { .. }), "{error}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        assert_eq!(names_in(&directory), ["file", "link", "s.sock"]);
    }

    #[test]
    fn of_many_that_start_at_once_on_a_stale_socket_exactly_one_listens_and_is_reachable() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        for _ in 0..50 {
            drop(listen_unix(&path, 0o600));
            wait_until_stale(&path);
            let barrier = Barrier::new(4);
            let start = || {
                barrier.wait();
                listen_unix(&path, 0o600)
            };
            let results: Vec<_> = thread::scope(|scope| {
                let starters: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                starters.into_iter().map(|starter| starter.join().unwrap()).collect()
            });
            let listeners: Vec<_> = results.iter().flatten().collect();
            assert_eq!(listeners.len(), 1, "{results:?}");
            let client = UnixStream::connect(&path).unwrap();
            drop(client);
            listeners[0].0.accept().unwrap();
            assert_eq!(names_in(&directory), ["s.sock"]);
        }
    }

    #[test]
    fn a_directory_that_somebody_keeps_locked_delays_but_does_not_prevent() {
        let directory = tempdir().unwrap();
        let held = File::open(directory.path()).unwrap();
        held.lock().unwrap();
        listen_unix(&directory.path().join("s.sock"), 0o600).unwrap();
    }

    #[test]
    fn a_missing_directory_and_a_path_that_is_too_long_are_named() {
        let directory = tempdir().unwrap();
        let error = listen_unix(&directory.path().join("missing/s.sock"), 0o600).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        let error = listen_unix(&directory.path().join("x".repeat(120)), 0o600).unwrap_err();
        assert!(matches!(error, ListenUnixError::TooLong { .. }), "{error}");
    }

    #[test]
    fn only_a_socket_without_a_listener_is_removed() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("s.sock");
        assert_eq!(remove_stale_unix(&path).unwrap(), Removal::Kept);
        let (listener, _) = listen_unix(&path, 0o600).unwrap();
        assert_eq!(remove_stale_unix(&path).unwrap(), Removal::Kept);
        drop(listener);
        wait_until_stale(&path);
        assert_eq!(remove_stale_unix(&path).unwrap(), Removal::Removed);
        assert!(names_in(&directory).is_empty());
    }
}
