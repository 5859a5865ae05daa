//! A store that cannot be used: the listener refuses by itself, and signs that. No OTP goes on to a backend.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::time::Instant;

use testing::server::{Setup, binary};
use testing::tools::{Root, root};
use testing::{client, eventually, secs};

use crate::token::{Tokens, YubiKey};
use crate::validation::{CONFIG, NONCE, verifier_after};

/// Takes the lock of a store, as another process might.
fn locked(directory: &Path) -> File {
    let lock = OpenOptions::new().read(true).write(true).open(directory.join("otp/lock")).unwrap();
    lock.lock().unwrap();
    lock
}

#[test]
fn a_damaged_store_answers_with_a_signed_refusal_and_works_once_it_is_whole() {
    let mut whole = Vec::new();
    let verifier = verifier_after(|directory| {
        let journal = directory.join("otp/journal");
        whole = fs::read(&journal).unwrap();
        fs::write(&journal, [&whole[..], b"0000000000000000 {}\n"].concat()).unwrap();
    });
    // The signature is checked by the key of the client.
    assert_eq!(verifier.status(&verifier.key.otp(1, 1), NONCE), "BACKEND_ERROR");
    assert!(verifier.server.said(&["status"]).contains("is damaged"));
    fs::write(verifier.tokens.directory.join("otp/journal"), &whole).unwrap();
    eventually("it is opened again", secs(20), || {
        (!verifier.server.said(&["status"]).contains("is damaged")).then_some(())
    });
    assert_eq!(verifier.status(&verifier.key.otp(1, 1), NONCE), "OK");
}

#[test]
fn a_locked_store_answers_with_a_signed_refusal_and_works_once_it_is_free() {
    let mut lock = None;
    let verifier = verifier_after(|directory| lock = Some(locked(directory)));
    assert_eq!(verifier.status(&verifier.key.otp(1, 1), NONCE), "BACKEND_ERROR");
    assert!(verifier.server.said(&["status"]).contains("held the lock"));
    drop(lock);
    eventually("it is opened again", secs(20), || {
        (!verifier.server.said(&["status"]).contains("held the lock")).then_some(())
    });
    assert_eq!(verifier.status(&verifier.key.otp(1, 1), NONCE), "OK");
    // Locked while it is used.
    let lock = locked(&verifier.tokens.directory);
    assert_eq!(verifier.status(&verifier.key.otp(1, 2), NONCE), "BACKEND_ERROR");
    drop(lock);
    assert_eq!(verifier.status(&verifier.key.otp(1, 2), NONCE), "OK");
}

#[test]
fn a_store_that_does_not_open_delays_no_reload_and_sends_no_otp_to_a_backend() {
    let (without, _) = CONFIG.split_once("[otp]").unwrap();
    let control = "[control]\nsocket = \"@DIR@/control.sock\"\n";
    let server = Setup::new(&format!("{without}{control}")).start();
    let directory = server.dir.path().to_owned();
    let tokens = Tokens::below(&directory);
    tokens.yubikey("cccccccccccb", None);
    tokens.said(&["client", "add", "--unsigned"], "");
    let query =
        format!("/wsapi/2.0/verify?id=1&otp={}&nonce={NONCE}", YubiKey::named("cccccccccccb").otp(1, 1));
    assert_eq!(client::get(&server.address("web"), &query).status, 502, "it is a path as any other");
    let lock = locked(&directory);
    let config = CONFIG.replace("@DIR@", directory.to_str().unwrap());
    fs::write(directory.join("penstock.toml"), config).unwrap();
    let began = Instant::now();
    let said = server.said(&["reload"]);
    // Another process may hold the lock for 5 s until that is a fault.
    assert!(began.elapsed() < secs(4), "{:?}", began.elapsed());
    assert!(said.contains("is not open yet"), "{said}");
    let answer = client::get(&server.address("web"), &query);
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("status=BACKEND_ERROR\r\n"), "{}", answer.text());
    drop(lock);
    eventually("it is opened", secs(20), || {
        client::get(&server.address("web"), &query).text().contains("status=OK\r\n").then_some(())
    });
    assert!(!server.said(&["status"]).contains("is not open yet"));
}

#[test]
fn a_reload_that_leaves_the_store_refuses_no_otp() {
    let verifier = verifier_after(|_| ());
    let config = verifier.server.dir.path().join("penstock.toml");
    let text = fs::read_to_string(&config).unwrap();
    for press in 1..20 {
        let level = format!("listeners = [\"web\"]\nsync-level = {press}\n");
        fs::write(&config, text.replace("listeners = [\"web\"]\n", &level)).unwrap();
        verifier.server.said(&["reload"]);
        assert_eq!(verifier.status(&verifier.key.otp(1, press), NONCE), "OK", "{press}");
    }
    let opened = verifier.server.stderr.count("with 1 token");
    assert_eq!(opened, 1, "it was opened once");
}

#[test]
fn a_full_disk_accepts_nothing_and_says_so_until_there_is_room() {
    if root("mounts a small file system for the store") == Root::LeftOut {
        return;
    }
    let setup = Setup::new(CONFIG);
    let directory = setup.dir().to_owned();
    fs::create_dir(directory.join("otp")).unwrap();
    let key =
        "1,cccccccccccb,0123456789ab,87fe7c2b3d4f5a6b8c9d0e1f2a3b4c5d,000000000000,2009-12-03T22:44:31,";
    let store = format!("{} otp --store \"$0/otp\" --key-file \"$0/otp.key\"", binary());
    let script = format!(
        "mount -t tmpfs -o size=64k,mode=0700 none \"$0/otp\" && {store} init && echo {key} | {store} import ksm - && \
         {store} client add --unsigned && exec \"$@\""
    );
    let server = setup.through(["unshare", "-m", "sh", "-c", &script, directory.to_str().unwrap()]).start();
    let ask = |press: u8| {
        let otp = YubiKey::named("cccccccccccb").otp(1, press);
        let query = format!("/wsapi/2.0/verify?id=1&otp={otp}&nonce={NONCE}");
        let text = client::get(&server.address("web"), &query).text();
        text.lines().find_map(|line| line.strip_prefix("status=")).unwrap().to_owned()
    };
    assert_eq!(ask(1), "OK");
    let filler = format!("/proc/{}/root{}/otp/filler", server.pid(), directory.display());
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    // The last page of the journal has room for some more lines.
    let mut statuses = (2..200).map(|press| (press, ask(press)));
    let (refused, status) = statuses.find(|(_, status)| status != "OK").unwrap();
    assert_eq!(status, "BACKEND_ERROR");
    assert_eq!(ask(refused), "BACKEND_ERROR", "and not a replay: it was not good");
    assert!(server.said(&["status"]).contains("is full: no OTP is accepted until there is room"));
    fs::write(&filler, "").unwrap();
    eventually("there is room", secs(20), || (ask(refused) == "OK").then_some(()));
    assert!(!server.said(&["status"]).contains("is full"));
    assert_eq!(ask(refused - 1), "REPLAYED_OTP");
}
