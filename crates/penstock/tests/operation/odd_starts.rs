//! Starts with an odd environment: standard error that takes nothing, a log level with a mistake, a directory that comes later.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::server::{Setup, binary, clear_environment, run_to_end};
use testing::tools::{self, Root};
use testing::{Scripted, eventually, secs};

#[test]
fn a_server_starts_and_ends_with_a_closed_or_full_standard_error() {
    let backend = Scripted::answering("x");
    for redirection in ["2>&-", "2>/dev/full", ">&- 2>&-"] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let line = format!(
            "exec \"$0\" serve --listen 127.0.0.1:0 --backend {} --control {} {redirection}",
            backend.address,
            socket.display()
        );
        let mut command = Command::new("sh");
        clear_environment(&mut command);
        // More is logged than at the usual level.
        command.args(["-c", &line, binary()]).env("PENSTOCK_LOG", "debug").stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let status = || {
            let mut ask = Command::new(binary());
            ask.args(["ctl", "--socket"]).arg(&socket).arg("status");
            run_to_end(&mut ask, secs(30)).status.success().then_some(())
        };
        eventually("it answers", secs(60), || {
            assert_eq!(child.try_wait().unwrap(), None, "{redirection}");
            status()
        });
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let ended = eventually("it ends", secs(60), || child.try_wait().unwrap());
        assert_eq!((ended.code(), ended.signal()), (Some(0), None), "{redirection}");
    }
}

#[test]
fn a_signal_that_comes_before_the_server_is_ready_waits_for_that() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock.toml");
    let text = "[listener.web]\nbind = \"127.0.0.1:0\"\n[[listener.web.route]]\nrespond = { status = 200, body = \"x\" }\n";
    fs::write(&file, text).unwrap();
    for _ in 0..50 {
        let mut command = Command::new(binary());
        clear_environment(&mut command);
        command.arg("serve").arg(&file).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let process = Pid::from_raw(child.id().cast_signed());
        let status = format!("/proc/{process}/status");
        let holds_signals_back = || {
            let text = fs::read_to_string(&status).unwrap();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            u64::from_str_radix(mask, 16).unwrap() & 1 << (Signal::SIGHUP as u64 - 1) != 0
        };
        // The start takes some 50 ms.
        let end = Instant::now() + secs(1);
        while !holds_signals_back() && Instant::now() < end {
            std::hint::spin_loop();
        }
        kill(process, Signal::SIGSTOP).unwrap();
        eventually("it is stopped", secs(10), || {
            fs::read_to_string(&status).unwrap().contains("State:\tT").then_some(())
        });
        if !holds_signals_back() {
            // It was ready before it was looked at.
            child.kill().unwrap();
            child.wait().unwrap();
            continue;
        }
        for signal in [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGCONT] {
            kill(process, signal).unwrap();
        }
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line.contains("INFO ready")));
        assert!(said.any(|line| line.contains("INFO reloaded")));
        kill(process, Signal::SIGTERM).unwrap();
        let ended = eventually("it ends", secs(60), || child.try_wait().unwrap());
        assert_eq!((ended.code(), ended.signal()), (Some(0), None));
        return;
    }
    panic!("no start held SIGHUP back");
}

#[test]
fn a_log_level_with_a_mistake_is_refused() {
    let config =
        "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n";
    for (level, said) in [
        ("inof", "PENSTOCK_LOG: inof is no level; did you mean info?"),
        ("info,proxy=debg", "PENSTOCK_LOG: debg is no level; did you mean debug?"),
        ("proxy", "PENSTOCK_LOG: proxy is no level\n"),
    ] {
        let refused = Setup::new(config).env("PENSTOCK_LOG", level).output();
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && text.contains(said), "{level}: {text}");
    }
    for level in ["", "WARN", "info,proxy=debug", "off"] {
        let ended = Setup::new("x").env("PENSTOCK_LOG", level).output();
        assert!(!String::from_utf8(ended.stderr).unwrap().contains("PENSTOCK_LOG"), "{level}");
    }
}

#[test]
fn a_state_directory_that_is_made_after_the_start_hinders_no_reload() {
    if tools::root("mounts a directory") == Root::LeftOut {
        return;
    }
    let mount = "mount -t tmpfs none /var/lib && exec \"$0\" \"$@\"";
    let config = "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n\
                  [control]\nsocket = \"@DIR@/control.sock\"\n";
    let server = Setup::new(config).through(["unshare", "-m", "sh", "-c", mount]).start();
    let pid = server.pid().to_string();
    let made =
        Command::new("nsenter").args(["-t", &pid, "-m", "mkdir", "/var/lib/penstock"]).status().unwrap();
    assert!(made.success());
    let file = server.dir.path().join("penstock.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("127.0.0.1:1\"", "127.0.0.1:2\"")).unwrap();
    for command in [&["reload"][..], &["set", "pool.app.balance", "maglev"]] {
        let output = server.ctl(command);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}
