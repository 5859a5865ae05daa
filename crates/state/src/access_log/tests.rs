use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use super::*;

fn open(path: &Path) -> (AccessLog, Arc<State>) {
    let state = Arc::new(State::new(1));
    let log = AccessLog::open(&LogTarget::File(path.to_owned()), state.clone()).unwrap();
    (log, state)
}

#[test]
fn lines_reach_the_file_in_order_and_a_new_file_is_not_readable_by_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let (log, _) = open(&path);
    let mut batch = Batch::new(log.clone());
    for number in 0..5000 {
        batch.push(|out| out.extend_from_slice(format!("line {number}\n").as_bytes()));
    }
    drop(batch);
    log.close();
    let expected: String = (0..5000).map(|number| format!("line {number}\n")).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o027, 0);
}

#[test]
fn a_batch_is_kept_until_it_is_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(&dir.path().join("access.log"));
    let mut batch = Batch::new(log);
    batch.push(|out| out.extend_from_slice(b"x\n"));
    assert_eq!(batch.lines, b"x\n");
    batch.flush();
    assert!(batch.lines.is_empty());
}

#[test]
fn a_full_disk_is_counted_and_said_once() {
    let (log, state) = open(Path::new("/dev/full"));
    for _ in 0..10 {
        log.try_send(b"lost\n".to_vec());
    }
    log.close();
    assert_eq!(state.log_lines_failed.load(Relaxed), 10);
    assert_eq!(state.log_lines_dropped.load(Relaxed), 0);
    let degraded = state.degraded();
    assert!(degraded[0].1.contains("No space left"), "{degraded:?}");
    assert_eq!(state.events.last(100).len(), 1);
}

#[test]
fn the_state_follows_at_once_when_a_file_fails_and_works_again_and_events_do_not_flood() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let mut reader =
        Some(fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).unwrap());
    let (log, state) = open(&path);
    let until = |count: usize| {
        let start = Instant::now();
        while state.degraded().len() != count {
            assert!(start.elapsed() < Duration::from_secs(10), "{count}: {:?}", state.degraded());
            thread::yield_now();
        }
    };
    for _ in 0..3 {
        // Without a reader each write fails.
        drop(reader.take());
        log.try_send(b"one\n".to_vec());
        until(1);
        reader =
            Some(fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).unwrap());
        log.try_send(b"two\n".to_vec());
        until(0);
    }
    assert_eq!(state.events.last(100).len(), 1, "{:?}", state.events.last(100));
    log.close();
}

#[test]
fn what_a_full_disk_did_not_take_is_bounded() {
    let (log, state) = open(Path::new("/dev/full"));
    let mut sent = 0;
    while state.log_lines_failed.load(Relaxed) == 0 {
        log.try_send(b"0123456789abcde\n".repeat(2048));
        sent += 2048;
        assert!(sent < 100_000_000, "nothing was given up");
        thread::yield_now();
    }
    log.close();
    let lost = state.log_lines_failed.load(Relaxed) + state.log_lines_dropped.load(Relaxed);
    assert_eq!(lost, sent);
}

#[test]
fn a_writer_that_is_stuck_drops_lines_and_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // The reader never reads, so the pipe becomes full.
    let _reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (log, state) = open(&path);
    let start = Instant::now();
    let batch = b"0123456789abcde\n".repeat(2048);
    for _ in 0..CHANNEL_BATCHES + 50 {
        log.try_send(batch.clone());
    }
    // What waits is not dropped, so it is not this time that proves it: it may be long on a busy machine.
    assert!(start.elapsed() < Duration::from_secs(20), "traffic waited for the log");
    assert!(state.log_lines_dropped.load(Relaxed) >= 2048);
    assert_eq!(state.log_lines_dropped.load(Relaxed) % 2048, 0);
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_instead_of_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let result = AccessLog::open(&LogTarget::File(path), Arc::new(State::new(1)));
    assert!(matches!(result, Err(AccessLogError::Open { .. })));
}

#[test]
fn reopening_writes_to_a_new_file_and_loses_no_line() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let (log, _) = open(&path);
    log.try_send(b"one\n".to_vec());
    fs::rename(&path, &moved).unwrap();
    log.reopen();
    log.try_send(b"two\n".to_vec());
    log.close();
    let both = fs::read_to_string(&moved).unwrap() + &fs::read_to_string(&path).unwrap();
    assert_eq!(both, "one\ntwo\n");
    assert!(fs::read_to_string(&path).unwrap().ends_with("two\n"));
}

#[test]
fn a_target_that_cannot_be_opened_keeps_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let (log, state) = open(&path);
    log.set_target(&LogTarget::File(dir.path().join("missing").join("access.log")));
    log.try_send(b"still here\n".to_vec());
    log.close();
    assert_eq!(fs::read_to_string(&path).unwrap(), "still here\n");
    assert_eq!(state.degraded().len(), 1);
}

#[test]
fn a_log_that_is_off_makes_no_lines() {
    let log = AccessLog::open(&LogTarget::Off, Arc::new(State::new(1))).unwrap();
    let mut batch = Batch::new(log);
    batch.push(|_| panic!("a line was made without a reader"));
}

#[test]
fn a_receiver_that_hangs_is_said_and_a_new_target_is_used_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (dir.path().join("log"), dir.path().join("access.log"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = sys::socket::connect_unix(&socket) {
        waiting.push(stream);
    }
    let state = Arc::new(State::new(1));
    let target = LogTarget::Syslog(config::types::Syslog {
        to: config::types::SyslogAddress::Unix(socket),
        facility: 16,
        severity: 6,
        app_name: "test".to_owned(),
        max_length: 1024,
    });
    let log = AccessLog::open(&target, state.clone()).unwrap();
    log.try_send(b"one\n".to_vec());
    let start = Instant::now();
    while state.degraded().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(10), "nothing is said");
        thread::yield_now();
    }
    assert!(state.degraded()[0].1.contains("its queue is full"), "{:?}", state.degraded());
    log.set_target(&LogTarget::File(file.clone()));
    log.try_send(b"two\n".to_vec());
    while fs::read_to_string(&file).unwrap_or_default() != "one\ntwo\n" {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", fs::read_to_string(&file));
        thread::yield_now();
    }
    assert!(state.degraded().is_empty());
}
