//! What another validation server is told when it comes back, and when this one does: what changed since, and no more.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signal::Signal;
use testing::server::Setup;
use testing::{Server, client, eventually, secs};

use crate::token::{Tokens, YubiKey};

/// A server that takes every message, counts those about each token, and says how many changes it has.
struct Other {
    port: u16,
    heard: Arc<Mutex<BTreeMap<String, u32>>>,
    changes: Arc<AtomicU64>,
}

impl Other {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (heard, changes) = (Arc::default(), Arc::new(AtomicU64::new(10)));
        let other = Self { port, heard, changes };
        let (heard, changes) = (other.heard.clone(), other.changes.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (heard, changes) = (heard.clone(), changes.clone());
                thread::spawn(move || answer(&stream.unwrap(), &heard, &changes));
            }
        });
        other
    }

    fn heard(&self) -> BTreeMap<String, u32> {
        self.heard.lock().unwrap().clone()
    }
}

fn answer(stream: &TcpStream, heard: &Mutex<BTreeMap<String, u32>>, changes: &AtomicU64) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut stream = stream;
    while let Some(request) = lines.next() {
        assert!(request.starts_with("GET /wsapi/2.0/sync?"), "{request}");
        let _ = lines.by_ref().take_while(|line| !line.is_empty()).count();
        let name = request.split("yk_publicname=").nth(1).unwrap().split('&').next().unwrap();
        *heard.lock().unwrap().entry(name.to_owned()).or_default() += 1;
        let body = format!(
            "modified=0\r\nnonce=\r\nyk_publicname={name}\r\nyk_counter=-1\r\nyk_use=-1\r\nyk_high=-1\r\nyk_low=-1\r\n\
             changes={}\r\nstatus=OK\r\n\r\n",
            changes.load(Relaxed)
        );
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

const CONFIG: &str = "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
    [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nlisteners = [\"web\"]\nsync-level = 0\n\
    peers = [\"127.0.0.1:PORT\"]\n[control]\nsocket = \"@DIR@/control.sock\"\n";

fn names() -> Vec<String> {
    "bcdefghij".chars().map(|letter| format!("ccccccccccc{letter}")).collect()
}

fn good(server: &Server, name: &str, press: u8) {
    let otp = YubiKey::named(name).otp(1, press);
    let query = format!("/wsapi/2.0/verify?id=1&otp={otp}&nonce=aaaaaaaaaaaaaaaa");
    let text = client::get(&server.address("web"), &query).text();
    assert!(text.contains("status=OK"), "{text}");
}

/// Waits until the store remembers that the other server was told so many changes.
fn remembered(tokens: &Tokens, through: u64) {
    eventually("it is remembered", secs(20), || {
        let journal = fs::read_to_string(tokens.directory.join("otp/journal")).unwrap();
        let last = journal.lines().rfind(|line| line.contains("\"r\":\"told\""))?;
        last.contains(&format!("\"through\":{through},")).then_some(())
    });
}

#[test]
fn a_restart_tells_another_server_only_what_changed_since() {
    let other = Other::start();
    let config = CONFIG.replace("PORT", &other.port.to_string());
    let setup = Setup::new(&config);
    let tokens = Tokens::below(setup.dir());
    tokens.said(&["client", "add", "--unsigned"], "");
    names().iter().for_each(|name| drop(tokens.yubikey(name, None)));
    let mut server = setup.start();
    names().iter().for_each(|name| good(&server, name, 1));
    let once: BTreeMap<String, u32> = names().into_iter().map(|name| (name, 1)).collect();
    eventually("all are told", secs(20), || (other.heard().len() == once.len()).then_some(()));
    remembered(&tokens, once.len() as u64);
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    let told_before = other.heard();
    // By another process, while the server is away.
    tokens.said(&["verify"], &YubiKey::named("cccccccccccd").otp(1, 2));
    let _directory = std::mem::replace(&mut server.dir, tempfile::tempdir().unwrap());
    let config = config.replace("@DIR@", tokens.directory.to_str().unwrap());
    let server = Setup::new(&config).start();
    remembered(&tokens, once.len() as u64 + 1);
    good(&server, "cccccccccccb", 2);
    remembered(&tokens, once.len() as u64 + 2);
    let mut heard = other.heard();
    // What is used now is told at once, and in the same moment perhaps as what changed since the last look at the store.
    let of_used = heard.insert("cccccccccccb".to_owned(), told_before["cccccccccccb"]).unwrap();
    assert!((1..=2).contains(&(of_used - told_before["cccccccccccb"])), "{of_used} {told_before:?}");
    let mut expected = told_before;
    *expected.get_mut("cccccccccccd").unwrap() += 1;
    assert_eq!(heard, expected);
}

#[test]
fn a_server_that_was_set_back_is_told_all_again() {
    let other = Other::start();
    let setup = Setup::new(&CONFIG.replace("PORT", &other.port.to_string()));
    let tokens = Tokens::below(setup.dir());
    tokens.said(&["client", "add", "--unsigned"], "");
    names().iter().for_each(|name| drop(tokens.yubikey(name, None)));
    // Not at the moment of their use: these are told from the store, and say how many changes the other server has.
    names().iter().for_each(|name| drop(tokens.said(&["verify"], &YubiKey::named(name).otp(1, 1))));
    let _server = setup.start();
    remembered(&tokens, names().len() as u64);
    let told = other.heard();
    other.changes.store(3, Relaxed);
    tokens.said(&["verify"], &YubiKey::named("cccccccccccd").otp(1, 2));
    eventually("all are told again", secs(20), || {
        let heard = other.heard();
        told.iter().all(|(name, count)| heard[name] > *count).then_some(())
    });
}

#[test]
fn hundreds_of_tokens_that_a_server_lacks_keep_no_other_token_from_it() {
    let ports = [testing::port::free(), testing::port::free()];
    let config = |own: usize| {
        format!(
            "[listener.web]\nbind = \"127.0.0.1:{}\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
             [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nlisteners = [\"web\"]\nsync-level = 0\n\
             peers = [\"127.0.0.1:{}\"]\n[control]\nsocket = \"@DIR@/control.sock\"\n",
            ports[own],
            ports[1 - own]
        )
    };
    let setups = [0, 1].map(|own| Setup::new(&config(own)));
    let tokens = [0, 1].map(|own: usize| Tokens::below(setups[own].dir()));
    // In the order of names, and in that of their use, before the one that both have.
    let letters: Vec<char> = "cbdefghijklnrtuv".chars().collect();
    let lacking: Vec<String> = (0..700)
        .map(|number: usize| {
            let digits = [number / 256, number / 16 % 16, number % 16].map(|digit| letters[digit]);
            format!("bbbbbbbbb{}", String::from_iter(digits))
        })
        .collect();
    let key = |name: &String| {
        format!("1,{name},0123456789ab,87fe7c2b3d4f5a6b8c9d0e1f2a3b4c5d,000000000000,2009-12-03T22:44:31,\n")
    };
    let counters = |name: &String| format!("1,1383728711,1383733691,{name},7,3,500,2,fa9d8e7a,\n");
    tokens[0].said(&["import", "ksm", "-"], &lacking.iter().map(key).collect::<String>());
    tokens[0].said(&["import", "ykval", "-"], &lacking.iter().map(counters).collect::<String>());
    let both = tokens[0].yubikey("cccccccccccb", None);
    tokens[1].yubikey("cccccccccccb", None);
    tokens[0].said(&["verify"], &both.otp(3, 1));
    let [first, second] = setups.map(Setup::start);
    eventually("the other one knows what it has", secs(30), || {
        tokens[1].said(&["list"], "").contains("3/1").then_some(())
    });
    eventually("the lack is told", secs(30), || {
        first.said(&["status"]).contains("it refuses (BAD_OTP").then_some(())
    });
    // One that is enrolled there later is told, whichever it is.
    let late = &lacking[650];
    tokens[1].said(&["import", "ksm", "-"], &key(late));
    eventually("the late one is told", secs(200), || {
        tokens[1].said(&["list"], "").contains("7/3").then_some(())
    });
    drop(second);
}
