//! An upgrade while sessions are in rings: each goes on, and none is lost or counted twice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use testing::{eventually, secs};

use crate::front::Front;
use crate::many::echo;

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(secs(60))).unwrap();
    stream
}

fn config(engine: &str, backend: &str) -> String {
    format!(
        "[process]\nworkers = 2\nengine = \"{engine}\"\nstate-directory = \"@DIR@/state\"\n\
         [control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"db\"\n\
         [pool.db]\nhealth = \"off\"\nbackends = [\"{backend}\"]\n"
    )
}

fn metric(front: &Front, name: &str) -> u64 {
    let metrics = front.server.metrics();
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn upgrades_lose_no_session_of_a_ring() {
    const UPGRADES: usize = 3;
    const KEPT: usize = 20;
    let backend = echo();
    let mut front = Front::start(&config("io-uring", &backend));
    let address = front.server.address("raw");
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    // Short sessions all the time: at each upgrade some are in the rings.
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (address, stop, served) = (address.clone(), stop.clone(), served.clone());
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let mut stream = connect(&address);
                    stream.write_all(b"question").unwrap();
                    let mut back = [0; 8];
                    stream.read_exact(&mut back).unwrap();
                    assert_eq!(&back, b"question");
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.read(&mut back).unwrap(), 0);
                    served.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    let mut kept = Vec::new();
    for round in 0..UPGRADES {
        let so_far = served.load(SeqCst);
        eventually("sessions are served", secs(20), || (served.load(SeqCst) > so_far + 50).then_some(()));
        // These have just begun.
        for _ in 0..KEPT {
            let mut stream = connect(&address);
            stream.write_all(b"half").unwrap();
            kept.push(stream);
        }
        let before = front.pid();
        front.upgrade(&[]);
        front.wait_gone(before);
        for stream in &mut kept[round * KEPT..] {
            let mut back = [0; 4];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"half");
        }
        let engine = &front.server.ctl_json(&["status"])["engine"];
        assert_eq!(engine["in_use"], "io-uring", "this test needs io_uring(7): {engine}");
    }
    stop.store(true, SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    for stream in &mut kept {
        stream.write_all(b"rest").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"rest");
    }
    let all = (served.load(SeqCst) + kept.len()) as u64;
    let of = |name: &str| metric(&front, &format!("penstock_listener_{name}{{listener=\"raw\"}}"));
    eventually("each is counted once", secs(20), || (of("sessions_total") == all).then_some(()));
    eventually("none is left", secs(20), || {
        (of("connections") == 0 && front.server.backend(&backend)["in_flight"] == 0).then_some(())
    });
    assert_eq!(of("received_bytes_total"), all * 8);
}

/// Begins sessions, and waits until each has its backend.
fn begin(address: &str, count: usize) -> Vec<TcpStream> {
    let talk = |_| {
        let mut stream = connect(address);
        stream.write_all(b"half").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        stream
    };
    (0..count).map(talk).collect()
}

#[test]
fn a_process_with_another_engine_takes_the_sessions_over() {
    const EACH: usize = 10;
    let backend = echo();
    let mut front = Front::start(&config("epoll", &backend));
    let address = front.server.address("raw");
    let mut kept = Vec::new();
    for engine in ["io-uring", "epoll", "auto"] {
        kept.extend(begin(&address, EACH));
        front.server.write_config(&config(engine, &backend));
        let before = front.pid();
        front.upgrade(&[]);
        front.wait_gone(before);
        let status = front.server.ctl_json(&["status"])["engine"].clone();
        let in_use = if engine == "epoll" { "epoll" } else { "io-uring" };
        assert_eq!((&status["chosen"], &status["in_use"]), (&engine.into(), &in_use.into()), "{status}");
    }
    kept.extend(begin(&address, EACH));
    for stream in &mut kept {
        stream.write_all(b"rest").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"rest");
    }
    let of = |name: &str| metric(&front, &format!("penstock_listener_{name}{{listener=\"raw\"}}"));
    eventually("each is counted once", secs(20), || (of("sessions_total") == 4 * EACH as u64).then_some(()));
    assert_eq!(of("received_bytes_total"), 4 * EACH as u64 * 8);
}

#[test]
fn a_listener_that_a_reload_adds_has_a_ring_after_an_upgrade() {
    let backend = echo();
    let with = config("auto", &backend);
    let without = with.replace(
        "[listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"",
        "[listener.raw]\nbind = \"127.0.0.1:0\"",
    );
    assert_ne!(with, without);
    let mut front = Front::start(&without);
    let engine = |front: &Front| front.server.ctl_json(&["status"])["engine"].clone();
    let line = |front: &Front| {
        let said = front.server.said(&["status"]);
        said.lines().find(|line| line.starts_with("engine: ")).map(str::to_owned)
    };
    let first = engine(&front);
    assert_eq!((&first["chosen"], &first["in_use"]), (&"auto".into(), &"epoll".into()), "{first}");
    assert_eq!(first["reason"], "no listener can use io_uring");
    assert_eq!(line(&front), None);
    front.server.write_config(&with);
    front.server.said(&["reload"]);
    let why = "no listener could use it at the start; after an upgrade or a restart raw could";
    assert_eq!(engine(&front)["reason"], why);
    assert_eq!(line(&front), Some(format!("engine: epoll, not io-uring: {why}")));
    let address = front.server.address("raw");
    let mut kept = begin(&address, 3);
    front.upgrade(&[]);
    assert_eq!(line(&front), Some("engine: io-uring".to_owned()));
    kept.extend(begin(&address, 3));
    for stream in &mut kept {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
}
