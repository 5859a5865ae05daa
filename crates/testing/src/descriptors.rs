//! Open files of the test program.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lets this program, and the servers that it starts from now on, have `count` files open. Shells often set a limit of
/// 1024 that a process may raise.
#[track_caller]
pub fn at_least(count: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft >= count {
        return;
    }
    assert!(hard >= count, "this test opens {count} files, and the limit is {hard}: `ulimit -Hn {count}`");
    setrlimit(Resource::RLIMIT_NOFILE, count, hard).unwrap();
}
