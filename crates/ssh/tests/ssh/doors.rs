//! All doors come to one verdict: 10,000 cases with a seed. A world is some files of hosts, authorities and revoked keys; a case
//! is a name, a port, and what a server shows there. Each door is asked by the function that its command calls.
//! `PENSTOCK_SEED=N` repeats a run. Real servers and programs: `crates/penstock/tests/hosts/promises.rs`.

use std::fmt::Write as _;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use fastrand::Rng;
use hosts::fleet::ending::Ending;
use hosts::fleet::openssh::{Log, Refusal, StderrReader};
use hosts::identity::{KnownHosts, Marker, Offered as Shown, Verdict, lines_about};
use hosts::ssh::key::PublicKey;
use ssh::identity::{Anchor, Answer, Asked, Dns, Identities, Places, Store, now, shown};
use ssh::{HostVerifier as _, Offered, Place};

const WORLDS: usize = 200;
const CASES_OF_A_WORLD: usize = 50;

/// Files that a host can have.
const FILES: [&str; 5] = ["web1", "db1", "gate", "[web1]:2222", "old"];
/// Names that are asked for.
const NAMES: [&str; 8] = ["web1", "db1", "gate", "old", "www", "stranger", "10.0.0.7", "WEB1"];

#[tokio::test]
async fn every_door_comes_to_the_verdict_of_run_in_10_000_cases() {
    let seed = std::env::var("PENSTOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("PENSTOCK_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let cast = Cast::new(&mut rng);
    // A name server that answers at once, and vouches for no host.
    let refuses = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = refuses.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut packet = [0; 4096];
        while let Ok((length, from)) = refuses.recv_from(&mut packet) {
            let mut answer = packet[..length].to_vec();
            // An answer (RFC 1035 section 4.1.1): refused.
            (answer[2], answer[3]) = (answer[2] | 0x80, 5);
            let _ = refuses.send_to(&answer, from);
        }
    });
    let dns = Dns::new(&Anchor::Root, Some(server)).unwrap();
    let mut counts = Counts::default();
    for number in 0..WORLDS {
        // What a door records is brought to the disk; no case here needs that.
        let directory = testing::memory::directory();
        let world = World::new(&mut rng, &cast, directory.path());
        for _ in 0..CASES_OF_A_WORLD {
            let case = Case::new(&mut rng, &cast, &world);
            let told = || format!("PENSTOCK_SEED={seed} world {number}: {case:?}\n{}", world.text);
            compare(&world, &case, &dns, &mut counts, &told).await;
        }
    }
    println!("{counts:?}");
    // Cases that say nothing prove nothing.
    let Counts { accepted, refused, quick, certificates, unasked } = counts;
    assert_eq!(accepted + refused, WORLDS * CASES_OF_A_WORLD);
    assert!(
        accepted > 800 && refused > 2000 && quick > 400 && certificates > 100 && unasked > 1000,
        "{counts:?}"
    );
}

#[derive(Debug, Default)]
struct Counts {
    accepted: usize,
    refused: usize,
    /// Accepted by one file.
    quick: usize,
    /// Accepted for a certificate.
    certificates: usize,
    /// Lines that were printed before anything was shown.
    unasked: usize,
}

/// A verdict as every door tells it.
#[derive(Debug, PartialEq, Eq)]
enum RunResult {
    Accepted,
    Refused(String, String, String),
}

impl RunResult {
    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Accepted { .. } => Self::Accepted,
            Verdict::Refused { reason, message, advice } => {
                Self::Refused(reason.to_string(), message.clone(), advice.clone())
            }
        }
    }
}

async fn compare(world: &World, case: &Case, dns: &Dns, counts: &mut Counts, told: &dyn Fn() -> String) {
    let store = &world.store;
    let load = || Identities::load(store.clone()).unwrap().with_dns(dns.clone());
    let blob = &case.blob;
    // `penstock run` and `penstock tunnel`.
    let place = Place::Command { port: case.port };
    let offered = match case.is_certificate {
        true => Offered::Certificate(blob.clone()),
        false => Offered::Key(blob.clone()),
    };
    let identities = load();
    let run = identities.judge(case.name, &place, &offered).await;
    let run = RunResult::of(&run);
    // `penstock host why`.
    let why = identities.decision(case.name, None, case.port, &shown(blob)).await;
    assert_eq!(RunResult::of(&why.verdict), run, "host why: {}", told());
    let index = identities.index();
    assert!(!world.must_be_refused(case) || run != RunResult::Accepted, "accepted: {}", told());

    // `penstock known-hosts`, as `ssh` asks it.
    let pattern = "[192.0.2.1]:2222";
    let name = case.name.to_ascii_lowercase();
    let asked = Asked { name: &name, port: case.port, pattern, shown: Some(blob) };
    let quick = store.known_hosts_quickly(&asked).unwrap();
    counts.quick += usize::from(quick.is_some());
    let answer = match quick {
        Some(lines) => Answer::Lines(lines),
        None => load().known_hosts(&asked).await.0,
    };
    let known_hosts = match &answer {
        Answer::Lines(lines) => {
            // Both a strict and a lax `ssh` believe a key that has a line, and no line is there for anything else.
            let read = KnownHosts::parse(&lines.join("\n"));
            let key = shown(blob).key().clone();
            let [line] = read.lines.as_slice() else { panic!("{lines:?}: {}", told()) };
            assert!(
                line.marker == Marker::None && line.key == key && line.names.matches(pattern),
                "{lines:?}"
            );
            RunResult::Accepted
        }
        Answer::Refused { decision, .. } => RunResult::of(&decision.verdict),
    };
    let lower = |told: &RunResult| format!("{told:?}").to_ascii_lowercase();
    assert_eq!(lower(&known_hosts), lower(&run), "known-hosts: {}", told());
    // `--engine openssh`, which hears from `known-hosts` through `ssh`.
    if let Answer::Refused { decision, .. } = &answer
        && let Verdict::Refused { reason, message, advice } = &decision.verdict
    {
        let refusal = Refusal { reason: *reason, message: message.clone(), advice: advice.clone() };
        let mut said = format!("noise\n{}more noise\n", refusal.said(StderrReader::Engine)).into_bytes();
        let mut log = Log::default();
        log.refuse(Refusal::take(&mut said).unwrap_or_else(|| panic!("{}", told())));
        let Ending::Failed(failure) = log.ending(Some(255), None) else { panic!("{}", told()) };
        let heard = (failure.reason, failure.detail, failure.advice);
        let short = |text: &str| text::terminal::escaped(text, 600);
        assert_eq!(heard, (*reason, short(message), Some(short(advice))), "engine: {}", told());
    }

    // Before anything was shown: the few files say what all say, and no line is of a key that would be refused.
    let unasked = Asked { shown: None, ..asked };
    let all = lines_about(index, &name, case.port, pattern);
    if let Some(lines) = store.known_hosts_quickly(&unasked).unwrap() {
        assert_eq!(lines, all, "one file: {}", told());
    }
    for line in KnownHosts::parse(&all.join("\n")).lines.iter().filter(|line| line.marker == Marker::None) {
        let decision = load().decision(&name, None, case.port, &Shown::Key(line.key.clone())).await;
        assert_eq!(RunResult::of(&decision.verdict), RunResult::Accepted, "{line:?}: {}", told());
        counts.unasked += 1;
    }
    match run {
        RunResult::Accepted => {
            counts.accepted += 1;
            counts.certificates += usize::from(case.is_certificate);
        }
        RunResult::Refused(..) => counts.refused += 1,
    }
}

/// The keys of all worlds.
struct Cast {
    keys: Vec<PublicKey>,
    authorities: Vec<Ed25519KeyPair>,
}

impl Cast {
    fn new(rng: &mut Rng) -> Self {
        let mut keys: Vec<PublicKey> = (0..5).map(|_| ed25519(&bytes::<32>(rng))).collect();
        // A weaker type, and the weakest.
        let point = [&[4][..], &bytes::<64>(rng)].concat();
        keys.push(key_of(&["ecdsa-sha2-nistp256".as_bytes(), b"nistp256", &point]));
        let modulus = [&[0, 0xC1][..], &bytes::<254>(rng), &[1]].concat();
        keys.push(key_of(&[b"ssh-rsa", &[1, 0, 1], &modulus]));
        let authorities = (0..3).map(|_| Ed25519KeyPair::from_seed_unchecked(&bytes::<32>(rng)).unwrap());
        Self { keys, authorities: authorities.collect() }
    }

    fn key(&self, rng: &mut Rng) -> &PublicKey {
        &self.keys[rng.usize(..self.keys.len())]
    }

    /// The third one counts for no host.
    fn authority(&self, at: usize) -> PublicKey {
        ed25519(self.authorities[at].public_key().as_ref())
    }
}

struct World {
    store: Store,
    /// Everything in it, for a message.
    text: String,
    listed: Vec<PublicKey>,
    /// Who has which key, by the name of the file.
    pins: Vec<(&'static str, PublicKey)>,
}

impl World {
    fn new(rng: &mut Rng, cast: &Cast, home: &Path) -> Self {
        let places = Places { configuration: home.join("config"), state: home.join("state") };
        let (mut text, mut pins) = (String::new(), Vec::new());
        let mut file = |path: &Path, content: String| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = write!(text, "--- {}\n{content}", path.display());
            fs::write(path, content).unwrap();
        };
        let line = |key: &PublicKey| format!("{key} {}", key.fingerprint());
        for name in FILES {
            if rng.u8(..100) < 25 {
                continue;
            }
            let mut content = format!("id {name}\n");
            let mut add = |chance: u8, rng: &mut Rng, line: String| {
                if rng.u8(..100) < chance {
                    content.push_str(&line);
                    content.push('\n');
                }
            };
            for _ in 0..rng.usize(..4) {
                let from = ["console", "first-use"][rng.usize(..2)];
                let key = cast.key(rng);
                pins.push((name, key.clone()));
                let pin = format!("pin {} from={from} 2026-03-01", line(key));
                add(90, rng, pin);
            }
            let retired = format!("retired {} 2026-11-02", line(cast.key(rng)));
            add(25, rng, retired);
            let revoked = format!("revoked {} 2026-11-03", line(cast.key(rng)));
            add(20, rng, revoked);
            let revoked = format!("revoked {} 2026-11-03", line(&cast.authority(rng.usize(..2))));
            add(8, rng, revoked);
            let own =
                format!("ca {} {} principals=web1,db1", cast.authority(1), cast.authority(1).fingerprint());
            add(20, rng, own);
            add(10, rng, "ca @fleet".to_owned());
            add(2, rng, "ca @missing principals=web1".to_owned());
            add(15, rng, "sshfp require-secure".to_owned());
            let port = ["", "  port=2222"][rng.usize(..2)];
            add(50, rng, format!("addr 10.0.0.7{port}"));
            let alias = ["www", "[web1]:2222", "[db1]:2222", "www old"][rng.usize(..4)];
            add(25, rng, format!("alias {alias}"));
            add(5, rng, "retired 2026-11-05".to_owned());
            add(4, rng, "pin ssh-ed25519 AAAA".to_owned());
            file(&places.hosts().join(format!("{name}.host")), content);
        }
        if rng.u8(..100) < 50 {
            let names = ["names web*,db1\n", "names *,!gate\n", ""][rng.usize(..3)];
            let content = format!("id fleet\n{names}ca {}\n", cast.authority(0));
            file(&places.authorities().join("fleet.ca"), content);
        }
        if rng.u8(..100) < 5 {
            file(&places.authorities().join("broken.ca"), "id broken\n".to_owned());
        }
        let mut listed: Vec<PublicKey> = Vec::new();
        while rng.u8(..100) < 35 {
            listed.push(match rng.u8(..4) {
                0 => cast.authority(rng.usize(..2)),
                _ => cast.key(rng).clone(),
            });
        }
        if !listed.is_empty() {
            let lines: String = listed.iter().map(|key| format!("{key}\n")).collect();
            file(&places.revoked(), format!("# revoked\n\n{lines}"));
        }
        Self { store: Store::new(places), text, listed, pins }
    }

    /// What can be said of a case without the table of decisions.
    fn must_be_refused(&self, case: &Case) -> bool {
        let is_listed = |key: &PublicKey| self.listed.contains(key);
        case.fault == Some(Fault::Cut)
            || is_listed(&case.key)
            || case.authority.as_ref().is_some_and(is_listed)
    }
}

/// What is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Expired,
    NotYet,
    Stranger,
    ForUsers,
    OtherName,
    NoName,
    Critical,
    Signature,
    Cut,
}

#[derive(Debug)]
struct Case {
    name: &'static str,
    port: u16,
    blob: PublicKey,
    is_certificate: bool,
    key: PublicKey,
    authority: Option<PublicKey>,
    fault: Option<Fault>,
}

impl Case {
    fn new(rng: &mut Rng, cast: &Cast, world: &World) -> Self {
        use Fault::{Critical, Cut, Expired, ForUsers, NoName, NotYet, OtherName, Signature, Stranger};
        let good = Fault::None;
        let name = NAMES[rng.usize(..NAMES.len())];
        let port = if rng.bool() { 22 } else { 2222 };
        if rng.u8(..100) < 50 {
            let of_name = |pins: &&(&str, PublicKey)| pins.0.eq_ignore_ascii_case(name);
            let pinned = world.pins.iter().rfind(of_name).filter(|_| rng.bool());
            let key = pinned.map_or_else(|| cast.key(rng), |(_, key)| key).clone();
            let (blob, authority, fault) = (key.clone(), None, None);
            return Self { name, port, blob, is_certificate: false, key, authority, fault };
        }
        let faults = [
            good, good, good, good, Expired, NotYet, Stranger, ForUsers, OtherName, NoName, Critical,
            Signature, Cut,
        ];
        let fault = faults[rng.usize(..faults.len())];
        // Only Ed25519 keys are put into certificates here.
        let key = cast.keys[rng.usize(..5)].clone();
        let by = if fault == Stranger { 2 } else { rng.usize(..2) };
        let blob = certificate(rng, &key, &cast.authorities[by], fault, name);
        let authority = Some(cast.authority(by));
        Self { name, port, blob, is_certificate: true, key, authority, fault: Some(fault) }
    }
}

/// OpenSSH's PROTOCOL.certkeys, section "New public key formats".
fn certificate(rng: &mut Rng, key: &PublicKey, by: &Ed25519KeyPair, fault: Fault, name: &str) -> PublicKey {
    let (day, now) = (86_400, now().0);
    let (after, before) = match fault {
        Fault::Expired => (now - 3 * day, now - day),
        Fault::NotYet => (now + day, now + 3 * day),
        _ => (now - day, [now + day, u64::MAX][rng.usize(..2)]),
    };
    let name = if fault == Fault::OtherName { "elsewhere" } else { name };
    let principals = match fault {
        Fault::NoName => Vec::new(),
        _ => [string(name.as_bytes()), string(b"web1.example.com")].concat(),
    };
    let critical = match fault {
        Fault::Critical => [string(b"strange"), string(b"")].concat(),
        _ => Vec::new(),
    };
    let mut blob = [
        string(b"ssh-ed25519-cert-v01@openssh.com"),
        string(&bytes::<32>(rng)),
        string(&key.blob()[key.blob().len() - 32..]),
        7_u64.to_be_bytes().to_vec(),
        u32::from(fault != Fault::ForUsers).wrapping_add(1).to_be_bytes().to_vec(),
        string(b"made by a test"),
        string(&principals),
        after.to_be_bytes().to_vec(),
        before.to_be_bytes().to_vec(),
        string(&critical),
        string(b""),
        string(b""),
        string(ed25519(by.public_key().as_ref()).blob()),
    ]
    .concat();
    let mut signature = by.sign(&blob).as_ref().to_vec();
    if fault == Fault::Signature {
        signature[rng.usize(..64)] ^= 1;
    }
    blob.extend(string(&[string(b"ssh-ed25519"), string(&signature)].concat()));
    if fault == Fault::Cut {
        blob.truncate(rng.usize(40..blob.len()));
    }
    PublicKey::from_blob(&blob).unwrap()
}

fn bytes<const N: usize>(rng: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| rng.u8(..))
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn key_of(fields: &[&[u8]]) -> PublicKey {
    PublicKey::from_blob(&fields.iter().flat_map(|field| string(field)).collect::<Vec<u8>>()).unwrap()
}

fn ed25519(point: &[u8]) -> PublicKey {
    key_of(&[b"ssh-ed25519", point])
}
