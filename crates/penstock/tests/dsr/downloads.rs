//! Many downloads at once, and whether each stays where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use testing::{eventually, secs};

use super::network::{CLIENT, Network, Running, SERVERS, VIP, are_same, host, noise};

pub(crate) const MANY: usize = 200;

/// Bytes of each: more than the client takes in minutes, and than the buffers of both sides hold.
const PART: usize = 4_000_000;

/// Downloads at once: address, their number, a file with what the server has, and one that is not there yet. Until it is, each
/// takes a few kB a second, and none ends; then they go on to their ends. Prints `begun` once each has begun, and what becomes
/// of each.
const CLIENT_OF_MANY: &str = r#"
import os, socket, sys, time
address, count, expected, go = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "rb").read(), sys.argv[4]
class Download:
    def __init__(self):
        self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        self.socket.settimeout(120)
        self.socket.connect((address, 80))
        self.socket.sendall(b"GET /part HTTP/1.1\r\nHost: x\r\n\r\n")
        self.head, self.taken = b"", 0
        while b"\r\n\r\n" not in self.head:
            byte = self.socket.recv(1)
            assert byte, self.head
            self.head += byte
        assert self.head.startswith(b"HTTP/1.1 200 ") and b"Content-Length: %d\r\n" % len(expected) in self.head, self.head
        self.socket.setblocking(False)
    def take(self, most):
        try:
            data = self.socket.recv(most)
        except BlockingIOError:
            return None
        except OSError as error:
            return f"{error} after {self.taken}"
        if not data or data != expected[self.taken:self.taken + len(data)]:
            return f"{len(data)} bytes that are not those after {self.taken}"
        self.taken += len(data)
        return "whole" if self.taken == len(expected) else None
running, has_begun = [Download() for _ in range(count)], False
while running:
    is_free = os.path.exists(go)
    for one in list(running):
        if said := one.take(1 << 20 if is_free else 1000):
            print(said, flush=True)
            running.remove(one)
    if not has_begun and all(one.taken for one in running):
        has_begun = True
        print("begun", flush=True)
    time.sleep(0.001 if is_free else 0.05)
"#;

/// Ports of the client by the server that has the connection.
pub(crate) type Places = BTreeMap<usize, BTreeSet<String>>;

pub(crate) struct Downloads<'a> {
    network: &'a Network,
    client: Running,
    before: Places,
    said: PathBuf,
    go: PathBuf,
    vip: &'a str,
}

impl<'a> Downloads<'a> {
    /// Waits until all have begun.
    pub(crate) fn begin(network: &'a Network) -> Self {
        Self::begin_at(network, VIP)
    }

    /// The same from another address.
    pub(crate) fn begin_at(network: &'a Network, vip: &'a str) -> Self {
        let directory = network.directory.path();
        for server in SERVERS {
            fs::write(network.root(server).join("part"), noise(PART)).unwrap();
        }
        let (said, go) = (directory.join("said"), directory.join("go"));
        let part = network.root(SERVERS[0]).join("part").display().to_string();
        let words = ["python3", "-c", CLIENT_OF_MANY, vip, &MANY.to_string(), &part, go.to_str().unwrap()];
        let mut command = network.command(CLIENT, &words);
        command.stdout(fs::File::create(&said).unwrap());
        let client = Running(command.spawn().unwrap());
        let before = eventually("all downloads have begun", secs(60), || {
            fs::read_to_string(&said).unwrap().starts_with("begun").then(|| places(network, vip))
        });
        assert_eq!(before.values().map(BTreeSet::len).sum::<usize>(), MANY, "{before:?}");
        assert!(before.values().all(|ports| ports.len() > MANY / 5), "both have many: {before:?}");
        Self { network, client, before, said, go, vip }
    }

    /// Every connection is still there, on the server that it began on.
    #[track_caller]
    pub(crate) fn assert_all_run_where_they_began(&self) {
        assert_eq!(places(self.network, self.vip), self.before);
    }

    /// Lets them end, and waits for the last one.
    #[track_caller]
    pub(crate) fn assert_all_end_whole(mut self) {
        fs::write(&self.go, "").unwrap();
        eventually("the downloads end", secs(250), || self.client.0.try_wait().unwrap());
        let said = fs::read_to_string(&self.said).unwrap();
        assert_eq!(said.lines().filter(|line| *line == "whole").count(), MANY, "{said}");
        fs::remove_file(&self.go).unwrap();
    }
}

/// Connections of the client, as the servers see them.
fn places(network: &Network, vip: &str) -> Places {
    let client = if vip.contains(':') { "[fd77::12]".to_owned() } else { network.address(CLIENT) };
    let filter = ["src", &host(vip), "dst", &client];
    let of = |server| {
        let listed = network.run(server, &[&["ss", "-Htn", "state", "established"][..], &filter].concat());
        let port = |line: &str| Some(line.split_whitespace().nth(3)?.rsplit_once(':')?.1.to_owned());
        (server, listed.lines().filter_map(port).collect())
    };
    SERVERS.map(of).into()
}

/// Six downloads of the large file, which is compared byte by byte.
pub(crate) struct LargeDownloads<'a> {
    network: &'a Network,
    curls: Vec<Running>,
}

impl<'a> LargeDownloads<'a> {
    /// Waits until all have begun. `rate` is curl's `--limit-rate`.
    pub(crate) fn begin(network: &'a Network, rate: &str) -> Self {
        let url = format!("http://{VIP}/large");
        let start = |number: usize| {
            let file = large(network, number).display().to_string();
            let words =
                ["curl", "-sf", "-m", "200", "--limit-rate", rate, "--noproxy", "*", "-o", &file, &url];
            Running(network.command(CLIENT, &words).stderr(Stdio::null()).spawn().unwrap())
        };
        let curls: Vec<_> = (0..6).map(start).collect();
        eventually("all have begun", secs(20), || {
            let has_begun = |number| fs::metadata(large(network, number)).is_ok_and(|file| file.len() > 0);
            (0..curls.len()).all(has_begun).then_some(())
        });
        Self { network, curls }
    }

    /// Waits for the last one.
    #[track_caller]
    pub(crate) fn assert_all_end_whole(mut self) {
        let original = self.network.directory.path().join("large");
        for (number, curl) in self.curls.iter_mut().enumerate() {
            assert!(curl.0.wait().unwrap().success(), "{number}");
            assert!(are_same(&large(self.network, number), &original), "{number}");
        }
    }
}

fn large(network: &Network, number: usize) -> PathBuf {
    network.directory.path().join(format!("large{number}"))
}
