//! What a change in the DNS leaves alone, and what a restart gives to backends that the DNS names late.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;

/// The first of the two that is asked for `/slow` waits at the gate; the other answers.
fn slow_once(name: &'static str, asked: &Arc<AtomicUsize>, gate: &Latch) -> Scripted {
    let (asked, gate) = (asked.clone(), gate.clone());
    Scripted::start(move |talk: &mut BackendConnection| {
        while let Some(request) = talk.request() {
            if request.target == "/slow" && asked.fetch_add(1, SeqCst) == 0 {
                gate.wait();
            }
            if talk.answer(200, &[], name.as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn generation(server: &Server) -> u64 {
    server.ctl_json(&["status"])["generation"].as_u64().unwrap()
}

#[test]
fn a_change_in_the_dns_takes_neither_turns_nor_latencies_from_other_pools_and_says_no_limit_again() {
    if root() == Root::LeftOut {
        return;
    }
    let at = addresses(2);
    let (gate, asked) = (Latch::default(), Arc::new(AtomicUsize::new(0)));
    let _named = [(0, "a"), (1, "b")].map(|(number, name)| backend(at[number], name, &gate));
    let hedged = ["one", "two"].map(|name| slow_once(name, &asked, &gate));
    let turns = ["one", "two"].map(Scripted::answering);
    let list =
        |backends: &[Scripted; 2]| format!("[\"{}\", \"{}\"]", backends[0].address, backends[1].address);
    let dns = NameServer::start(&format!("app A {}\n", at[0].ip()));
    let text = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[process]\nworkers = 1\nmax-connections = 1000000\n\
         [access-log]\ntarget = \"off\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [listener.hedged]\nbind = \"127.0.0.1:0\"\npool = \"hedged\"\n\
         [listener.turns]\nbind = \"127.0.0.1:0\"\npool = \"turns\"\n\
         [pool.hedged]\nbackends = {}\nhedge = \"p95\"\ntimeouts = {{ response = \"10m\" }}\n\
         [pool.turns]\nbackends = {}\n\
         [pool.app]\nresolve-interval = \"100ms\"\nbackends = [\"dns:app.test:{}\"]\n",
        list(&hedged),
        list(&turns),
        at[0].port()
    );
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec prlimit --nofile=4096:4096 \"$@\"";
    let resolv = dns.resolv_conf();
    let server = Setup::new(&text)
        .through(["unshare", "--mount", "sh", "-c", script, resolv.to_str().unwrap()])
        .start();
    for _ in 0..120 {
        assert_eq!(get(&server.address("hedged"), "/").status, 200);
    }
    let turn = || get(&server.address("turns"), "/").text();
    assert_eq!((turn(), turn(), turn()), ("one".to_owned(), "two".to_owned(), "one".to_owned()));

    let before = generation(&server);
    dns.update(&[&format!("add app.test. 1 A {}", at[1].ip())]);
    eventually("the change is served", secs(20), || {
        (generation(&server) > before && names(&server).len() == 2).then_some(())
    });
    assert_eq!(turn(), "two", "the turns go on");
    // What is usual is still known: a request that waits longer is sent to the other backend.
    let mut client = server.client("hedged");
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.try_response(secs(20)).unwrap().status, 200);
    gate.open();
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert_eq!(events.matches("max-connections = 1000000, but there are").count(), 1, "{events}");
}

fn restartable(dns: &NameServer, state: &Path, port: u16) -> Server {
    let text = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [process]\nworkers = 1\nstate-directory = \"{}\"\nstate-interval = \"300ms\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nresolve-interval = \"100ms\"\nbackends = [\"dns:app.test:{port}\"]\n",
        state.display()
    );
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
    let resolv = dns.resolv_conf();
    Setup::new(&text).through(["unshare", "--mount", "sh", "-c", script, resolv.to_str().unwrap()]).start()
}

#[test]
fn drains_and_weights_come_back_with_their_backends_also_when_the_dns_is_late() {
    if root() == Root::LeftOut {
        return;
    }
    let at = addresses(3);
    let state = tempfile::tempdir().unwrap();
    let records: String = at.iter().map(|at| format!("app A {}\n", at.ip())).collect();
    let mut dns = NameServer::start(&records);
    let mut server = restartable(&dns, state.path(), at[0].port());
    assert!(server.ctl(&["drain", &app(&at[0])]).status.success());
    assert!(server.ctl(&["weight", &app(&at[1]), "7"]).status.success());
    assert!(server.ctl(&["drain", &app(&at[2])]).status.success());
    dns.stop();
    // Twice: what no backend has got is stored again.
    for round in 0..2 {
        server.signal(nix::sys::signal::Signal::SIGTERM);
        server.wait_end(secs(20));
        drop(server);
        server = restartable(&dns, state.path(), at[0].port());
        assert_eq!(names(&server), [format!("dns:app.test:{}", at[0].port())], "{round}");
    }
    dns.start_again();
    dns.update(&[&format!("del app.test. A {}", at[2].ip())]);
    eventually("the name resolves", secs(20), || (names(&server) == apps([at[0], at[1]])).then_some(()));
    let told = |number: usize| server.backend(&app(&at[number]));
    assert_eq!(told(0)["admission"], "draining", "{}", told(0));
    assert_eq!(told(1)["weight_override"], 7, "{}", told(1));
    // An address that the DNS has lost is another backend when it comes again.
    dns.update(&[&format!("add app.test. 1 A {}", at[2].ip())]);
    eventually("it comes", secs(20), || (names(&server).len() == 3).then_some(()));
    assert_eq!(told(2)["admission"], "ready", "{}", told(2));
}
