//! Floods from forged addresses: what is bounded, who keeps a place, and what is told.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::*;

#[test]
fn a_flood_from_many_addresses_stays_within_max_flows_and_takes_no_established_flow() {
    let echo = Echo::start();
    let server = Server::start(&config(
        "max-flows = 50\nflows-per-source = 10\nidle-timeout = \"10m\"",
        &backends(&[&echo]),
    ));
    let address = server.address("dns");
    let friends: Vec<Client> =
        (1..=5).map(|last| Client::from(Ipv4Addr::new(127, 0, 0, last).into(), &address)).collect();
    let flows: Vec<_> = friends.iter().map(|friend| friend.ask("hello")).collect();
    friends.iter().zip(&flows).for_each(|(friend, flow)| assert_eq!(friend.ask("established"), *flow));
    let begun = Instant::now();
    for wave in 0..20_u8 {
        for last in 1..=100 {
            Client::from(Ipv4Addr::new(127, 1, wave, last).into(), &address).send(b"silent");
        }
        let friend = usize::from(wave) % friends.len();
        assert_eq!(friends[friend].ask("still there"), flows[friend]);
        assert!(listener(&server)["connections"].as_u64() <= Some(50));
    }
    // One source has ten flows; more take the place of its own.
    let crowd: Vec<Client> =
        (0..30).map(|_| Client::from(Ipv4Addr::new(127, 2, 0, 1).into(), &address)).collect();
    crowd.iter().for_each(|client| client.send(b"silent"));
    crowd[29].ask("the last one is there");
    eventually("evicted flows are counted", secs(20), || {
        let endings = &listener(&server)["endings"];
        (endings["flow-evicted"].as_u64() >= Some(2_000 - 45 + 20)).then_some(())
    });
    // One line in each second, and not one for each forged address.
    let lines = server.stdout.all();
    let logged = lines.iter().filter(|line| line.contains(" flow-evicted ")).count() as u64;
    assert!((1..=begun.elapsed().as_secs() + 2).contains(&logged), "{logged} lines");
    let is_of_friend = |line: &&String| (1..=5).any(|last| line.contains(&format!(" 127.0.0.{last}:")));
    assert_eq!(lines.iter().find(is_of_friend), None, "no established flow has ended");
    let descriptors = &server.ctl_json(&["status"])["descriptors"];
    assert!(descriptors["by_use"]["flows"].as_u64() <= Some(50), "{descriptors}");
    // Established flows keep their places against new ones: six are there, and 44 more fill the table.
    crowd[29].ask("the last one is established");
    let answered: Vec<Client> = (1..=44)
        .map(|last| {
            let client = Client::from(Ipv4Addr::new(127, 3, 0, last).into(), &address);
            client.ask("hello");
            client.ask("established");
            client
        })
        .collect();
    Client::from(Ipv4Addr::new(127, 4, 0, 1).into(), &address).send(b"one too many");
    eventually("it is refused", secs(20), || {
        (listener(&server)["endings"]["flows-full"].as_u64() == Some(1)).then_some(())
    });
    assert_eq!(answered.len(), 44);
}

#[test]
fn flows_without_an_answer_give_way_where_every_backend_has_its_most_connections() {
    let echo = Echo::start();
    let pool = format!("backends = [{{ address = \"{}\", max-connections = 5 }}]", echo.address);
    let server = Server::start(&config("idle-timeout = \"10m\"", &pool));
    let address = server.address("dns");
    let friend = Client::new(&address);
    let flow = friend.ask("hello");
    for last in 1..=50 {
        Client::from(Ipv4Addr::new(127, 7, 0, last).into(), &address).send(b"silent");
    }
    Client::from(Ipv4Addr::new(127, 8, 0, 1).into(), &address).ask("a new one gets a place");
    assert_eq!(friend.ask("still there"), flow);
}

/// Where no reply is due, clients send and forget: a flow that gives way has had its datagram sent, with its own header and
/// not with that of the flow that has its place.
#[test]
fn flows_that_give_way_to_others_of_the_same_batch_have_had_their_datagrams_sent() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let pool = format!("backends = [\"{}\"]\nsend-proxy = \"v2\"", backend.local_addr().unwrap());
    let server = Server::start(&config("replies = 0\nmax-flows = 4\nidle-timeout = \"10m\"", &pool));
    let address = server.address("dns");
    server.signal(Signal::SIGSTOP);
    for last in 1..=100_u8 {
        Client::from(Ipv4Addr::new(127, 10, 0, last).into(), &address).send(&[last]);
    }
    server.signal(Signal::SIGCONT);
    // The header has the source's address from its 16th byte on, and 28 bytes.
    let mut room = [0; 100];
    for last in 1..=100_u8 {
        let length = backend.recv(&mut room).unwrap();
        assert_eq!((&room[16..20], &room[28..length]), (&[127, 10, 0, last][..], &[last][..]));
    }
    assert_eq!(listener(&server)["datagrams_dropped"], 0);
}

#[test]
fn without_descriptors_new_flows_take_those_of_unanswered_ones_and_other_clients_keep_their_part() {
    let echo = Echo::start();
    let text = config("max-flows = 10000\nidle-timeout = \"10m\"", &backends(&[&echo]));
    let server = Setup::new(&text).through(["prlimit", "--nofile=200:200"]).start();
    let address = server.address("dns");
    let friend = Client::new(&address);
    let flow = friend.ask("hello");
    friend.ask("established");
    for number in 0..400_u16 {
        let [high, low] = number.to_be_bytes();
        Client::from(Ipv4Addr::new(127, 5, high, low.max(1)).into(), &address).send(b"silent");
        if number % 50 == 0 {
            assert_eq!(friend.ask("still there"), flow);
        }
    }
    assert_eq!(friend.ask("still there"), flow);
    let descriptors = &server.ctl_json(&["status"])["descriptors"];
    let (flows, limit) = (descriptors["by_use"]["flows"].as_u64(), descriptors["traffic_limit"].as_u64());
    assert!(flows > Some(5) && flows <= limit.map(|limit| limit * 3 / 4), "{descriptors}");
    Client::from(Ipv4Addr::new(127, 6, 0, 1).into(), &address).ask("a new one gets a place");
}

/// Servers of the DNS answer every question, also that of a forged address.
#[test]
fn forged_flows_that_were_answered_give_way_to_new_ones_and_those_of_clients_that_speak_again_stay() {
    let echo = Echo::start();
    let server = Server::start(&config("max-flows = 50\nidle-timeout = \"10m\"", &backends(&[&echo])));
    let address = server.address("dns");
    let friend = Client::new(&address);
    let flow = friend.ask("hello");
    friend.ask("established");
    for last in 1..=200 {
        Client::from(Ipv4Addr::new(127, 9, 0, last).into(), &address).ask("forged, and answered");
    }
    assert_eq!(friend.ask("still there"), flow);
    assert_eq!(listener(&server)["connections"], 50);
}

#[test]
fn the_sticky_table_forgets_nobody_for_addresses_that_were_not_answered() {
    let (one, other) = (Echo::start(), Echo::start());
    let pool = format!("{}\nbalance = \"sticky\"\nsticky = {{ entries = 10 }}", backends(&[&one, &other]));
    let server = Server::start(&config("", &pool));
    let address = server.address("dns");
    let friend = || Client::new(&address);
    let kept = friend();
    let home = kept.ask("hello").0;
    let away = if home == one.address { other.address } else { one.address };
    for last in 1..=50 {
        Client::from(Ipv4Addr::new(127, 10, 0, last).into(), &address).send(b"silent");
    }
    // Forgotten, the friend would get the backend with fewer flows: more of them at home than away.
    server.ctl(&["drain", &away.to_string()]);
    for last in 1..=50 {
        Client::from(Ipv4Addr::new(127, 11, 0, last).into(), &address).send(b"silent");
    }
    let in_flight = |backend: &SocketAddr| server.backend(&backend.to_string())["in_flight"].as_u64();
    eventually("home has more flows", secs(20), || {
        (in_flight(&home) > in_flight(&away) && in_flight(&home) >= Some(70)).then_some(())
    });
    server.ctl(&["ready", &away.to_string()]);
    assert_eq!(friend().ask("who serves me?").0, home);
}

/// A socket on an address that is not its own alone.
fn shared(address: SocketAddr) -> UdpSocket {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&address.into()).unwrap();
    UdpSocket::from(OwnedFd::from(socket))
}

#[test]
fn a_datagram_whose_source_is_one_of_our_listeners_is_dropped_and_goes_round_nowhere() {
    let echo = Echo::start();
    let other = "[listener.other]\nbind = \":0\"\nprotocol = \"udp\"\npool = \"app\"\n";
    let server = Server::start(&format!("{}{other}", config("", &backends(&[&echo]))));
    let first: SocketAddr = server.address("dns").parse().unwrap();
    let wide: SocketAddr = server.address("other").parse().unwrap();
    let to_wide = SocketAddr::from((Ipv4Addr::LOCALHOST, wide.port()));
    let local = |last| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), wide.port()));
    // From the other listener, and from an address of this machine with the port of the wide one.
    for (source, target, dropped_by) in
        [(first, to_wide, "other"), (local(1), first, "dns"), (local(9), to_wide, "other")]
    {
        let count = || {
            let listeners = server.ctl_json(&["status"])["listeners"].clone();
            let found = listeners.as_array().unwrap().iter().find(|one| one["name"] == dropped_by).cloned();
            found.unwrap()["endings"]["bad-source"].as_u64().unwrap_or(0)
        };
        let before = count();
        let forged = shared(source);
        forged.send_to(b"who are you?", target).unwrap();
        eventually(&format!("{source} to {target} is dropped"), secs(20), || {
            (count() == before + 1).then_some(())
        });
    }
    assert_eq!(server.backend(&echo.address.to_string())["sessions"], 0);
    Client::new(&first.to_string()).ask("others are served");
}

#[test]
fn a_datagram_whose_source_is_a_backend_is_dropped_and_goes_round_nowhere() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let server = Server::start(&config("", &format!("backends = [\"{}\"]", backend.local_addr().unwrap())));
    let address = server.address("dns");
    backend.send_to(b"who are you?", &address).unwrap();
    eventually("it is dropped", secs(20), || {
        (listener(&server)["endings"]["bad-source"].as_u64() == Some(1)).then_some(())
    });
    // What the backend gets first is from a client.
    Client::new(&address).send(b"hello");
    let mut room = [0; 100];
    let (length, _) = backend.recv_from(&mut room).unwrap();
    assert_eq!(&room[..length], b"hello");
}

/// What a backend answers to a forged question goes where the question says that it is from; nothing else does.
#[test]
fn forged_sources_get_nothing_that_no_backend_has_sent() {
    let echo = Echo::start();
    let server = Server::start(&config("max-flows = 50\nidle-timeout = \"10m\"", &backends(&[&echo])));
    let address = server.address("dns");
    // The sockets of the addresses that are forged hear what comes to them, also an error of ICMP.
    let victims: Vec<Client> =
        (1..=250).map(|last| Client::from(Ipv4Addr::new(127, 12, 0, last).into(), &address)).collect();
    for victim in &victims {
        victim.0.set_nonblocking(true).unwrap();
    }
    let assert_nothing_heard = || {
        for victim in &victims {
            let heard = victim.0.recv(&mut [0; 100]).map_err(|error| error.kind());
            assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock));
        }
    };
    let friend = Client::new(&address);
    let waves = 4;
    for _ in 0..waves {
        victims.iter().for_each(|victim| victim.send(b"silent"));
        friend.ask("hello");
    }
    // The last reply is counted when it has been sent.
    let status = eventually("as many as the backend has answered", secs(20), || {
        Some(listener(&server)).filter(|status| status["datagrams_out"] == waves)
    });
    assert_eq!(status["datagrams_in"], waves * 251, "{status:#}");
    assert!(status["endings"]["flow-evicted"].as_u64() > Some(0), "{status:#}");
    assert_nothing_heard();
    // Nor where there is no backend for them.
    server.said(&["drain", "app", &echo.address.to_string()]);
    server.said(&["kill", "--yes", "--listener", "dns"]);
    eventually("no flow is left", secs(20), || (listener(&server)["connections"] == 0).then_some(()));
    victims.iter().for_each(|victim| victim.send(b"who is there?"));
    eventually("all are dropped", secs(20), || {
        (listener(&server)["endings"]["no-backend-available"] == 250).then_some(())
    });
    assert_eq!(listener(&server)["datagrams_out"], waves);
    assert_nothing_heard();
}

/// A question of a forged source.
const FORGED: &[u8] = b"forged";

/// Forged questions that have no answer yet, at most: a queue of the kernel takes them all, also where a busy machine keeps
/// Penstock or the backend from its turn. They are less than a quarter of all flows.
const UNANSWERED: usize = 100;

/// A server of a protocol with one answer for each question, which takes its time.
struct SlowEcho {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    /// Answers to forged questions.
    forged: Arc<AtomicUsize>,
}

impl SlowEcho {
    fn start(delay: Duration) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(millis(1))).unwrap();
        let (address, ended) = (socket.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let (seen, forged) = (ended.clone(), Arc::new(AtomicUsize::new(0)));
        let answered = forged.clone();
        std::thread::spawn(move || {
            let (mut room, mut due) = ([0; 100], VecDeque::new());
            while !seen.load(SeqCst) {
                if let Ok((length, from)) = socket.recv_from(&mut room) {
                    due.push_back((Instant::now() + delay, room[..length].to_vec(), from));
                }
                while let Some((_, answer, to)) = due.pop_front_if(|(due, ..)| *due <= Instant::now()) {
                    let _ = socket.send_to(&answer, to);
                    answered.fetch_add(usize::from(answer == FORGED), SeqCst);
                }
            }
        });
        Self { address, ended, forged }
    }
}

impl Drop for SlowEcho {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
    }
}

#[test]
fn clients_lose_no_exchange_beside_a_flood_of_forged_sources_that_are_answered_as_well() {
    for replies in ["", "replies = 1\n"] {
        let echo = SlowEcho::start(millis(10));
        let server = Server::start(&config(
            &format!("{replies}max-flows = 2000\nflows-per-source = 2000\nidle-timeout = \"10m\""),
            &format!("backends = [\"{}\"]", echo.address),
        ));
        let address = server.address("dns");
        let (to, ended) = (address.clone(), Arc::new(AtomicBool::new(false)));
        let (over, answered) = (ended.clone(), echo.forged.clone());
        // A forged source gets no answer: nothing reads its socket.
        let flood = std::thread::spawn(move || {
            let mut sent = 0_u32;
            while !over.load(SeqCst) {
                if sent as usize >= answered.load(SeqCst) + UNANSWERED {
                    std::thread::sleep(millis(1));
                    continue;
                }
                let [_, a, b, c] = sent.to_be_bytes();
                let source = Ipv4Addr::new(127, 10 + a, b, c);
                let socket = UdpSocket::bind((source, 0)).unwrap();
                let _ = socket.send_to(FORGED, &to);
                sent += 1;
                if sent.is_multiple_of(8) {
                    // Two thousand a second: the pace of the flood, and nothing waits for it.
                    std::thread::sleep(millis(4));
                }
            }
            sent
        });
        eventually("the table is full", secs(60), || {
            (!replies.is_empty() || listener(&server)["connections"].as_u64() == Some(2000)).then_some(())
        });
        let lost: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4_u8)
                .map(|number| {
                    let address = &address;
                    scope.spawn(move || {
                        let ask = |at: usize| {
                            let client = Client::from(Ipv4Addr::new(127, 0, 1, number + 1).into(), address);
                            client.0.set_read_timeout(Some(secs(3))).unwrap();
                            // As clients of DNS do, it asks again once. Where each is lost to the flood, so is the second one.
                            (0..2).all(|_| {
                                client.send(format!("exchange {at}").as_bytes());
                                client.0.recv(&mut [0; 100]).is_err()
                            })
                        };
                        (0..350).filter(|at| ask(*at)).count()
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        ended.store(true, SeqCst);
        let sent = flood.join().unwrap();
        assert_eq!(lost, 0, "of 1,400 exchanges beside {sent} forged datagrams, {replies:?}");
    }
}
