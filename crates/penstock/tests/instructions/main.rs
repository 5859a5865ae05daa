//! Instructions in user space as a gate: for steps of the HTTP/1.1 codec, and for what the release binary does for one
//! request or session. Time differs from machine to machine and from minute to minute; these counts do not.
//!
//! `bench/instructions.toml` holds the kept counts. A count above its tolerance fails; one that fell further than that
//! is named, so that the file gets the better one. After a change that is meant:
//!
//! ```text
//! UPDATE_INSTRUCTIONS=1 cargo test --locked --package penstock --test instructions
//! ```
//!
//! Where instructions go (for each count a file of its own; the debug information also names what was inlined):
//!
//! ```text
//! export CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_TARGET_DIR=/tmp/profile
//! INSTRUCTION_PROFILES=/tmp/profiles cargo test --locked --package penstock --test instructions
//! callgrind_annotate --auto=no --threshold=100 /tmp/profiles/http-kept | head -80
//! callgrind_annotate --auto=no --threshold=100 --inclusive=yes --tree=caller /tmp/profiles/http-kept | less
//! ```
//!
//! The first lines are those of threads and loops that have not returned: their "self" is the whole count.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod callgrind;
mod kept;
mod traffic;

use callgrind::{Counted, codec, release};
use kept::Gate;
use traffic::Traffic;

#[test]
fn a_step_of_the_codec_takes_no_more_instructions_than_the_kept_count() {
    release();
    let counts = ["parse-request", "write-request", "parse-response", "write-response", "decode-chunked"]
        .map(|case| {
            // What the process does besides is in both runs.
            let (few, many) = (codec(case, 100), codec(case, 1_100));
            (format!("codec-{case}"), (many - few) / 1_000)
        });
    Gate::open().check(&counts);
}

#[test]
fn a_request_or_session_takes_no_more_instructions_than_the_kept_count() {
    let mut traffic = Traffic::prepare();
    let mut server = Counted::start(&traffic.configuration());
    traffic.find(&server);
    let counts = [
        ("http-kept", stable(&mut server, "http-kept", &mut |server| traffic.http_kept(server))),
        ("http-new", stable(&mut server, "http-new", &mut |server| traffic.http_new(server))),
        ("https-kept", stable(&mut server, "https-kept", &mut |server| traffic.https_kept(server))),
        ("tcp-session", stable(&mut server, "tcp-session", &mut |server| traffic.tcp_session(server))),
    ];
    Gate::open().check(&counts.map(|(name, count)| (name.to_owned(), count)));
}

/// Instructions per unit of work, in two series that agree within 1 %: timers and other threads are in each series.
#[track_caller]
fn stable(server: &mut Counted, name: &str, work: &mut dyn FnMut(&Counted)) -> u64 {
    const WARM_UP: u64 = 50;
    const SERIES: u64 = 500;
    (0..WARM_UP).for_each(|_| work(server));
    let mut counts: Vec<u64> = Vec::new();
    while counts.len() < 6 {
        server.zero();
        (0..SERIES).for_each(|_| work(server));
        let count = server.collected(name) / SERIES;
        if let Some(same) = counts.iter().find(|earlier| earlier.abs_diff(count) <= count / 100) {
            return count.min(*same);
        }
        counts.push(count);
    }
    panic!("no two of these series of {name} agree within 1 %: {counts:?} instructions");
}
