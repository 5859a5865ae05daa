//! Commands on real OpenSSH servers.

use std::fmt::Write as _;
use std::time::Duration;

use crate::support::{Pinned, client, gather, phases, run, session, target};
use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use hosts::fleet::ending::{Core, Ending, Phase, Reason, Remote};
use hosts::fleet::watcher::{self, Hold, Mark};
use ssh::{Event, Exec, Known, Process, Terminal};
use testing::sshd::{Sshd, processes};

#[tokio::test]
async fn a_command_says_both_streams_and_its_status() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let said = run(&session, "echo hello; echo trouble >&2; exit 3").await;
    assert!(said.started);
    assert_eq!(said.stdout, b"hello\n");
    assert_eq!(said.stderr, b"trouble\n");
    assert_eq!(said.ending, Some(Ending::Exited(3)));
}

#[tokio::test]
async fn each_phase_is_told_as_it_begins() {
    let sshd = Sshd::start();
    let (seen, result) = phases(&client(&Pinned::of(&[&sshd])), &target(&sshd)).await;
    assert!(result.is_ok());
    assert_eq!(seen, [Phase::Resolve, Phase::Connect, Phase::Identity, Phase::Authenticate]);
}

#[tokio::test]
async fn a_host_that_the_judge_refuses_gets_nothing_of_ours() {
    let sshd = Sshd::start();
    let other = Sshd::start();
    let failure = client(&Pinned::of(&[&other])).connect(&target(&sshd), &|_| {}).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Identity, Reason::KeyChanged));
    assert_eq!(failure.detail, "web1 answered with another key");
    assert!(!sshd.log().contains("publickey"), "{}", sshd.log());
}

#[tokio::test]
async fn many_commands_share_a_session_at_once() {
    let sshd = Sshd::with("MaxSessions 10");
    let session = session(&sshd).await;
    let mut running = Vec::new();
    for number in 0..8 {
        running.push(session.exec(&format!("echo {number}"), &Exec::default()).await.unwrap());
    }
    for (number, process) in running.iter_mut().enumerate() {
        assert_eq!(gather(process).await.stdout, format!("{number}\n").into_bytes());
    }
}

#[tokio::test]
async fn a_signal_of_the_command_itself_is_told_apart_from_a_status() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let said = run(&session, "kill -SEGV $$").await;
    let Some(Ending::Signalled { signal, core }) = said.ending else { panic!("{:?}", said.ending) };
    assert_eq!(signal, "SEGV");
    assert!(matches!(core, Core::Dumped | Core::None));
}

#[tokio::test]
async fn ending_a_command_ends_it_and_its_children_on_the_server() {
    ends_everything(&Sshd::for_ordinary_user(""), 8110).await;
}

#[tokio::test]
async fn ending_a_command_of_root_ends_it_too_though_sshd_ignores_the_signal() {
    ends_everything(&Sshd::start(), 8120).await;
}

/// `seconds` tells this test's processes from those of others.
async fn ends_everything(sshd: &Sshd, seconds: u32) {
    for (number, script) in [
        // Obeys.
        "sleep SECONDS & echo ready; wait",
        // Ignores TERM, so KILL is needed.
        "trap '' TERM; sleep SECONDS & echo ready; while :; do wait; sleep SECONDS; done",
        // Never stops talking, and no program reads it.
        "sleep SECONDS & echo ready; exec yes SECONDS",
    ]
    .into_iter()
    .enumerate()
    {
        let session = session(sshd).await;
        let word = (seconds + u32::try_from(number).unwrap()).to_string();
        let running = || processes().iter().any(|line| line.contains(&format!(" {word}")));
        let sent = watcher::wrap(&script.replace("SECONDS", &word), watcher::Input::Sent, "a1");
        let mut process = session.exec(&sent, &Exec::default()).await.unwrap();
        let known = identity(&mut process).await;
        crate::support::eventually("it runs", running).await;
        let (remote, _) = process.end(Duration::from_secs(20), known).await;
        assert_eq!(remote, Remote::Ended, "{script}\n{}", sshd.log());
        crate::support::eventually("its processes are gone", || !running()).await;
    }
}

#[tokio::test]
async fn ending_one_command_of_a_connection_leaves_the_other_alone() {
    for sshd in [Sshd::for_ordinary_user(""), Sshd::start()] {
        let session = session(&sshd).await;
        let mut other =
            session.exec("echo ready; read x; echo lives; exit 7", &Exec::default()).await.unwrap();
        while !matches!(other.next().await.unwrap(), Event::Stdout(_)) {}
        let sent =
            watcher::wrap("trap '' TERM; echo ready; sleep 8131; sleep 8131", watcher::Input::Sent, "a1");
        let mut process = session.exec(&sent, &Exec::default()).await.unwrap();
        let known = identity(&mut process).await;
        assert_eq!(process.end(Duration::from_secs(20), known).await.0, Remote::Ended);
        other.write(b"go on\n").await.unwrap();
        let said = gather(&mut other).await;
        assert_eq!((said.stdout.as_slice(), said.ending), (b"lives\n".as_slice(), Some(Ending::Exited(7))));
    }
}

#[tokio::test]
async fn what_a_command_leaves_behind_may_clean_up_after_it() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let clean = sshd.directory.path().join("clean");
    // bash says "Terminated" of each `sleep`: without the redirection that ends it, because nothing reads any more.
    let script = format!(
        "(exec 2>/dev/null; trap 'sleep 0.05; echo clean >{}; exit' TERM; echo ready; while :; do sleep 0.1; done) & wait",
        clean.display()
    );
    let mut process =
        session.exec(&watcher::wrap(&script, watcher::Input::Sent, "a1"), &Exec::default()).await.unwrap();
    let known = identity(&mut process).await;
    assert_eq!(process.end(Duration::from_secs(20), known).await.0, Remote::Ended);
    crate::support::eventually("it has cleaned up", || clean.exists()).await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_killed_where_it_ignores_the_signal() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let number = sshd.directory.path().join("number");
    let script =
        format!("sh -c 'trap \"\" TERM; echo $$ >{}; echo ready; exec sleep 600' & wait", number.display());
    let mut process =
        session.exec(&watcher::wrap(&script, watcher::Input::Sent, "a1"), &Exec::default()).await.unwrap();
    let known = identity(&mut process).await;
    let left: i32 = std::fs::read_to_string(&number).unwrap().trim().parse().unwrap();
    assert_eq!(process.end(Duration::from_secs(20), known).await.0, Remote::Ended);
    crate::support::eventually("it is killed", || !sys::process::is_taken(left)).await;
}

/// What the mark of the watcher with the nonce `a1` says; returns when the command has said something itself.
async fn identity(process: &mut Process) -> Known {
    let mut mark = Mark::new("a1");
    loop {
        let Event::Stdout(bytes) = process.next().await.unwrap() else { continue };
        if !mark.feed(&bytes).is_empty() {
            let Hold::Watched(started) = mark.hold() else { panic!("{mark:?}") };
            return Known::Command(started, "a1".to_owned());
        }
    }
}

#[tokio::test]
async fn the_signal_that_ended_a_command_is_told() {
    let sshd = Sshd::for_ordinary_user("");
    let session = session(&sshd).await;
    for name in ["INT", "TERM", "KILL"] {
        let mut process = session.exec("echo ready; exec sleep 8104", &Exec::default()).await.unwrap();
        while !matches!(process.next().await.unwrap(), Event::Stdout(_)) {}
        process.signal(name).await.unwrap();
        let said = gather(&mut process).await;
        assert!(matches!(&said.ending, Some(Ending::Signalled { signal, .. }) if signal == name), "{said:?}");
    }
}

#[tokio::test]
async fn a_forced_command_that_cannot_be_signalled_is_unknown_and_not_run_again() {
    for sshd in [Sshd::for_ordinary_user(""), Sshd::start()] {
        let directory = sshd.directory.path();
        let key = std::fs::read_to_string(directory.join("client.pub")).unwrap();
        let runs = directory.join("runs");
        std::fs::write(&runs, "").unwrap();
        std::fs::set_permissions(&runs, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        let forced = format!("echo run >> {}; echo ready; exec sleep 8105", runs.display());
        std::fs::write(directory.join("authorized_keys"), format!("command=\"{forced}\" {key}")).unwrap();
        let session = session(&sshd).await;
        let mut process = session.exec("true", &Exec::default()).await.unwrap();
        while !matches!(process.next().await.unwrap(), Event::Stdout(_)) {}
        assert_eq!(process.end(Duration::from_millis(300), Known::Nothing).await.0, Remote::MayHaveRun);
        // All that was asked of the server is done when it has answered this.
        assert!(session.open_tcp("127.0.0.1", 1).await.is_err());
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n", "as {}", sshd.user);
    }
}

/// For tests whose own memory counts, and for those that keep megabytes: those of one binary share a process.
static MEMORY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn a_flood_is_held_back_by_a_slow_reader_and_arrives_whole() {
    let _alone = MEMORY.lock().await;
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let script = "head -c 40000000 /dev/zero | tr '\\0' 'x' | cat; echo done >&2";
    let mut process = session.exec(script, &Exec::default()).await.unwrap();
    let mut hash = Context::new(&SHA256);
    let (mut total, mut taken) = (0_usize, 0_u32);
    let before = memory();
    let ending = loop {
        match process.next().await.unwrap() {
            Event::Stdout(data) => {
                hash.update(&data);
                total += data.len();
                taken += 1;
                if taken.is_multiple_of(200) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Event::Ended(ending) => break ending,
            _ => {}
        }
    };
    assert_eq!(ending, Ending::Exited(0));
    assert_eq!(total, 40_000_000);
    assert_eq!(hex(hash.finish().as_ref()), sha256_of_x(40_000_000));
    let grown = memory().saturating_sub(before);
    assert!(grown < 20_000, "grew by {grown} KiB");
}

#[tokio::test]
async fn a_reader_that_stops_stops_the_sender() {
    let _alone = MEMORY.lock().await;
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let stalled = sshd.directory.path().join("stalled");
    let script = format!("exec python3 -c '{SENDER}' {}", stalled.display());
    let mut process = session.exec(&script, &Exec::default()).await.unwrap();
    let Event::Stdout(first) = skip_start(&mut process).await else { panic!("it says something first") };
    crate::support::eventually("the sender finds no room", || stalled.exists()).await;
    let written: usize = std::fs::read_to_string(&stalled).unwrap().parse().unwrap();
    assert!(written < 16 << 20, "{written} bytes were written");
    let said = gather(&mut process).await;
    assert_eq!(said.ending, Some(Ending::Exited(0)), "{said:?}");
    assert_eq!(first.len() + said.stdout.len(), 256 << 20);
}

/// Writes 256 MiB, and says in a file how much it had written when it found no room for a while. A slow machine makes it
/// say that too early, which does not matter.
const SENDER: &str = r#"
import os, select, sys
os.set_blocking(1, False)
block, written = bytes(65536), 0
while written < 256 << 20:
    if select.select([], [1], [], 0.5)[1]:
        written += os.write(1, block[:(256 << 20) - written])
    elif not os.path.exists(sys.argv[1]):
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(written))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
"#;

async fn skip_start(process: &mut ssh::Process) -> Event {
    loop {
        match process.next().await.unwrap() {
            Event::Started => {}
            event => return event,
        }
    }
}

/// Without a clock: an hour of silence passes in no time.
#[tokio::test]
async fn what_a_command_leaves_behind_is_heard_to_its_end() {
    let sshd = Sshd::start();
    let mut target = target(&sshd);
    // Nor one that asks whether the server still lives.
    target.keep_alive.interval = None;
    let session = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.unwrap();
    let gate = sshd.directory.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("(read -r word < {}; echo $word) & exit 3", gate.display());
    let mut process = session.exec(&script, &Exec::default()).await.unwrap();
    let hour = Duration::from_secs(3600);
    tokio::time::pause();
    while process.ended_itself().is_none() {
        if let Ok(event) = tokio::time::timeout(hour, process.next()).await {
            assert_eq!(event, Some(Event::Started));
        }
    }
    assert_eq!(process.ended_itself(), Some(&Ending::Exited(3)));
    let silence = tokio::time::timeout(hour, process.next()).await;
    assert!(silence.is_err(), "cut off: {silence:?}");
    tokio::time::resume();
    tokio::task::spawn_blocking(move || std::fs::write(gate, "late\n")).await.unwrap().unwrap();
    let said = gather(&mut process).await;
    assert_eq!((said.stdout.as_slice(), said.ending), (b"late\n".as_slice(), Some(Ending::Exited(3))));
}

#[tokio::test]
async fn standard_input_arrives_whole_while_output_is_read() {
    let _alone = MEMORY.lock().await;
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let mut process = session.exec("tee /dev/stderr | sha256sum", &Exec::default()).await.unwrap();
    let mut stdin = process.stdin();
    let writing = tokio::spawn(async move {
        let block = Bytes::from(vec![b'x'; 100_000]);
        for _ in 0..100 {
            stdin.write(block.clone()).await.unwrap();
        }
        stdin.finish().await.unwrap();
    });
    let said = gather(&mut process).await;
    writing.await.unwrap();
    assert_eq!(said.stderr.len(), 10_000_000);
    assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("{}  -\n", sha256_of_x(10_000_000)));
}

#[tokio::test]
async fn a_writer_is_told_when_the_command_ends_without_reading() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let mut process = session.exec("exec 0<&-; exit 4", &Exec::default()).await.unwrap();
    let mut stdin = process.stdin();
    let writing = tokio::spawn(async move {
        let block = Bytes::from(vec![0; 1_000_000]);
        loop {
            if let Err(failure) = stdin.write(block.clone()).await {
                return failure;
            }
        }
    });
    assert_eq!(gather(&mut process).await.ending, Some(Ending::Exited(4)));
    assert_eq!(writing.await.unwrap().reason, Reason::ChannelRefused);
}

#[tokio::test]
async fn a_connection_lost_while_running_is_lost_and_the_command_unknown() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let script = "echo ready; read x; kill -9 $PPID; sleep 1";
    let mut process = session.exec(script, &Exec::default()).await.unwrap();
    while !matches!(process.next().await.unwrap(), Event::Stdout(_)) {}
    process.write(b"go on\n").await.unwrap();
    let said = gather(&mut process).await;
    let Some(Ending::Failed(failure)) = said.ending else { panic!("{:?}", said.ending) };
    assert_eq!(
        (failure.phase, failure.reason, failure.remote),
        (Phase::Run, Reason::ConnectionLost, Remote::MayHaveRun)
    );
    assert!(failure.detail.contains("web1"), "{}", failure.detail);
    assert_eq!(session.closed().await.reason, Reason::ConnectionLost);
    let after = session.exec("true", &Exec::default()).await.err().unwrap();
    assert_eq!((after.reason, after.remote), (Reason::ConnectionLost, Remote::NotStarted));
}

#[tokio::test]
async fn a_session_too_many_is_a_channel_refused() {
    let sshd = Sshd::with("MaxSessions 1");
    let session = session(&sshd).await;
    let _first = session.exec("sleep 8106", &Exec::default()).await.unwrap();
    let failure = session.exec("true", &Exec::default()).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Start, Reason::ChannelRefused));
    assert_eq!(failure.remote, Remote::NotStarted);
}

#[tokio::test]
async fn a_command_in_a_terminal_sees_one() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let terminal = Terminal { kind: "xterm".to_owned(), columns: 91, rows: 33 };
    let exec = Exec { terminal: Some(terminal), ..Exec::default() };
    let said = gather(&mut session.exec("stty size; echo $TERM", &exec).await.unwrap()).await;
    assert_eq!(String::from_utf8_lossy(&said.stdout), "33 91\r\nxterm\r\n");
}

#[tokio::test]
async fn keys_exchanged_anew_lose_no_byte() {
    let _alone = MEMORY.lock().await;
    let sshd = Sshd::with("RekeyLimit 1M");
    let mut target = target(&sshd);
    target.rekey.bytes = 700_000;
    let session = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.unwrap();
    let mut process = session.exec("tee /dev/stderr | sha256sum", &Exec::default()).await.unwrap();
    let mut stdin = process.stdin();
    let writing = tokio::spawn(async move {
        let block = Bytes::from(vec![b'x'; 50_000]);
        for _ in 0..400 {
            stdin.write(block.clone()).await.unwrap();
        }
        stdin.finish().await.unwrap();
    });
    let said = gather(&mut process).await;
    writing.await.unwrap();
    assert_eq!(said.stderr.len(), 20_000_000, "{:?}", said.ending);
    assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("{}  -\n", sha256_of_x(20_000_000)));
}

fn sha256_of_x(length: usize) -> String {
    let mut hash = Context::new(&SHA256);
    let block = vec![b'x'; 1 << 20];
    let mut left = length;
    while left > 0 {
        let now = left.min(block.len());
        hash.update(&block[..now]);
        left -= now;
    }
    hex(hash.finish().as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Resident memory of this process in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_status_came_but_before_the_end_of_output_is_told() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    // The server reports the status when the shell has gone, and waits for the output that is held open; then it is killed.
    let go = sshd.directory.path().join("go");
    let script = format!(
        "server=$PPID; (until [ -e {} ]; do sleep 0.01; done; kill -KILL $server) & echo some; exit 0",
        go.display()
    );
    let mut process = session.exec(&script, &Exec::default()).await.unwrap();
    let mut said = Vec::new();
    let ending = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            if process.ended_itself().is_some() && !go.exists() {
                std::fs::write(&go, "").unwrap();
            }
            // What has been seen is looked at again while nothing comes.
            let Ok(event) = tokio::time::timeout(Duration::from_millis(20), process.next()).await else {
                continue;
            };
            match event.unwrap() {
                Event::Stdout(bytes) => said.extend_from_slice(&bytes),
                Event::Ended(ending) => break ending,
                _ => {}
            }
        }
    });
    let Ending::Failed(failure) = ending.await.unwrap() else { panic!("it counts as whole") };
    assert_eq!(
        (said.as_slice(), failure.reason, failure.remote),
        (&b"some\n"[..], Reason::ConnectionLost, Remote::Ended)
    );
    let told = "the command had ended (exit 0), but the end of its output had not come: that may be cut";
    assert!(failure.detail.contains(told), "{failure:?}");
}
