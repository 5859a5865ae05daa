use super::*;

fn record_of(messages: &[u8]) -> Vec<u8> {
    let mut record = vec![HANDSHAKE, 3, 3];
    record.extend((messages.len() as u16).to_be_bytes());
    record.extend(messages);
    record
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend(&(body.len() as u32).to_be_bytes()[1..]);
    message.extend(body);
    message
}

/// Builds a TLS 1.2 ServerHello with a suite and the extension renegotiation_info.
fn hello(suite: u16) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(suite.to_be_bytes());
    body.push(0);
    body.extend([0, 5, 0xff, 1, 0, 1, 0]);
    message(SERVER_HELLO, &body)
}

fn flight() -> Vec<u8> {
    let certificates = [0, 0, 7, 0, 0, 1, 0xaa, 0, 0, 0];
    let key = [3, 0, 0x1d, 1, 0];
    let mut messages = hello(0xc02f);
    messages.extend(message(CERTIFICATE, &certificates));
    messages.extend(message(SERVER_KEY_EXCHANGE, &key));
    messages.extend(message(SERVER_HELLO_DONE, &[]));
    record_of(&messages)
}

#[test]
fn a_flight_is_understood_however_it_is_cut() {
    let flight = flight();
    for size in [1, 2, 7, flight.len()] {
        let mut reader = Reader::default();
        let reply = flight.chunks(size).find_map(|chunk| reader.feed(chunk));
        let Some(Reply::Hello(hello)) = reply else { panic!("{size}: {reply:?}") };
        assert_eq!((hello.version, hello.suite, hello.group), (0x0303, 0xc02f, Some(0x1d)));
        assert!(hello.has(hello::RENEGOTIATION_INFO) && !hello.has(hello::HEARTBEAT));
        assert_eq!(hello.shown.chain, [vec![0xaa], vec![]]);
    }
}

#[test]
fn a_prime_is_measured_in_bits() {
    let mut messages = hello(0x009e);
    messages.extend(message(SERVER_KEY_EXCHANGE, &[&[0, 129, 0][..], &[0xff; 128], &[0, 1, 2]].concat()));
    messages.extend(message(SERVER_HELLO_DONE, &[]));
    let Some(Reply::Hello(hello)) = Reader::default().feed(&record_of(&messages)) else { panic!() };
    assert_eq!(hello.dh_bits, Some(1024));
    assert_eq!([bits_of(&[]), bits_of(&[0, 1]), bits_of(&[0x80, 0])], [0, 1, 16]);
}

#[test]
fn tls13_is_seen_by_its_extension_and_ends_there() {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0x13, 0x01, 0, 0, 12]);
    body.extend([0, 43, 0, 2, 3, 4, 0, 51, 0, 2, 0x11, 0xec]);
    let reply = Reader::default().feed(&record_of(&message(SERVER_HELLO, &body)));
    let Some(Reply::Hello(hello)) = reply else { panic!("{reply:?}") };
    assert_eq!((hello.version, hello.suite, hello.group), (0x0304, 0x1301, Some(0x11ec)));
}

#[test]
fn what_is_not_tls_is_garbage_and_alerts_are_told() {
    for junk in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\0",
        b"SSH-2.0-x\r\n",
        &[22, 9, 9],
        &[22, 3, 3, 0xff, 0xff],
    ] {
        assert_eq!(Reader::default().feed(junk), Some(Reply::Garbage), "{junk:?}");
    }
    assert_eq!(Reader::default().feed(&[21, 3, 3, 0, 2, 2, 112]), Some(Reply::Alert(112)));
    // Messages in the wrong order, or truncated.
    assert_eq!(Reader::default().feed(&record_of(&message(CERTIFICATE, &[0; 3]))), Some(Reply::Garbage));
    assert_eq!(Reader::default().feed(&record_of(&message(SERVER_HELLO, &[3, 3, 1]))), Some(Reply::Garbage));
    assert_eq!(Reader::default().feed(&record_of(&[SERVER_HELLO, 0xff, 0xff, 0xff])), Some(Reply::Garbage));
}

#[test]
fn a_server_that_never_ends_is_given_up_within_the_bound() {
    let mut reader = Reader::default();
    // Empty records contain no message; without a limit the reader would wait for ever.
    let fed = (0..).take_while(|_| reader.feed(&[HANDSHAKE, 3, 3, 0, 0].repeat(1000)).is_none()).count();
    assert!(fed * 5000 <= MAX_REPLY, "{fed}");
}

#[test]
fn no_change_of_a_flight_makes_it_panic() {
    let flight = flight();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut changed = flight.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..changed.len());
            changed[at] = random.u8(..);
        }
        changed.truncate(random.usize(1..=changed.len()));
        let mut reader = Reader::default();
        let _ = reader.feed(&changed);
        let _ = reader.so_far();
        let _ = is_ssl2_hello(&changed);
    }
}

#[test]
fn a_hello_of_ssl_2_is_told_from_everything_else() {
    assert_eq!(is_ssl2_hello(&[0x80, 11, 4, 0, 1, 0, 2, 0, 0, 0, 3, 0, 16]), Some(true));
    assert_eq!(is_ssl2_hello(&[0x80, 11, 4]), None);
    for other in [&[21, 3, 1, 0, 2, 2, 40][..], b"HTTP/1.1 400", &[0x80, 3, 0, 0, 1]] {
        assert_eq!(is_ssl2_hello(other), Some(false), "{other:?}");
    }
}
