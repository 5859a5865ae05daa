//! The fleet: a command on many hosts at once, and tunnels that are proved before a job runs through them.
//!
//! # The path of a fleet command
//!
//! 1. `crates/penstock/src/cmd/run.rs` reads arguments: hosts (`crates/penstock/src/cmd/run/hosts.rs`, groups by
//!    `crates/fleet/src/groups.rs`), what carries the command (`crates/penstock/src/cmd/run/engines.rs`), or the last run from the
//!    journal (`crates/penstock/src/cmd/run/again.rs`). `crates/penstock/src/cmd/run/course.rs` calls `crates/fleet/src/run.rs`, which
//!    runs one wave after the other (`crates/logic/src/fleet/waves.rs`), as `crates/penstock/src/cmd/run/pace.rs` was told.
//! 2. `crates/fleet/src/run/schedule.rs` starts as many hosts as `crates/logic/src/fleet/pace.rs` allows, a task for each, and tries
//!    those again that were turned away before anything was sent.
//! 3. `crates/fleet/src/run/turn.rs` is one host's turn: connect, send, pass on;
//!    `crates/fleet/src/run/turn/ended.rs` ends it early. What it talks to is an
//!    `crates/fleet/src/run/engine.rs`: our client (`crates/fleet/src/run/native.rs`) or an `ssh` process
//!    (`crates/fleet/src/run/openssh.rs`, whose log `crates/logic/src/fleet/openssh.rs` reads).
//! 4. The command goes out as `crates/logic/src/fleet/leash.rs` wraps it, so that it ends when we vanish; what is signalled there is
//!    proved by `crates/logic/src/fleet/leash/proof.sh`. A script goes out as
//!    `crates/logic/src/fleet/script.rs` says. Input comes from `crates/fleet/src/run/input.rs`.
//! 5. Output goes to one thread (`crates/fleet/src/run/output.rs`), which has room for 128 pieces: a reader that stops slows the
//!    hosts down. It hands them to a view (`crates/fleet/src/run/view/stream.rs`, in lines that `crates/logic/src/fleet/line.rs` cuts and
//!    makes harmless; `crates/fleet/src/run/view/json.rs`, as the text of `crates/logic/src/fleet/text.rs`; `crates/fleet/src/run/view/fold.rs` puts equal outputs
//!    together by `crates/logic/src/fleet/fold.rs` and keeps one of each in `crates/fleet/src/run/view/transcript.rs`), to hashes and files
//!    (`crates/fleet/src/run/keep.rs`), and keeps the line of `crates/fleet/src/run/progress.rs` out of their way. That line, the
//!    keyboard and questions for passphrases share the terminal by `crates/fleet/src/run/terminal.rs`.
//! 6. Every host ends in one `Ending` (`crates/logic/src/fleet/ending.rs`). `crates/logic/src/fleet/verdict.rs` makes groups and
//!    the exit status of them, `crates/fleet/src/run/summary.rs` tells it, `crates/fleet/src/run/journal.rs` keeps it: on a
//!    thread of its own (`crates/fleet/src/run/journal/pen.rs`), before the user is told.
//! 7. `crates/fleet/src/run/stop.rs` is the one brake: signals, a reader that left.
//! 8. `crates/penstock/src/cmd/run/mpssh.rs` has the options of mpssh-py and calls the same; `crates/fleet/src/run/view/mpssh.rs` prints
//!    what `crates/logic/src/fleet/mpssh.rs` says.
//! 9. `crates/penstock/src/cmd/copy.rs` is `put` and `get`: the same run with another job. A turn is then
//!    `crates/fleet/src/run/copy.rs`; the copying is in `crates/ssh/src/sftp.rs`. What is put is looked at once, before any host is
//!    asked (`crates/ssh/src/sftp/tree.rs`); `crates/ssh/src/sftp/put.rs` writes beside and renames, and takes back what it began;
//!    `crates/ssh/src/sftp/get.rs` believes no name, size or link. Of each host a bounded number of 32 KiB pieces is in memory.

pub mod groups;
pub mod run;
pub mod tunnel;
