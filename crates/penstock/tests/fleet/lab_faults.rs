//! The faults of `penstock lab` are what they say, seen by OpenSSH's client: every one of them, with what it says.

use std::collections::HashSet;
use std::process::{Child, Command, Output, Stdio};

use testing::lab::Lab;
use testing::server::clear_environment;
use testing::tools;

/// A lab with one host for each of these faults, in this order.
fn lab_of(faults: &[&str]) -> Lab {
    let faults: Vec<String> =
        faults.iter().enumerate().map(|(at, fault)| format!("--fault={fault}={}", at + 1)).collect();
    // One host more, so that each has a next one.
    Lab::start(faults.len() + 1, &faults.iter().map(String::as_str).collect::<Vec<_>>())
}

fn host(at: usize) -> String {
    format!("lab{:03}", at + 1)
}

#[track_caller]
fn expect(name: &str, output: &Output, status: i32, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{name}: {said}");
    assert!(said.contains(part), "{name}: {said}");
}

/// Fault, what OpenSSH ends with, what it says. `true` is run.
const ENDING: &[(&str, i32, &str)] = &[
    ("refuse", 255, "Connection refused"),
    ("blackhole", 255, "Connection timed out"),
    ("turn-away", 255, "kex_exchange_identification: Connection closed by remote host"),
    ("hang-up", 255, "kex_exchange_identification: Connection closed by remote host"),
    ("silent", 255, "Connection timed out during banner exchange"),
    ("banner-garbage", 255, "banner line contains invalid characters"),
    ("banner-endless", 255, "banner line too long"),
    ("banner-lines", 255, "No SSH version received in first 1024 lines"),
    ("banner-slow:370", 255, "Connection timed out during banner exchange"),
    ("garbage-kex", 255, "ssh_dispatch_run_fatal"),
    ("gigantic-packet", 255, "Bad packet length 4294967295"),
    ("no-algorithm", 255, "Their offer: diffie-hellman-group1-sha1"),
    ("change-key", 255, "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ("wrong-host", 255, "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ("forged-key", 255, "incorrect signature"),
    ("slow-auth:100", 0, ""),
    ("deny", 255, "Permission denied (publickey)"),
    ("hang-up-auth", 255, "Connection closed by"),
    ("disconnect", 255, "Received disconnect from"),
    ("hostile-banner", 0, "good"),
    ("refuse-channel", 255, "open failed: administratively prohibited"),
    ("refuse-exec", 255, "exec request failed on channel 0"),
    ("reset:5000", 255, ""),
    ("cut:5000", 255, "closed by remote host"),
    ("disconnect-run", 255, "Received disconnect from"),
    ("no-status", 255, ""),
    ("escapes", 0, "title"),
    ("long-line:3000000", 0, ""),
    ("drip:1", 0, ""),
    ("exit:3", 3, ""),
    // OpenSSH gives the lowest eight bits.
    ("exit", 255, ""),
    ("signal:KILL", 255, ""),
    ("rekey:20000", 0, ""),
];

#[test]
fn faults_that_end_are_told_by_openssh_as_what_they_are() {
    let names: Vec<_> = ENDING.iter().map(|(name, ..)| *name).collect();
    let lab = lab_of(&names);
    // All of them start at once: only where a limit is what is expected, one is set that a busy machine could reach.
    let run = |at: usize| {
        let limit = if ENDING[at].2.starts_with("Connection timed out") { 4 } else { 50 };
        lab.ssh(&["-o", &format!("ConnectTimeout={limit}")], &host(at), "true")
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..ENDING.len()).map(|at| scope.spawn(move || run(at))).collect();
        for (thread, (name, status, part)) in all.into_iter().zip(ENDING) {
            expect(name, &thread.join().unwrap(), *status, part);
        }
    });
    let index = |name: &str| names.iter().position(|known| *known == name).unwrap();
    // A host whose identity was wrong was told nothing about us.
    for name in ["change-key", "wrong-host", "forged-key"] {
        let journal = lab.journal(&host(index(name)));
        assert!(!journal.iter().any(|line| line.contains("log-in")), "{name}: {journal:#?}");
        lab.wait_for(&host(index(name)), "close received=");
    }
    // What came before a connection broke is whole.
    for name in ["reset:5000", "cut:5000"] {
        let output = run(index(name));
        assert_eq!(output.stdout.len(), 5000, "{name}");
    }
    assert_eq!(run(index("long-line:3000000")).stdout.len(), 3_000_000);
    // New keys every 20,000 bytes change nothing.
    let output = lab.ssh(&[], &host(index("rekey:20000")), "flood 2000000");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 2_000_000));
}

/// Fault, and the line of the journal that says that it has begun.
const HANGING: &[(&str, &str)] = &[
    ("hang-kex", "connect"),
    ("hang-service", "log-in begins"),
    ("hang-auth", "offer"),
    ("hang-channel", "channel session"),
    ("hang-exec", "exec true"),
    ("hang-run", "exec true"),
    ("ignore-term", "exec true"),
    ("deaf", "exec true"),
    ("hang-close", "ended status=0"),
    ("flood", "exec true"),
    ("flood-stderr", "exec true"),
];

#[test]
fn faults_that_hang_hang_where_they_say_and_end_with_their_client() {
    let lab = lab_of(&HANGING.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let clients: Vec<Child> = (0..HANGING.len())
        .map(|at| {
            let mut ssh = Command::new(tools::program("ssh"));
            clear_environment(&mut ssh);
            ssh.arg("-F").arg(lab.file("ssh_config")).args([&host(at), "true"]);
            ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            ssh.spawn().unwrap()
        })
        .collect();
    for (at, (mut client, (name, begun))) in clients.into_iter().zip(HANGING).enumerate() {
        lab.wait_for(&host(at), begun);
        assert!(client.try_wait().unwrap().is_none(), "{name} does not hang");
        client.kill().unwrap();
        client.wait().unwrap();
        lab.wait_for(&host(at), "close received=");
    }
}

#[test]
fn signals_end_what_obeys_them_and_the_first_connections_only_may_be_bad() {
    let lab = lab_of(&["hang-run", "ignore-term", "turn-away@2", "change-key:2"]);
    let script = "
import asyncio, asyncssh, sys
key, port, hosts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
async def run(host, signals):
    async with asyncssh.connect(host, port=port, username='lab', client_keys=[key], known_hosts=None, config=None) as c:
        process = await c.create_process('sleep 1000')
        for name in signals:
            process.send_signal(name)
        await process.wait()
        print(process.exit_signal[0])
async def main():
    await run(hosts[0], ['TERM'])
    await run(hosts[1], ['TERM', 'INT', 'KILL'])
asyncio.run(main())
";
    let addresses = [lab.address("lab001"), lab.address("lab002")];
    let [first, second] = addresses.each_ref().map(|address| address.split_once(':').unwrap());
    let mut python = Command::new(tools::python("asyncssh"));
    clear_environment(&mut python);
    python.args(["-c", script, &lab.path("client_key"), first.1, first.0, second.0]).stdin(Stdio::null());
    let output = testing::server::run_to_end(&mut python, testing::secs(60));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "TERM\nKILL\n", "{output:?}");
    assert_eq!(
        lab.journal("lab002").iter().filter(|line| line.contains(" signal ")).count(),
        3,
        "{:#?}",
        lab.journal("lab002")
    );
    let statuses = |host: &str| [0; 4].map(|_| lab.ssh(&[], host, "true").status.code());
    assert_eq!(statuses("lab003"), [Some(255), Some(255), Some(0), Some(0)]);
    assert_eq!(statuses("lab004"), [Some(0), Some(255), Some(0), Some(255)]);
}

#[test]
fn the_list_names_every_fault_that_is_tried_here() {
    let output = testing::server::run_to_end(
        Command::new(testing::binary()).args(["lab", "--list"]).stdin(Stdio::null()),
        testing::secs(60),
    );
    let list = String::from_utf8(output.stdout).unwrap();
    let listed: HashSet<_> =
        list.lines().map(|line| line.split([' ', '[']).next().unwrap().to_owned()).collect();
    let tried = ENDING.iter().map(|(name, ..)| *name).chain(HANGING.iter().map(|(name, _)| *name));
    let tried: HashSet<_> = tried.map(|name| name.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(listed, tried);
}
