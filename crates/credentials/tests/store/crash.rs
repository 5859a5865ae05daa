//! Eight threads present OTPs to a process that is killed (SIGKILL) at random moments. What it said was good must be known to
//! the next process, and is never good again. `PENSTOCK_OTP_COUNT=100000` makes it a long test.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use credentials::{GroupCommit, Store, job};

use super::{enrol, last, otp, place};

const THREADS: u32 = 8;

/// Kills at least.
const KILLS: u32 = 5;

/// Directory of the store, and the numbers from which the threads begin, of the process that is killed.
const DIRECTORY: &str = "PENSTOCK_OTP_DIRECTORY";
const BEGIN: &str = "PENSTOCK_OTP_BEGIN";

fn name(thread: u32) -> String {
    access::otp::modhex::encode(&[0xcc, u8::try_from(thread).unwrap()])
}

/// The process that is killed: not a test by itself.
#[test]
fn presents_otps_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let commits = GroupCommit::start(Store::open(place(Path::new(&directory))).unwrap()).unwrap();
    let begin: Vec<u32> =
        std::env::var(BEGIN).unwrap().split(',').map(|number| number.parse().unwrap()).collect();
    std::thread::scope(|scope| {
        for (thread, begin) in (0..).zip(begin) {
            let commits = &commits;
            scope.spawn(move || {
                for number in begin.. {
                    let (tell, told) = mpsc::channel();
                    let otp = otp(&name(thread), number);
                    let decide = move |ledger: &mut access::otp::ledger::Ledger, _| match ledger
                        .press(&otp, "nonce", 1)
                    {
                        Ok((_, record)) => (true, vec![record]),
                        Err(_) => (false, Vec::new()),
                    };
                    commits.submit(job(decide, move |done| tell.send(done.unwrap()).unwrap())).unwrap();
                    let word = if told.recv().unwrap() { "good" } else { "bad" };
                    // One write: lines of threads do not mix.
                    std::io::stdout()
                        .lock()
                        .write_all(format!("otp {thread} {number} {word}\n").as_bytes())
                        .unwrap();
                }
            });
        }
    });
}

#[test]
fn no_otp_is_good_twice_and_none_is_forgotten_when_the_process_is_killed() {
    let count: u32 = std::env::var("PENSTOCK_OTP_COUNT").map_or(2_000, |count| count.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    (0..THREADS).for_each(|thread| enrol(&mut store, &name(thread)));
    drop(store);
    let mut good: HashMap<u32, u32> = (0..THREADS).map(|thread| (thread, 0)).collect();
    let (mut total, mut kills, mut twice) = (0, 0, 0);
    let mut random = std::process::id();
    // What was written before a kill is read after it, which may be much on a busy machine.
    while total < count || kills < KILLS {
        // Each thread begins three OTPs before the last one that was good.
        let begin: Vec<String> =
            (0..THREADS).map(|thread| good[&thread].saturating_sub(3).to_string()).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::presents_otps_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .env(BEGIN, begin.join(","))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, output) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).for_each(|line| lines.send(line).unwrap());
        });
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let quota = (count / 12).max(1) + random % (count / 12).max(1);
        let mut seen = 0;
        let mut killed = false;
        loop {
            let line = match output.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the process says nothing more"),
            };
            let words: Vec<&str> = line.split(' ').collect();
            let ["otp", thread, number, word] = words[..] else { continue };
            let (thread, number): (u32, u32) = (thread.parse().unwrap(), number.parse().unwrap());
            if word == "good" {
                let before = good.insert(thread, number).unwrap();
                twice += u32::from(number <= before && total > 0 && before > 0);
                total += 1;
            }
            seen += 1;
            if seen >= quota && !killed {
                child.kill().unwrap();
                (killed, kills) = (true, kills + 1);
            }
        }
        child.wait().unwrap();
        reader.join().unwrap();
        let store = Store::open(place(directory.path())).unwrap();
        for (thread, number) in &good {
            let known = last(&store, &name(*thread)).unwrap_or(0);
            assert!(known >= *number, "thread {thread}: {number} was good, and the store knows {known}");
        }
    }
    println!("{total} good OTPs, {kills} kills, {twice} good twice");
    assert_eq!(twice, 0);
}
