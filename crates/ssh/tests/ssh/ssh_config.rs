//! What we make of `ssh_config`, against OpenSSH: `ssh -G` says what holds for each of many configurations, and we must
//! say the same, or refuse what it refuses.
//!
//! `ssh_config/cases.txt` holds one case for each rule and trap; others are composed from a seed. OpenSSH takes the home
//! directory from the system and not from HOME (but for what it includes): so do the cases, which use whole paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use hosts::ssh::config::{Asked, Known, KnownAlgorithms, Local};
use ssh::{ConfigFiles, SshConfig};
use tempfile::TempDir;

#[test]
fn every_case_means_to_us_what_it_means_to_openssh() {
    compare(&written());
}

#[test]
fn configurations_composed_at_random_mean_to_us_what_they_mean_to_openssh() {
    let seed = std::env::var("PENSTOCK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    compare(&composed(seed, 150));
}

/// One configuration and one host.
struct Case {
    name: String,
    host: String,
    port: Option<u16>,
    /// HOME is the directory of the case.
    own_home: bool,
    /// Name, text, mode. The first one is given to `-F`.
    files: Vec<(String, String, u32)>,
}

impl Case {
    fn show(&self) -> String {
        let mut text = format!("--- {} (host {})\n", self.name, self.host);
        for (name, content, _) in &self.files {
            let _ = writeln!(text, "[{name}]\n{content}");
        }
        text
    }
}

fn compare(cases: &[Case]) {
    let known = catalogue();
    let (mut agreed, mut refused, mut report) = (0, 0, String::new());
    for case in cases {
        match differences(case, &known) {
            Ok(Agreement::Accepted) => agreed += 1,
            Ok(Agreement::Refused) => refused += 1,
            Err(why) => {
                let _ = writeln!(report, "{}{why}\n", case.show());
            }
        }
    }
    println!("{} cases: {agreed} mean the same, {refused} are refused by both", cases.len());
    assert!(report.is_empty(), "{report}{agreed} agreed, {refused} refused by both, of {}", cases.len());
}

enum Agreement {
    Accepted,
    Refused,
}

/// Runs both, and says what differs.
fn differences(case: &Case, known: &KnownAlgorithms) -> Result<Agreement, String> {
    let dir = TempDir::new().unwrap();
    let system = system_user();
    let home = if case.own_home { dir.path().to_str().unwrap().to_owned() } else { system.home.clone() };
    let place =
        |text: &str| text.replace("%DIR%", dir.path().to_str().unwrap()).replace("%ME%", &system.user);
    for (name, content, mode) in &case.files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, place(content)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
    }
    let file = dir.path().join(&case.files[0].0);
    let theirs = openssh(case, &file, &home);

    let asked = Asked { port: case.port, ..Asked::parse(&case.host).unwrap() };
    let config = SshConfig::of(&ConfigFiles::Only(file), Local { home, ..system }, known.clone());
    let ours = config.resolve(&asked);
    assert!(!dir.path().join("never").exists(), "{}: a command ran that must not", case.name);
    match (theirs, ours) {
        (Ok(mut theirs), Ok(ours)) => {
            let mut lines = ours.like_ssh().to_vec();
            if case.own_home {
                theirs.remove("userknownhostsfile");
                lines.retain(|(keyword, _)| *keyword != "userknownhostsfile");
            }
            // OpenSSH lists forwards to a socket twice, the second time as dynamic ones.
            if theirs.get("localforward").is_some_and(|all| all.iter().any(|one| one.contains('/'))) {
                theirs.remove("dynamicforward");
            }
            same(&theirs, &lines).map(|()| Agreement::Accepted)
        }
        (Err(_), Err(_)) => Ok(Agreement::Refused),
        (Ok(_), Err(faults)) => Err(format!("we refuse it, OpenSSH does not: {faults}")),
        (Err(why), Ok(_)) => Err(format!("OpenSSH refuses it, we do not: {why}")),
    }
}

type Settings = BTreeMap<String, Vec<String>>;

fn openssh(case: &Case, file: &Path, home: &str) -> Result<Settings, String> {
    let mut command = Command::new("ssh");
    command.arg("-G").arg("-F").arg(file);
    if let Some(port) = case.port {
        command.arg("-p").arg(port.to_string());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.arg(&case.host).env_clear().env("PATH", path).env("HOME", home);
    // Cases use this variable, which Cargo sets for us.
    command.env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"));
    let output = command.stdin(Stdio::null()).output().expect("ssh is missing: run `make setup`");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(settings(&String::from_utf8_lossy(&output.stdout)))
}

fn settings(text: &str) -> Settings {
    let mut all = Settings::new();
    for line in text.lines() {
        let (keyword, value) = line.split_once(' ').unwrap_or((line, ""));
        all.entry(keyword.to_ascii_lowercase()).or_default().push(value.to_owned());
    }
    all
}

fn same(theirs: &Settings, ours: &[(&'static str, String)]) -> Result<(), String> {
    let mut mine = Settings::new();
    for (keyword, value) in ours {
        mine.entry((*keyword).to_owned()).or_default().push(value.clone());
    }
    let mut report = String::new();
    let keywords: BTreeSet<&String> = theirs.keys().chain(mine.keys()).collect();
    for keyword in keywords {
        let (their, our) = (theirs.get(keyword), mine.get(keyword));
        let by_build = BY_BUILD.iter().any(|name| name == keyword) && our.is_none();
        let debian = keyword == "serveraliveinterval"
            && theirs["batchmode"] == ["yes"]
            && their.is_some_and(|value| value == &["300"]);
        if their != our && !by_build && !debian && !NOT_SHOWN.contains(&keyword.as_str()) {
            let _ = writeln!(report, "{keyword}: OpenSSH {their:?}, we {our:?}");
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}

/// What holds by itself depends on how OpenSSH was built. What is configured is compared.
const BY_BUILD: &[&str] = &[
    "identityfile",
    "forwardx11trusted",
    "xauthlocation",
    "gssapiauthentication",
    "gssapidelegatecredentials",
    "gssapikeyexchange",
    "gssapikexalgorithms",
    "gssapirenewalforcesrekey",
    "gssapitrustdns",
    "channeltimeout",
    "logverbose",
    "obscurekeystroketiming",
    "warnweakcrypto",
    "versionaddendum",
    "tag",
];

/// Written in words of its own by OpenSSH, and without any meaning for us: only their syntax is compared.
const NOT_SHOWN: &[&str] = &["ipqos", "escapechar"];

/// What this machine's OpenSSH knows.
fn catalogue() -> KnownAlgorithms {
    let list = |what: &str| {
        let output =
            Command::new("ssh").args(["-Q", what]).output().expect("ssh is missing: run `make setup`");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let output =
        Command::new("ssh").args(["-G", "-F", "/dev/null", "x"]).stdin(Stdio::null()).output().unwrap();
    let usual = settings(&String::from_utf8(output.stdout).unwrap());
    let known = |what: &str, keyword: &str| Known {
        all: list(what),
        default: usual[keyword][0].split(',').map(str::to_owned).collect(),
    };
    KnownAlgorithms {
        ciphers: known("cipher", "ciphers"),
        macs: known("mac", "macs"),
        kex: known("kex", "kexalgorithms"),
        keys: known("HostKeyAlgorithms", "hostkeyalgorithms"),
        signatures: known("sig", "casignaturealgorithms"),
    }
}

/// As OpenSSH sees the user: HOME does not count.
fn system_user() -> Local {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap();
    let home = user.dir.to_str().unwrap().to_owned();
    Local { home, ..SshConfig::current_user().unwrap() }
}

fn written() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("ssh_config/cases.txt").lines() {
        if let Some(head) = line.strip_prefix("=== ") {
            let mut parts = head.split(" :: ");
            let mut case = Case {
                name: parts.next().unwrap().to_owned(),
                host: parts.next().unwrap().to_owned(),
                port: None,
                own_home: false,
                files: vec![("config".to_owned(), String::new(), 0o600)],
            };
            for part in parts {
                match part.strip_prefix("port=") {
                    Some(port) => case.port = Some(port.parse().unwrap()),
                    None => case.own_home = true,
                }
            }
            cases.push(case);
            continue;
        }
        let files = &mut cases.last_mut().unwrap().files;
        if let Some(name) = line.strip_prefix("--- ") {
            let (name, mode) = match name.rsplit_once(' ') {
                Some((before, mode)) if mode.len() == 3 => (before, u32::from_str_radix(mode, 8).unwrap()),
                _ => (name, 0o600),
            };
            files.push((name.to_owned(), String::new(), mode));
            continue;
        }
        let text = &mut files.last_mut().unwrap().1;
        let end = if line.ends_with("%NONL%") { "" } else { "\n" };
        let line = line.replace("%NONL%", "").replace("%CR%", "\r").replace("%FF%", "\u{c}");
        text.push_str(&line);
        text.push_str(end);
    }
    cases
}

/// Configurations composed at random: blocks, includes, settings good and bad, in every way of writing.
fn composed(seed: u64, count: usize) -> Vec<Case> {
    let mut random = fastrand::Rng::with_seed(seed);
    let hosts = ["web1", "web2", "db1", "JumpHost", "me@web1", "db1.example.com", "10.0.0.7"];
    (0..count)
        .map(|at| Case {
            name: format!("seed {seed}, number {at}"),
            host: (*random.choice(hosts).unwrap()).to_owned(),
            port: random.bool().then(|| random.u16(1000..2000)).filter(|port| port % 3 == 0),
            own_home: false,
            files: vec![
                ("config".to_owned(), text(&mut random, 18, true), 0o600),
                ("one".to_owned(), text(&mut random, 6, false), 0o600),
                ("two".to_owned(), text(&mut random, 6, false), 0o600),
            ],
        })
        .collect()
}

fn text(random: &mut fastrand::Rng, lines: usize, includes: bool) -> String {
    let mut text = String::new();
    for _ in 0..random.usize(1..=lines) {
        let line = match random.u8(0..20) {
            0..=3 => (*random.choice(BLOCKS).unwrap()).to_owned(),
            4 if includes => (*random.choice(INCLUDES).unwrap()).to_owned(),
            5 => "# a comment".to_owned(),
            // A bad line once in a while: most of the cases must be good.
            6 if random.u8(0..40) == 0 => (*random.choice(BAD).unwrap()).to_owned(),
            _ => setting(random),
        };
        let _ = writeln!(text, "{}{line}", ["", "  ", "\t"][random.usize(0..3)]);
    }
    text
}

/// A line that sets something, in one of the ways to write it.
fn setting(random: &mut fastrand::Rng) -> String {
    let (keyword, values) = random.choice(SETTINGS).unwrap();
    let value = *random.choice(values.iter()).unwrap();
    let keyword = match random.u8(0..3) {
        0 => keyword.to_ascii_lowercase(),
        1 => keyword.to_ascii_uppercase(),
        _ => (*keyword).to_owned(),
    };
    let raw = keyword.to_ascii_lowercase().starts_with("proxy");
    let value = match random.u8(0..4) {
        0 if !raw && !value.contains([' ', '"']) => format!("\"{value}\""),
        _ => value.to_owned(),
    };
    let between = random.choice([" ", "=", " = ", "\t", "  "]).unwrap();
    let end = if random.u8(0..8) == 0 && !raw { " # why" } else { "" };
    format!("{keyword}{between}{value}{end}")
}

const BLOCKS: &[&str] = &[
    "Host *",
    "Host web*",
    "Host web1 db1",
    "Host * !web1",
    "Host !db* web?",
    "Host gate JumpHost",
    "Host *.example.com",
    "Match all",
    "Match host web1,db*",
    "Match host *.example.com",
    "Match !host web1",
    "Match originalhost web1",
    "Match user me",
    "Match user %ME%,you",
    "Match localuser %ME% host web*",
    "Match exec \"test %h = web1\"",
    "Match !exec \"test %p = 22\"",
    "Match user me exec \"true\"",
    "Match final",
    "Match final host db1.example.com",
    "Match canonical",
    "Match !final",
];

const INCLUDES: &[&str] = &[
    "Include %DIR%/one",
    "Include %DIR%/two %DIR%/one",
    "Include %DIR%/t*",
    "Include %DIR%/nothing",
    "Include \"%DIR%/one\"",
];

const BAD: &[&str] =
    &["Port x", "Nonsense 1", "Host \"\"", "Match nonsense", "Ciphers rot13", "User", "IdentityFile \"/x"];

const SETTINGS: &[(&str, &[&str])] = &[
    ("Port", &["22", "2222", "3333"]),
    ("User", &["me", "you", "root"]),
    ("HostName", &["%h.example.com", "db1", "10.0.0.8", "WEB1"]),
    ("IdentityFile", &["/keys/a", "/keys/b", "~/.ssh/%h", "none"]),
    ("CertificateFile", &["/keys/a-cert.pub", "/keys/b-cert.pub"]),
    ("IdentitiesOnly", &["yes", "no"]),
    ("IdentityAgent", &["none", "/run/%r.agent", "SSH_AUTH_SOCK"]),
    ("HostKeyAlias", &["Alias", "web"]),
    ("ProxyJump", &["gate", "none", "a,b", "me@gate:2222", "ssh://gate"]),
    ("ProxyCommand", &["nc %h %p", "none"]),
    ("ConnectTimeout", &["5", "none", "1m"]),
    ("ServerAliveInterval", &["30", "1h", "0"]),
    ("ServerAliveCountMax", &["2", "5"]),
    ("Ciphers", &["aes256-ctr", "+3des-cbc", "-aes*", "^aes128-ctr"]),
    ("MACs", &["hmac-sha2-256", "-umac*", "^hmac-sha1"]),
    ("KexAlgorithms", &["curve25519-sha256", "-ecdh*", "+diffie-hellman-group1-sha1"]),
    ("HostKeyAlgorithms", &["ssh-ed25519", "-ecdsa*", "^ssh-rsa", "*cert*"]),
    ("PubkeyAcceptedAlgorithms", &["+ssh-rsa", "ssh-ed25519*", "-rsa*"]),
    ("UserKnownHostsFile", &["/known/%k", "none", "/a /b", "~/.ssh/known_hosts"]),
    ("SendEnv", &["LANG LC_*", "TZ", "-LC_*"]),
    ("SetEnv", &["A=1 B=2", "C=3"]),
    ("RekeyLimit", &["1G", "512M 1h", "default none"]),
    ("ControlPath", &["/run/%L", "~/.ssh/%r@%h:%p", "none"]),
    ("LocalForward", &["8080 web:80", "8081 [::1]:81"]),
    ("DynamicForward", &["1080", "localhost:1081"]),
    ("StrictHostKeyChecking", &["yes", "no", "accept-new"]),
    ("AddressFamily", &["inet", "inet6", "any"]),
    ("BatchMode", &["yes", "no"]),
    ("Compression", &["yes", "no"]),
    ("ForwardAgent", &["yes", "no", "/run/agent"]),
    ("IgnoreUnknown", &["Nonsense", "x*"]),
    ("UpdateHostKeys", &["yes", "ask", "no"]),
    ("SyslogFacility", &["AUTH", "LOCAL1"]),
];
