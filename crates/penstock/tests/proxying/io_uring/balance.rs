//! Backends to which the ring does not connect, beside others: clients see no difference, and each has its share.

use std::collections::BTreeMap;

use testing::full_backlog::FullBacklog;
use testing::tools;

use super::*;

/// Gives `twice.test` two addresses, at the first of which no program listens.
const NAMES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
typedef int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    look_up system = (look_up)dlsym(RTLD_NEXT, "getaddrinfo");
    if (!node || strcmp(node, "twice.test")) return system(node, service, hints, found);
    struct addrinfo *second, *last;
    int error = system("127.93.0.2", service, hints, found);
    if (!error) error = system("127.0.0.1", service, hints, &second);
    if (error) return error;
    for (last = *found; last->ai_next; last = last->ai_next) {}
    last->ai_next = second;
    return 0;
}
"#;

fn answering() -> Scripted {
    Scripted::start(|talk| {
        let got = talk.client.read_exactly(3);
        talk.send(got);
    })
}

fn talk(server: &Server) {
    let mut client = server.client("raw");
    client.send("abc");
    assert_eq!(client.read_to_end(), (b"abc".to_vec(), End::Closed));
}

/// Sessions of each backend.
fn shares(rows: &[Value]) -> BTreeMap<&str, usize> {
    let mut shares = BTreeMap::new();
    for row in rows {
        assert_eq!((&row["outcome"], &row["attempts"]), (&"ok".into(), &1.into()), "{row}");
        *shares.entry(row["backend"].as_str().unwrap()).or_default() += 1;
    }
    shares
}

#[test]
fn a_backend_with_several_addresses_has_its_share_beside_those_in_the_ring() {
    const EACH: usize = 20;
    for engine in ["epoll", "io-uring"] {
        let backends = [answering(), answering(), answering()];
        let port = backends[0].address.rsplit(':').next().unwrap();
        let name = format!("twice.test:{port}");
        let all = [&*name, &backends[1].address, &backends[2].address];
        for names in [&all[..], &all[..1]] {
            let setup = Setup::new(&config(names, "", ""));
            let library = tools::library(setup.dir(), "names", NAMES);
            let setup = setup.env("LD_PRELOAD", library.to_str().unwrap());
            let server = setup.env("PENSTOCK_PROCESS_ENGINE", engine).start();
            eventually("the name has its addresses", secs(20), || {
                (server.backend(&name)["addresses"].as_array().unwrap().len() == 2).then_some(())
            });
            let before = operations(&server);
            (0..names.len() * EACH).for_each(|_| talk(&server));
            let rows = rows(&server, names.len() * EACH);
            let wanted: BTreeMap<_, _> = names.iter().map(|name| (*name, EACH)).collect();
            assert_eq!(shares(&rows), wanted, "{engine}");
            // To receive and to cancel that; to receive twice, connect, send twice and close twice.
            let least = if engine == "epoll" { 0 } else { EACH * 2 + (names.len() - 1) * EACH * 7 };
            let given = operations(&server) - before;
            assert!(given >= least as u64 && (given == 0) == (least == 0), "{engine}: {given} of {least}");
            wait_until_clean(&server, names);
        }
    }
}

#[test]
fn a_backend_on_trial_has_its_share_of_sessions_beside_those_in_the_ring() {
    const EACH: usize = 20;
    for engine in ["epoll", "io-uring"] {
        let others = [answering(), answering()];
        let (listener, bad) = refusing();
        let rules = "retries = 2\npassive = { error-rate = 50, ejection = \"1s\", window = \"5s\", least-sessions = 2, \
                     trial-sessions = 3, failures = 10000 }";
        let setup = Setup::new(&config(&[&bad, &others[0].address, &others[1].address], "", rules));
        let server = setup.env("PENSTOCK_PROCESS_ENGINE", engine).start();
        let mut sessions = 0;
        eventually("it is ejected", secs(30), || {
            talk(&server);
            sessions += 1;
            (server.health(&bad) == "ejected").then_some(())
        });
        SockRef::from(&listener).listen(64).unwrap();
        // It ends with the test.
        thread::spawn(move || {
            for talk in listener.incoming() {
                let (mut talk, mut heard) = (talk.unwrap(), [0; 3]);
                talk.read_exact(&mut heard).unwrap();
                talk.write_all(&heard).unwrap();
            }
        });
        eventually("it is half-open", secs(30), || (server.health(&bad) == "half-open").then_some(()));
        (0..3 * EACH).for_each(|_| talk(&server));
        server.stderr.wait_for("readmitted", secs(10));
        let rows = rows(&server, sessions + 3 * EACH);
        // When it comes back, the turn is at any of them.
        let shares = shares(&rows[sessions..]);
        assert!(
            shares.len() == 3 && shares.values().all(|share| share.abs_diff(EACH) <= 1),
            "{engine}: {shares:?}"
        );
        wait_until_clean(&server, &[&bad]);
    }
}

#[test]
fn a_connection_that_does_not_open_soon_keeps_its_backend_and_its_turn() {
    for engine in ["epoll", "io-uring"] {
        let backends = [FullBacklog::new(), FullBacklog::new()];
        let names = backends.each_ref().map(FullBacklog::address);
        let rules = "retries = 0\ntimeouts = { connect = \"700ms\" }\npassive = { failures = 100 }";
        let setup = Setup::new(&config(&names.each_ref().map(String::as_str), "", rules));
        let server = setup.env("PENSTOCK_PROCESS_ENGINE", engine).start();
        for _ in 0..4 {
            let mut client = server.client("raw");
            client.send("abc");
            let (answer, end) = client.read_to_end();
            assert!(answer.is_empty() && end != End::Open, "{engine}: {end:?}");
        }
        let rows = rows(&server, 4);
        for (at, row) in rows.iter().enumerate() {
            let wanted = (&"connect-failed".into(), &1.into());
            assert_eq!((&row["outcome"], &row["attempts"]), wanted, "{engine}: {row}");
            assert_eq!(row["backend"], rows[at % 2]["backend"], "{engine}: {row}");
        }
        assert_ne!(rows[0]["backend"], rows[1]["backend"], "{engine}");
        wait_until_clean(&server, &names.each_ref().map(String::as_str));
    }
}

/// Local ports of connections to an address that are not open yet.
fn opening_to(address: &str) -> Vec<u16> {
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let remote = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[2] == remote && row[3] == "02")
        .map(|row| u16::from_str_radix(row[1].rsplit(':').next().unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn a_connection_that_opens_after_its_session_has_left_the_ring_is_used() {
    let backend = FullBacklog::new();
    let name = backend.address();
    let server = start(&[&name], "", "timeouts = { connect = \"30s\" }");
    let mut client = server.client("raw");
    client.send("abc");
    let begun = eventually("the connection is begun", secs(20), || {
        let ports = opening_to(&name);
        (!ports.is_empty()).then_some(ports)
    });
    wait_until_old(&server);
    let from = backend.echo(3);
    assert_eq!(client.read_exactly(3), b"abc");
    assert_eq!(begun, [from.port()]);
    drop(client);
    let rows = rows(&server, 1);
    assert_eq!(
        (&rows[0]["backend"], &rows[0]["attempts"]),
        (&name.as_str().into(), &1.into()),
        "{}",
        rows[0]
    );
    assert!(rows[0]["outcome"] == "ok" && rows[0]["bytes_in"] == 3, "{}", rows[0]);
    assert_eq!(metric(&server, "penstock_backend_connects_total"), 1);
    wait_until_clean(&server, &[&name]);
}
