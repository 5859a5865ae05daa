//! Backends to which the ring does not connect, beside others: clients see no difference, and each has its share.

use std::collections::BTreeMap;

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
