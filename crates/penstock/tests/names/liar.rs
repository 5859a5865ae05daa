//! Name servers that lie or break off: what they say is never taken for a record that is proved, and each is told by what it does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use access::keys::{Kind, Owner, Seen, Signature};
use dns::{Server, ZoneKeys};
use testing::{eventually, secs};

use crate::domain::{Domain, Home, Settings};
use crate::push::certificate;

/// Makes an answer to a question, without its identifier.
type Answer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// A name server that answers what it is told to, over UDP and TCP. Its threads end with the test program.
struct Liar {
    address: SocketAddr,
    over_tcp: Arc<AtomicUsize>,
}

impl Liar {
    fn start(answer: Answer) -> Self {
        let (udp, tcp) = eventually("the same port twice", secs(10), || {
            let udp = UdpSocket::bind("127.0.0.1:0").ok()?;
            let tcp = TcpListener::bind(udp.local_addr().ok()?).ok()?;
            Some((udp, tcp))
        });
        let address = udp.local_addr().unwrap();
        let over_tcp = Arc::new(AtomicUsize::new(0));
        let of_udp = answer.clone();
        thread::spawn(move || {
            let mut question = [0; 1500];
            while let Ok((length, from)) = udp.recv_from(&mut question) {
                let _ = udp.send_to(&whole(&question[..length], &of_udp), from);
            }
        });
        let count = over_tcp.clone();
        thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                count.fetch_add(1, Relaxed);
                let mut length = [0; 2];
                if stream.read_exact(&mut length).is_err() {
                    continue;
                }
                let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
                if stream.read_exact(&mut question).is_err() {
                    continue;
                }
                let answer = whole(&question, &answer);
                let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                let _ = stream.write_all(&[&length, &answer[..]].concat());
            }
        });
        Self { address, over_tcp }
    }

    fn server(&self) -> Server {
        Server { address: Ok(self.address), name: None }
    }
}

fn whole(question: &[u8], answer: &Answer) -> Vec<u8> {
    [&question[..2], &answer(question)].concat()
}

const AUTHORITATIVE: u8 = 0x84;
const CUT_OFF: u8 = 0x02;

/// The question, and behind it one TLSA record of that name.
fn with_record(question: &[u8], flags: u8) -> Vec<u8> {
    // Behind the question is an OPT record of 11 bytes.
    let asked = &question[12..question.len() - 11];
    let data = [&[3, 1, 1][..], &[7; 32]].concat();
    let record = [&[0xc0, 12, 0, 52, 0, 1, 0, 0, 0, 60, 0, 35][..], &data].concat();
    [&[flags, 0, 0, 1, 0, 1, 0, 0, 0, 0][..], asked, &record].concat()
}

fn see(server: &Server) -> Seen {
    let (zone, owner) = ("example.test", "_443._tcp.www.example.test");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (zone, owner) = (Owner::parse(zone).unwrap(), Owner::parse(owner).unwrap());
    runtime.block_on(server.see(&zone, &owner, Kind::Tlsa, &ZoneKeys::Proved(Vec::new())))
}

#[test]
fn answer_that_is_cut_off_is_asked_for_over_tcp_and_no_part_of_it_counts() {
    // Over UDP the server says that there is more; over TCP it has all.
    let question_of_tcp = Arc::new(AtomicUsize::new(0));
    let counted = question_of_tcp.clone();
    let good = Liar::start(Arc::new(move |question: &[u8]| match counted.fetch_add(1, Relaxed) {
        0 => with_record(question, AUTHORITATIVE | CUT_OFF),
        _ => with_record(question, AUTHORITATIVE),
    }));
    let seen = see(&good.server());
    assert!(matches!(&seen, Seen::Records { data, .. } if data.len() == 1), "{seen:?}");
    assert_eq!(good.over_tcp.load(Relaxed), 1);

    // Over TCP too.
    let cut = Liar::start(Arc::new(|question: &[u8]| with_record(question, AUTHORITATIVE | CUT_OFF)));
    assert_eq!(see(&cut.server()), Seen::Silent("its answer is cut off (TC), over TCP too".to_owned()));

    // It ends in the middle, at any byte.
    let at = Arc::new(AtomicUsize::new(0));
    let end = at.clone();
    let broken = Liar::start(Arc::new(move |question: &[u8]| {
        let mut answer = with_record(question, AUTHORITATIVE);
        answer.truncate(end.load(Relaxed));
        answer
    }));
    let whole = 10 + 32 + 47;
    for length in 0..whole {
        at.store(length, Relaxed);
        let seen = see(&broken.server());
        assert!(matches!(seen, Seen::Silent(_)), "{length}: {seen:?}");
    }
    at.store(whole, Relaxed);
    assert!(matches!(see(&broken.server()), Seen::Records { signature: Signature::Absent, .. }));
}

#[test]
fn answers_to_other_questions_and_of_servers_that_are_not_authoritative_do_not_count() {
    let not_authoritative = Liar::start(Arc::new(|question: &[u8]| with_record(question, 0x80)));
    let seen = see(&not_authoritative.server());
    assert_eq!(seen, Seen::NotServed("its answer is not authoritative".to_owned()));
    let other = Liar::start(Arc::new(|question: &[u8]| {
        let mut answer = with_record(question, AUTHORITATIVE);
        // The first letter of the name in the question.
        answer[11] ^= 1;
        answer
    }));
    assert_eq!(see(&other.server()), Seen::Silent("its answer is for another question".to_owned()));
    // No such name, and yet a record: it is the record that counts, and it is not signed.
    let both = Liar::start(Arc::new(|question: &[u8]| {
        let mut answer = with_record(question, AUTHORITATIVE);
        answer[1] = 3;
        answer
    }));
    assert!(matches!(see(&both.server()), Seen::Records { signature: Signature::Absent, .. }));
}

#[test]
fn primary_that_takes_an_update_without_a_signature_is_not_believed() {
    let domain = Domain::with(&Settings { signing: false, ..Settings::default() });
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    // It says yes to all, and knows no key.
    let liar = Liar::start(Arc::new(|question: &[u8]| {
        [&[AUTHORITATIVE | question[2] & 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]].concat()
    }));
    let (place, key) = (liar.address.to_string(), domain.key("penstock").display().to_string());
    let refused = home.refused(&["dns", "push", "--next", &file, "--server", &place, "--tsig", &key], 1);
    assert!(refused.contains("its answer is not signed with the key"), "{refused}");
    assert!(liar.over_tcp.load(Relaxed) > 0);
}

#[test]
fn what_a_primary_says_of_the_zone_without_a_signature_is_not_believed_for_any_code() {
    let domain = Domain::with(&Settings { signing: false, ..Settings::default() });
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let key = domain.key("penstock").display().to_string();
    let data = home.said(&["dns", "records", "--next", &file, "--form", "generic"]);
    let hex = data.split_whitespace().last().unwrap();
    let data: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    // Each question has its answer: an SOA record of the name, or the very record that is to be pushed.
    let answer = move |question: &[u8], code: u8| {
        let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
        let (asked, kind) = (&question[12..end], question[end - 3]);
        let data = if kind == 6 { vec![0; 22] } else { data.clone() };
        let length = u8::try_from(data.len()).unwrap();
        let record = [&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, length][..], &data].concat();
        [&[AUTHORITATIVE | question[2] & 0x78, code, 0, 1, 0, 1, 0, 0, 0, 0][..], asked, &record].concat()
    };
    let push = |code: u8| {
        let answer = answer.clone();
        let liar = Liar::start(Arc::new(move |question: &[u8]| answer(question, code)));
        let place = liar.address.to_string();
        home.refused(&["dns", "push", "--next", &file, "--server", &place, "--tsig", &key], 1)
    };
    // NOERROR, NXDOMAIN, YXDOMAIN, YXRRSET, NXRRSET: what is in the zone.
    for code in [0, 3, 6, 7, 8] {
        let refused = push(code);
        assert!(refused.contains("its answer is not signed with the key"), "{code}: {refused}");
    }
    // REFUSED, NOTAUTH: a refusal, whose records do not count.
    for code in [5, 9] {
        let refused = push(code);
        assert!(
            refused.contains("it is not authoritative for _443._tcp.www.example.test"),
            "{code}: {refused}"
        );
    }
}

#[test]
fn what_the_servers_of_a_zone_answer_is_told_if_none_of_them_has_it() {
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let failing = Liar::start(Arc::new(|question: &[u8]| {
        let asked = &question[12..question.len() - 11];
        [&[0x80, 2, 0, 1, 0, 0, 0, 0, 0, 0][..], asked].concat()
    }));
    let place = failing.address.to_string();
    let check = ["dns", "check", "--next", &file, "--server", &place, "--dns-server", &place];
    let refused = home.refused(&check, 1);
    assert!(refused.contains(&format!("{place}: it answers Server Failure")), "{refused}");
}
