//! A backend of HTTP/2 falls silent while requests wait on a connection that they share: what `silent_backend.rs` says of
//! connections holds for streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use testing::http2::{block, frame};
use testing::{Scripted, Server, eventually, secs};

use crate::silent_backend::{LONG, bodies, send};

/// A silent and a good backend of HTTP/2.
struct Shared {
    checks_fail: Arc<AtomicBool>,
    /// Whole requests that the silent one has, and streams that were reset there.
    held: Arc<AtomicUsize>,
    reset: Arc<AtomicUsize>,
    silent: Scripted,
    _good: Scripted,
    server: Server,
}

impl Shared {
    fn start(timeouts: &str) -> Self {
        let checks_fail = Arc::new(AtomicBool::new(false));
        let (held, reset) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let backend = |name: &'static str, is_silent: bool| {
            let (checks_fail, held, reset) = (checks_fail.clone(), held.clone(), reset.clone());
            Scripted::start(move |talk| {
                talk.client.read_exactly(24);
                talk.send(frame(4, 0, 0, &[]));
                loop {
                    let head = talk.client.read_exactly(9);
                    let length =
                        usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                    let payload = talk.client.read_exactly(length);
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    let ends = head[4] & 1 == 1;
                    // The path of the check is long, and the path of a request is short.
                    let is_check = length > 1000;
                    match head[3] {
                        4 if !ends => drop(talk.send(frame(4, 1, 0, &[]))),
                        6 if !ends => drop(talk.send(frame(6, 1, 0, &payload))),
                        1 if is_silent && is_check && checks_fail.load(SeqCst) => return,
                        0 | 1 if ends && is_silent && !is_check => drop(held.fetch_add(1, SeqCst)),
                        0 | 1 if ends => {
                            talk.send(frame(1, 4, stream, &block(&[(":status", "200")])));
                            talk.send(frame(0, 1, stream, name.as_bytes()));
                        }
                        3 if is_silent => drop(reset.fetch_add(1, SeqCst)),
                        _ => {}
                    }
                }
            })
        };
        let (silent, good) = (backend("silent", true), backend("good", false));
        let server = Server::start(&format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             [pool.app]\nbackends = [{:?}, {:?}]\nhttp2 = \"on\"\n{timeouts}\n\
             health = {{ http = \"/{}\", interval = \"2s\", timeout = \"2s\", rise = 1, fall = 2 }}\n",
            silent.address,
            good.address,
            "check".repeat(400)
        ));
        Self { checks_fail, held, reset, silent, _good: good, server }
    }

    fn fail_checks_while_some_are_held(&self) {
        eventually("some are held", secs(20), || (self.held.load(SeqCst) >= 2).then_some(()));
        self.checks_fail.store(true, SeqCst);
    }

    #[track_caller]
    fn all_that_it_held_were_reset(&self) {
        let both = || (self.held.load(SeqCst), self.reset.load(SeqCst));
        eventually("each stream is reset", secs(20), || (both().0 == both().1).then_some(()));
    }
}

#[test]
fn a_request_on_a_shared_http2_connection_moves_as_well() {
    for method in ["GET", "PUT"] {
        let shared = Shared::start(LONG);
        let mut clients = send(&shared.server, method, 8);
        shared.fail_checks_while_some_are_held();
        assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 8], "{method}");
        shared.all_that_it_held_were_reset();
    }
}

#[test]
fn a_post_on_a_shared_http2_connection_stays_and_its_stream_is_reset_at_the_limit() {
    let shared = Shared::start("timeouts = { response = \"10m\", down = \"300ms\" }");
    let mut clients = send(&shared.server, "POST", 8);
    shared.fail_checks_while_some_are_held();
    let answers = bodies(&mut clients);
    let refused = answers.iter().filter(|(status, _)| *status == 504).count();
    assert_eq!(answers.iter().filter(|answer| **answer == (200, "good".to_owned())).count(), 8 - refused);
    shared.all_that_it_held_were_reset();
    assert_eq!(shared.held.load(SeqCst), refused);
    assert_eq!(shared.server.backend(&shared.silent.address)["moved"].as_u64(), Some(0));
}
