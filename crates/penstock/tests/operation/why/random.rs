//! Random lives of a server: before each request it is asked what would happen, and then it happens. Access lists, pools for
//! those whom they deny, fallbacks, drained backends and weights change in between; all by seeds.

use testing::client::{Stream, request};
use testing::{Client, Scripted, Server, attack, secs};

use super::{START, asked, named, settle, url};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, range: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % range as u64) as usize
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const SOURCES: [&str; 4] = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"];
const PATHS: [&str; 4] = ["/", "/one", "/two", "/three"];

fn start(backends: &[Scripted], random: &mut Random) -> Server {
    let address = |at: usize| &backends[at].address;
    let mut policy = || random.one_of(&["round-robin", "hash", "maglev", "sticky", "least-connections"]);
    let pools = format!(
        "[pool.app]\nbalance = \"{}\"\nbackends = [\"{}\", {{ address = \"{}\", acl = \"some\" }}]\nfallback = \"two\"\n\
         [pool.two]\nbalance = \"{}\"\nbackends = [\"{}\", {{ address = \"{}\", priority = 2 }}]\nwhen-all-down = \"error-page\"\n\
         [pool.sorry]\nbackends = [\"{}\"]\n",
        policy(),
        address(0),
        address(1),
        policy(),
        address(2),
        address(3),
        address(4)
    );
    Server::start(&format!(
        "{START}[process]\nworkers = 1\n[acl.door]\nentries = []\ndefault = \"permit\"\n[acl.some]\nentries = []\ndefault = \"permit\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nacl = \"door\"\n\
         [[listener.web.route]]\npath = \"/one\"\npool = \"app\"\nacl = \"some\"\n\
         [[listener.web.route]]\npath = \"/two\"\npool = \"two\"\n\
         [[listener.web.route]]\npath = \"/three\"\nmethod = \"POST\"\npool = \"sorry\"\n{pools}"
    ))
}

/// Changes something; the server may refuse it, for example what is there already.
fn change(server: &Server, backends: &[Scripted], random: &mut Random) -> String {
    let entry = format!("deny {}", random.one_of(&SOURCES));
    let list = random.one_of(&["acl.door.entries", "acl.some.entries"]);
    let backend = backends[random.below(4)].address.as_str();
    let words: &[&str] = match random.below(11) {
        0 | 1 => &["add", list, &entry],
        2 | 3 => &["remove", list, &entry],
        4 | 5 => &["drain", backend],
        6 | 7 => &["ready", backend],
        8 => &["weight", backend, random.one_of(&["0", "1", "3", "default"])],
        9 => &["set", "listener.web.denied-pool", "sorry"],
        _ => &["remove", "listener.web.denied-pool"],
    };
    server.ctl(words);
    words.join(" ")
}

/// What a client gets: the answer of a backend, a status, or nothing.
fn got(server: &Server, source: &str, path: &str) -> String {
    let stream = attack::connect_from(source, &server.address("web")).unwrap();
    let mut client = Client::over(Stream::Tcp(stream));
    let _ = client.try_send(request("GET", path, &[("Connection", "close")], b""));
    match client.try_response(secs(10)) {
        Ok(answer) if answer.status == 200 => answer.text(),
        Ok(answer) => answer.status.to_string(),
        Err(_) => "nothing".to_owned(),
    }
}

#[test]
fn what_why_says_is_what_the_next_request_gets_over_random_lives() {
    let backends = named(5);
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..6 {
        let mut random = Random(seed);
        let server = start(&backends, &mut random);
        let mut changes = Vec::new();
        for _ in 0..40 {
            changes.push(change(&server, &backends, &mut random));
            settle(&server);
            let (source, path) = (random.one_of(&SOURCES), random.one_of(&PATHS));
            let answer = asked(&server, &["--from", source, &url(&server, path)]);
            let result = &answer["result"];
            let outcome = result["outcome"].as_str().unwrap().to_owned();
            let expected = match (outcome.as_str(), result["status"].as_u64()) {
                ("backend", _) => {
                    let backend = result["backend"].as_str().unwrap();
                    backends.iter().position(|one| one.address == backend).unwrap().to_string()
                }
                (_, Some(status)) => status.to_string(),
                _ => "nothing".to_owned(),
            };
            let gets = got(&server, source, path);
            assert_eq!(gets, expected, "seed {seed}, {source} {path} after {changes:?}: {answer:#}");
            let fate = answer["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap());
            *seen.entry(fate.chain([outcome.as_str()]).collect::<Vec<_>>().join(" ")).or_insert(0) += 1;
        }
    }
    for part in [
        "denied",
        "denied pool backend",
        "denied refused",
        "route fallback pool",
        "no-backend",
        "route pool backend",
    ] {
        let is_met = seen.keys().any(|fate: &String| fate.contains(part));
        assert!(is_met, "no {part:?} in {seen:#?}");
    }
}
