//! A file that may grow no further: an error for us, the usual end for a program that we start.
//!
//! A process of its own, since limits hold for all of it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::Signal;

/// The soft limit that holds while this lives. Beyond it the harness could not tell how the test went, if its own output
/// goes to a file that has grown further than that.
struct Limit {
    before: (rlim_t, rlim_t),
}

impl Limit {
    fn of_bytes(bytes: rlim_t) -> Self {
        let before = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, bytes, before.1).unwrap();
        Self { before }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        setrlimit(Resource::RLIMIT_FSIZE, self.before.0, self.before.1).unwrap();
    }
}

#[test]
fn limit_of_a_file_is_an_error_here_and_still_the_end_of_a_program_that_ignores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let _limit = Limit::of_bytes(4096);
    sys::file_size::survive_file_size_limit().unwrap();
    let mut file = File::create(directory.path().join("ours")).unwrap();
    file.write_all(&[0; 4096]).unwrap();
    let fault = file.write_all(&[0; 1]).unwrap_err();
    assert_eq!(fault.kind(), ErrorKind::FileTooLarge);
    let ended = Command::new("dd")
        .args(["if=/dev/zero", "bs=8192", "count=1", "status=none"])
        .arg(format!("of={}", directory.path().join("theirs").display()))
        .status()
        .unwrap();
    assert_eq!(ended.signal(), Some(Signal::SIGXFSZ as i32), "{ended}");
}
