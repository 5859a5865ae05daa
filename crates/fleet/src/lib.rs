//! The fleet: commands on many hosts at once, and tunnels whose services are checked before a job runs through them.
//!
//! # The path of a fleet command
//!
//! 1. `crates/penstock/src/cmd/run.rs` reads the arguments: hosts (`crates/penstock/src/cmd/run/selection.rs`; groups:
//!    `crates/fleet/src/groups.rs`), the engine (`crates/penstock/src/cmd/run/engines.rs`). With `--again` it reads the
//!    last run from the journal (`crates/fleet/src/run/again.rs`), and `crates/hosts/src/fleet/again.rs` chooses the
//!    hosts. `crates/penstock/src/cmd/run/course.rs` calls `crates/fleet/src/run.rs`, which runs one wave after the
//!    other (`crates/hosts/src/fleet/waves.rs`), as the options in `crates/penstock/src/cmd/run/pace.rs` say.
//! 2. `crates/fleet/src/run/schedule.rs` starts one task for each host, as many at once as
//!    `crates/hosts/src/fleet/pace.rs` allows. It retries a host that refused the connection before anything was sent.
//! 3. `crates/fleet/src/run/turn.rs` is the task of one host: connect (`crates/fleet/src/run/shared.rs`), send the
//!    command, forward its output. `crates/fleet/src/run/turn/ended.rs` ends the command early. The task uses an
//!    `crates/fleet/src/run/engine.rs`, which reports each `crates/fleet/src/run/happening.rs`: our client
//!    (`crates/fleet/src/run/native.rs`) or an `ssh` process (`crates/fleet/src/run/openssh.rs`, whose log
//!    `crates/hosts/src/fleet/openssh.rs` parses).
//! 4. `crates/hosts/src/fleet/watcher.rs` wraps the command, so that it ends when this program dies;
//!    `crates/hosts/src/fleet/watcher/proof.sh` proves which processes may be signalled. A script is sent as
//!    `crates/hosts/src/fleet/script.rs` says. Standard input comes from `crates/fleet/src/run/input.rs`.
//! 5. Output goes to one thread (`crates/fleet/src/run/output.rs`) through a queue of 128 pieces, so that a slow reader
//!    slows the hosts down. The thread passes output to a view, to hashes and files (`crates/fleet/src/run/keep.rs`),
//!    and erases the progress line (`crates/fleet/src/run/progress.rs`) before each write. Views:
//!    `crates/fleet/src/run/view/stream.rs` (lines that `crates/hosts/src/fleet/line.rs` cuts and escapes),
//!    `crates/fleet/src/run/view/json.rs` (text of `crates/hosts/src/fleet/text.rs`),
//!    `crates/fleet/src/run/view/fold.rs` (groups equal outputs by `crates/hosts/src/fleet/fold.rs`, stores one of each
//!    in `crates/fleet/src/run/view/transcript.rs`). The progress line, the keyboard and questions for passphrases
//!    share the terminal by `crates/fleet/src/run/terminal.rs`.
//! 6. Every host ends in one `Ending` (`crates/hosts/src/fleet/ending.rs`). `crates/hosts/src/fleet/verdict.rs` derives
//!    groups of hosts and the exit status, `crates/fleet/src/run/summary.rs` prints them.
//!    `crates/fleet/src/run/journal.rs` records each ending before the user sees it; a separate thread writes
//!    (`crates/fleet/src/run/journal/writer.rs`).
//! 7. `crates/fleet/src/run/stop.rs` is the only way to stop a run: for signals, and for a reader of the output that
//!    closed it.
//! 8. `crates/penstock/src/cmd/run/mpssh.rs` has the options of mpssh-py and calls the same functions;
//!    `crates/fleet/src/run/view/mpssh.rs` prints the lines that `crates/hosts/src/fleet/mpssh.rs` formats.
//! 9. `crates/penstock/src/cmd/copy.rs` is `put` and `get`: the same run with another job. The task of a host is then
//!    `crates/fleet/src/run/copy.rs`; `crates/ssh/src/sftp.rs` copies. `crates/ssh/src/sftp/tree.rs` reads the local
//!    files once, before any host is contacted; `crates/ssh/src/sftp/put.rs` writes a temporary file and renames it,
//!    and removes it after a failure; `crates/ssh/src/sftp/get.rs` trusts no name, size or link of a host. Memory holds
//!    a limited number of 32 KiB pieces for each host.

pub mod groups;
pub mod run;
pub mod tunnel;
