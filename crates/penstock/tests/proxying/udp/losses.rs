//! What clients lose when one server of a DNS pool is drained, killed or frozen: what went to that server before its
//! checks have found it, and no more.

use std::time::{Duration, Instant};

use super::proxy_header::question;
use super::*;

const CLIENTS: usize = 6;

/// The checks of the pool find a server that answers nothing within two intervals and two timeouts.
const INTERVAL: Duration = millis(200);
const TIMEOUT: Duration = millis(400);

/// Asks once from a new port, and tells whether an answer comes.
fn is_answered(address: &str) -> bool {
    let client = Client::new(address);
    client.0.set_read_timeout(Some(secs(5))).unwrap();
    client.send(&question());
    let mut room = [0; 500];
    client.0.recv(&mut room).is_ok_and(|length| room[..length].ends_with(&[192, 0, 2, 1]))
}

/// What several clients that asked together have seen.
struct Seen {
    asked: u64,
    lost: u64,
    /// How long they asked.
    took: Duration,
}

/// Several clients ask until `is_over`, each at least twenty times.
fn ask_until(address: &str, is_over: impl Fn() -> bool) -> Seen {
    let begun = Instant::now();
    let over = AtomicBool::new(false);
    let ask = || {
        let (mut lost, mut asked) = (0, 0);
        while !over.load(SeqCst) || asked < 20 {
            asked += 1;
            lost += u64::from(!is_answered(address));
        }
        (lost, asked)
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        eventually("the checks have found it", secs(20), || is_over().then_some(()));
        over.store(true, SeqCst);
        let took = begun.elapsed();
        let each = clients.into_iter().map(|client| client.join().unwrap());
        each.fold(Seen { asked: 0, lost: 0, took }, |seen, (lost, asked)| Seen {
            asked: seen.asked + asked,
            lost: seen.lost + lost,
            took,
        })
    })
}

#[test]
fn clients_of_a_dns_pool_lose_what_went_to_a_dead_server_before_its_checks_found_it_and_no_more() {
    let mut servers: Vec<Unbound> = (0..4).map(|_| Unbound::start()).collect();
    let all: Vec<String> = servers.iter().map(|server| format!("{:?}", server.address)).collect();
    let pool = format!(
        "backends = [{}]\nhealth = {{ dns = \"web.lan\", interval = \"{}ms\", timeout = \"{}ms\", rise = 1, fall = 2 }}",
        all.join(", "),
        INTERVAL.as_millis(),
        TIMEOUT.as_millis()
    );
    // As long as the clients wait.
    let server = Server::start(&config("replies = 1\nidle-timeout = \"5s\"", &pool));
    for backend in &servers {
        eventually("it is up", secs(20), || (server.health(&backend.address) == "up").then_some(()));
    }
    let address = server.address("dns");
    let sessions = |backend: &str| server.backend(backend)["sessions"].as_u64().unwrap();
    assert_eq!(ask_until(&address, || true).lost, 0, "all are up");
    server.ctl(&["drain", &servers[0].address]);
    assert_eq!(ask_until(&address, || true).lost, 0, "one is drained");
    for (at, event) in [(1, "ended"), (2, "frozen")] {
        let backend = servers[at].address.clone();
        let before = sessions(&backend);
        match event {
            "ended" => servers[at].process = None,
            _ => servers[at].process.as_ref().unwrap().signal(Signal::SIGSTOP),
        }
        let Seen { asked, lost, took } = ask_until(&address, || server.health(&backend) == "down");
        let reached = sessions(&backend) - before;
        assert!(lost <= reached, "{event}: {lost} of {asked} lost, and {reached} went there");
        // With time for the test itself, which other tests delay.
        assert!(took <= 2 * (INTERVAL + TIMEOUT) + secs(10), "{event}: found after {took:?}");
        assert_eq!(ask_until(&address, || true).lost, 0, "{event}, and its checks have found it");
    }
}
