//! Moves bytes through one session as fast as it can, for `bench/ssh_bulk.py`, which compares it with OpenSSH's client.
//!
//! `bulk ADDRESS:PORT USER KEY-FILE HOST-KEY-FILE CIPHER down|up BYTES`: `down` reads what `head -c BYTES /dev/zero`
//! says there, `up` writes as much into `cat >/dev/null`.
#![allow(clippy::unwrap_used, reason = "a measurement stops at the first surprise")]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use logic::fleet::ending::{Ending, Reason};
use logic::ssh::key::PublicKey;
use ssh::{BoxFuture, Client, Event, Exec, Judge, KeyPlan, Keys, Offered, Place, Purpose, Target, Verdict};

struct Only(PublicKey);

impl Judge for Only {
    fn wanted(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn judge<'a>(&'a self, _: &'a str, _: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        let right = *offered == Offered::Key(self.0.clone());
        let refused = Verdict::Refused {
            reason: Reason::KeyChanged,
            message: "another key".to_owned(),
            advice: String::new(),
        };
        Box::pin(async move { if right { Verdict::Accepted { note: None } } else { refused } })
    }

    fn unproved(&self, _: &str, _: Vec<PublicKey>) -> Vec<PublicKey> {
        Vec::new()
    }

    fn announced(&self, _: &str, _: Vec<PublicKey>) {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [place, user, key, host_key, cipher, direction, bytes] = words.as_slice() else {
        panic!("see the head of this file");
    };
    let place: SocketAddr = place.parse().unwrap();
    let bytes: usize = bytes.parse().unwrap();
    let mut target = Target::new("bulk", user);
    target.addresses.known = vec![place.ip()];
    target.port = place.port();
    target.keys = KeyPlan::of_file(key.into());
    target.algorithms.ciphers = vec![cipher.clone()];
    target.purpose = Purpose::Bulk;
    let pin = std::fs::read_to_string(host_key).unwrap().parse().unwrap();
    let client = Client::new(Arc::new(Only(pin)), Arc::new(Keys::new()));
    let session = client.connect(&target, &|_| {}).await.unwrap();
    let mut moved = 0;
    let ending = match direction.as_str() {
        "down" => {
            let command = format!("head -c {bytes} /dev/zero");
            let mut process = session.exec(&command, &Exec::default()).await.unwrap();
            loop {
                match process.next().await.unwrap() {
                    Event::Stdout(data) => moved += data.len(),
                    Event::Ended(ending) => break ending,
                    _ => {}
                }
            }
        }
        _ => {
            let mut process = session.exec("cat >/dev/null", &Exec::default()).await.unwrap();
            let block = Bytes::from(vec![0; 256 * 1024]);
            let mut stdin = process.stdin();
            while moved < bytes {
                let now = block.slice(..block.len().min(bytes - moved));
                moved += now.len();
                stdin.write(now).await.unwrap();
            }
            stdin.finish().await.unwrap();
            loop {
                if let Event::Ended(ending) = process.next().await.unwrap() {
                    break ending;
                }
            }
        }
    };
    assert_eq!((moved, ending), (bytes, Ending::Exited(0)));
}
