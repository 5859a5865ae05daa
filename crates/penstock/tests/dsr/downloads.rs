//! Many downloads at once, and whether each stays where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use testing::{eventually, secs};

use super::network::{CLIENT, Network, Running, SERVERS, VIP, are_same, host, noise};

pub(crate) const MANY: usize = 200;

/// Bytes of each. The servers give 90 kB a second: slow enough for a few restarts.
const PART: usize = 4_000_000;

/// Ports of the client by the server that has the connection.
pub(crate) type Places = BTreeMap<usize, BTreeSet<String>>;

pub(crate) struct Downloads<'a> {
    network: &'a Network,
    curl: Running,
    before: Places,
    said: PathBuf,
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
        let (to, said) = (directory.join("part#1").display().to_string(), directory.join("said"));
        let url = format!("http://{}/part?[1-{MANY}]", host(vip));
        let words = ["curl", "--no-progress-meter", "--parallel", "--parallel-immediate", "--parallel-max"];
        let count = MANY.to_string();
        let more = [&count, "-f", "-m", "300", "--noproxy", "*", "-o", &to];
        let last = ["-w", "%{http_code} %{size_download} %{num_connects}\n", &url];
        let mut command = network.command(CLIENT, &[&words[..], &more, &last].concat());
        command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null());
        let curl = Running(command.spawn().unwrap());
        let before = eventually("all downloads have begun", secs(60), || {
            let places = places(network, vip);
            let begun = |number: usize| {
                fs::metadata(directory.join(format!("part{number}"))).is_ok_and(|it| it.len() > 0)
            };
            (places.values().map(BTreeSet::len).sum::<usize>() == MANY && (1..=MANY).all(begun))
                .then_some(places)
        });
        assert!(before.values().all(|ports| ports.len() > MANY / 5), "both have many: {before:?}");
        Self { network, curl, before, said, vip }
    }

    /// Every connection is still there, on the server that it began on.
    #[track_caller]
    pub(crate) fn assert_all_run_where_they_began(&self) {
        assert_eq!(places(self.network, self.vip), self.before);
    }

    /// Waits for the last one.
    #[track_caller]
    pub(crate) fn assert_all_end_whole(mut self) {
        eventually("the downloads end", secs(250), || self.curl.0.try_wait().unwrap());
        let said = fs::read_to_string(&self.said).unwrap();
        let whole = format!("200 {PART} 1");
        assert_eq!(said.lines().filter(|line| **line == whole).count(), MANY, "{said}");
        let part = noise(PART);
        for number in 1..=MANY {
            let file = self.network.directory.path().join(format!("part{number}"));
            assert!(fs::read(&file).unwrap() == part, "{number}");
            fs::remove_file(file).unwrap();
        }
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
