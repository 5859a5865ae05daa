//! What is wrong with the keys on a host, and with how its sshd lets people in.

use std::collections::BTreeSet;
use std::collections::HashMap;

use super::line::Line;
use super::report::{Extent, KeyFile, LONGEST_FILE, Report};
use super::strength::Strength;
use crate::ssh::key::{Fingerprint, PublicKey};

/// The owners of keys.
pub trait Registry {
    /// Names of those who own a key.
    fn owners(&self, key: &Fingerprint) -> &[String];
    /// When the rights of an owner were revoked.
    fn revoked(&self, owner: &str) -> Option<&str>;
    /// Whether the keys of an owner may stand in an account of a host.
    fn right(&self, owner: &str, account: &str, host: &str) -> Right;
    /// Whether there is an owner of this name.
    fn is_owner(&self, name: &str) -> bool;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right {
    /// The account is one of those that the owner has.
    Named,
    /// Nothing is said about the owner's accounts.
    Unsaid,
    /// The owner has these accounts and no other ones.
    Others(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    RevokedOwner,
    UnknownOwner,
    SharedKey,
    WrongAccount,
    WeakKey,
    Passwords,
    RootLogin,
    NoKey,
    SmallKey,
    NotSeen,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Fault,
    Warning,
    /// Something may be wrong there, and nothing is known.
    NotSeen,
}

impl Level {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Warning => "warning",
            Self::NotSeen => "not-seen",
        }
    }
}

impl Kind {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::RevokedOwner => "revoked-owner",
            Self::UnknownOwner => "unknown-owner",
            Self::SharedKey => "shared-key",
            Self::WrongAccount => "wrong-account",
            Self::WeakKey => "weak-key",
            Self::Passwords => "passwords",
            Self::RootLogin => "root-login",
            Self::NoKey => "no-key",
            Self::SmallKey => "small-key",
            Self::NotSeen => "not-seen",
        }
    }

    #[must_use]
    pub fn level(self) -> Level {
        match self {
            Self::NoKey | Self::SmallKey | Self::RootLogin => Level::Warning,
            Self::NotSeen => Level::NotSeen,
            _ => Level::Fault,
        }
    }
}

/// One finding of one host. Texts may hold what a host sent: escape them for a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    pub kind: Kind,
    /// `*`: all accounts; empty: none in particular.
    pub account: String,
    /// `FILE:LINE`, or the program that says so.
    pub place: String,
    pub what: String,
    pub to_do: String,
    pub fingerprint: Option<String>,
    pub owners: Vec<String>,
}

/// Finds what is wrong on a host.
#[must_use]
pub fn audit(host: &str, report: &Report, registry: &dyn Registry) -> Vec<Finding> {
    let mut all = Vec::new();
    for file in &report.files {
        for (at, text) in file.lines.iter().enumerate() {
            of_line(host, file, at + 1, text, registry, &mut all);
        }
        if file.extent == Extent::Cut {
            let what = format!("only its first {} MiB were read", LONGEST_FILE >> 20);
            all.push(unseen(&file.account, &file.path, what, "look why it is so long"));
        }
    }
    of_server(report, &mut all);
    not_seen(report, &mut all);
    all
}

/// Puts equal findings of several hosts together, in the order of their kinds.
#[must_use]
pub fn fold(findings: Vec<(String, Finding)>) -> Vec<(Vec<String>, Finding)> {
    let mut places: HashMap<Finding, usize> = HashMap::new();
    let mut folded: Vec<(Vec<String>, Finding)> = Vec::new();
    for (host, finding) in findings {
        match places.get(&finding) {
            Some(at) => folded[*at].0.push(host),
            None => {
                places.insert(finding.clone(), folded.len());
                folded.push((vec![host], finding));
            }
        }
    }
    folded.sort_by_key(|(_, finding)| (finding.kind.level(), finding.kind));
    folded
}

/// Longest line of a file on a host: options may be long.
const LONGEST_LINE: usize = 64 * 1024;

fn of_line(
    host: &str,
    file: &KeyFile,
    at: usize,
    text: &str,
    registry: &dyn Registry,
    all: &mut Vec<Finding>,
) {
    let (account, place) = (file.account.clone(), format!("{}:{at}", file.path));
    match Line::parse_up_to(text, LONGEST_LINE) {
        Ok(None) => {}
        Ok(Some(line)) => {
            let fingerprint = line.key.fingerprint();
            let owners = registry.owners(&fingerprint);
            let faults = of_key(host, &account, &line, owners, registry);
            all.extend(faults.into_iter().map(|(kind, what, to_do)| Finding {
                kind,
                account: account.clone(),
                place: place.clone(),
                what,
                to_do,
                fingerprint: Some(fingerprint.to_string()),
                owners: owners.to_vec(),
            }));
        }
        Err(fault) => {
            let to_do = "correct the line, or remove it".to_owned();
            let (what, fingerprint, owners) = (fault.to_string(), None, Vec::new());
            all.push(Finding { kind: Kind::NoKey, account, place, what, to_do, fingerprint, owners });
        }
    }
}

/// What is wrong with a key in an account of a host, and what to do.
fn of_key(
    host: &str,
    account: &str,
    line: &Line,
    owners: &[String],
    registry: &dyn Registry,
) -> Vec<(Kind, String, String)> {
    let shown = shown(&line.key, &line.comment);
    let mut all = Vec::new();
    if owners.is_empty() {
        let to_do = "penstock user key add OWNER, or remove the line".to_owned();
        all.push((Kind::UnknownOwner, format!("{shown} belongs to no known owner"), to_do));
    }
    if owners.len() > 1 {
        let what = format!("{shown} is shared by {}", owners.join(" and "));
        all.push((Kind::SharedKey, what, "each makes a key: ssh-keygen -t ed25519".to_owned()));
    }
    for owner in owners {
        if let Some(date) = registry.revoked(owner) {
            let what = format!("{shown} is of {owner}, who was revoked on {date}");
            all.push((Kind::RevokedOwner, what, format!("penstock user revoke {owner}")));
            continue;
        }
        let wrong = match registry.right(owner, account, host) {
            Right::Others(accounts) => format!("whose accounts are {accounts}"),
            Right::Unsaid if account != owner && registry.is_owner(account) => {
                format!("and the account of {account}")
            }
            Right::Named | Right::Unsaid => continue,
        };
        let to_do = format!("remove the line, or penstock user add {owner} --account");
        all.push((Kind::WrongAccount, format!("{shown} is of {owner}, {wrong}"), to_do));
    }
    let strength = Strength::of(&line.key);
    let kind = match strength {
        Strength::Good => return all,
        Strength::Small(_) => Kind::SmallKey,
        Strength::TooSmall(_) | Strength::Dsa => Kind::WeakKey,
    };
    all.push((kind, format!("{shown} is {strength}"), "a new key: ssh-keygen -t ed25519".to_owned()));
    all
}

fn shown(key: &PublicKey, comment: &str) -> String {
    let comment: String = comment.chars().take(64).collect();
    match comment.is_empty() {
        true => format!("{} {}", key.algorithm(), key.fingerprint()),
        false => format!("{} {} ({comment})", key.algorithm(), key.fingerprint()),
    }
}

/// Where the settings of sshd come from.
const SSHD: &str = "sshd -T";

fn of_server(report: &Report, all: &mut Vec<Finding>) {
    let mut said = BTreeSet::new();
    let mut accounts: BTreeSet<&str> = report.settings.iter().map(|one| one.account.as_str()).collect();
    accounts.insert("");
    for account in accounts {
        for (kind, what, to_do) in ways_in(report, account) {
            // What holds for every account is said once.
            if said.insert(what.clone()) || !report.settings.iter().any(|one| one.account.is_empty()) {
                let (account, place, to_do) = (account.to_owned(), SSHD.to_owned(), to_do.to_owned());
                all.push(Finding {
                    kind,
                    account,
                    place,
                    what,
                    to_do,
                    fingerprint: None,
                    owners: Vec::new(),
                });
            }
        }
    }
}

/// Ways into an account without a key.
fn ways_in(report: &Report, account: &str) -> Vec<(Kind, String, &'static str)> {
    let is = |name: &str, value: &str| report.setting(account, name) == Some(value);
    let methods = report.setting(account, "authenticationmethods").unwrap_or("any");
    // A list of methods in which a key is one is no way in without it.
    let is_enough = |method: &str| {
        methods == "any"
            || methods.split(' ').any(|list| list.split(',').all(|one| one.split(':').next() == Some(method)))
    };
    let password = is("passwordauthentication", "yes") && is_enough("password");
    let asked = is("kbdinteractiveauthentication", "yes") && is_enough("keyboard-interactive");
    let mut ways = Vec::new();
    if password {
        ways.push((Kind::Passwords, "the server accepts passwords".to_owned(), "PasswordAuthentication no"));
    }
    if asked {
        let what = "the server accepts passwords that PAM asks for (keyboard-interactive)".to_owned();
        ways.push((Kind::Passwords, what, "KbdInteractiveAuthentication no"));
    }
    if is("permitemptypasswords", "yes") && password {
        let what = "accounts without a password are open".to_owned();
        ways.push((Kind::Passwords, what, "PermitEmptyPasswords no"));
    }
    if is("permitrootlogin", "yes") {
        let to_do = "PermitRootLogin prohibit-password";
        match password || asked {
            true => ways.push((Kind::Passwords, "root may log in with a password".to_owned(), to_do)),
            false => {
                let what =
                    "root may log in with a password as soon as the server accepts passwords".to_owned();
                ways.push((Kind::RootLogin, what, to_do));
            }
        }
    }
    ways
}

fn not_seen(report: &Report, all: &mut Vec<Finding>) {
    if report.uid.is_some_and(|uid| uid != 0) {
        let what = format!("only the account {} was looked at", report.login);
        all.push(unseen("", "", what, "log in as root, or --sudo"));
    }
    for (account, reason, path) in &report.unseen {
        all.push(unseen(account, path, reason.clone(), "look at it there"));
    }
    for (account, reason) in &report.unknown_settings {
        let what = format!(
            "its settings are not known: {reason}; files of keys are taken to be at their usual place"
        );
        all.push(unseen(account, SSHD, what, "log in as root, or --sudo"));
    }
    for (name, what) in [
        ("authorizedkeyscommand", "keys also come from a command"),
        ("trustedusercakeys", "certificates of these authorities log in too"),
    ] {
        if let Some(value) = report.setting("", name).filter(|value| *value != "none" && !value.is_empty()) {
            all.push(unseen("", SSHD, format!("{what}: {value}"), "look there for keys and principals"));
        }
    }
}

fn unseen(account: &str, place: &str, what: String, to_do: &str) -> Finding {
    Finding {
        kind: Kind::NotSeen,
        account: account.to_owned(),
        place: place.to_owned(),
        what,
        to_do: to_do.to_owned(),
        fingerprint: None,
        owners: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorized::report::Setting;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";
    const PRINT: &str = "SHA256:";

    /// `ann` owns the key; `bob` too in accounts of `shared`; `eve` is revoked.
    struct People(Vec<String>);

    impl Registry for People {
        fn owners(&self, _: &Fingerprint) -> &[String] {
            &self.0
        }
        fn revoked(&self, owner: &str) -> Option<&str> {
            (owner == "eve").then_some("2026-03-01")
        }
        fn right(&self, owner: &str, account: &str, _: &str) -> Right {
            match (owner, account) {
                ("ann", "root") => Right::Others("deploy".to_owned()),
                ("ann", "deploy") => Right::Named,
                _ => Right::Unsaid,
            }
        }
        fn is_owner(&self, name: &str) -> bool {
            ["ann", "bob", "eve"].contains(&name)
        }
    }

    fn found(account: &str, line: &str, owners: &[&str]) -> Vec<(Kind, String)> {
        let file = KeyFile {
            account: account.to_owned(),
            path: "/k".to_owned(),
            lines: vec!["# x".to_owned(), line.to_owned()],
            extent: Extent::Whole,
        };
        let report = Report { uid: Some(0), files: vec![file], is_whole: true, ..Report::default() };
        let people = People(owners.iter().map(|name| (*name).to_owned()).collect());
        let all = audit("h1", &report, &people);
        assert!(all.iter().all(|one| one.place == "/k:2" && one.account == account));
        all.into_iter().map(|one| (one.kind, one.what)).collect()
    }

    #[test]
    fn each_key_is_judged_by_its_owners_its_account_and_its_strength() {
        let kinds = |account, owners: &[&str]| -> Vec<Kind> {
            found(account, &format!("restrict {KEY} x"), owners).into_iter().map(|(kind, _)| kind).collect()
        };
        assert_eq!(kinds("deploy", &["ann"]), []);
        assert_eq!(kinds("www", &["ann"]), []);
        assert_eq!(kinds("root", &["ann"]), [Kind::WrongAccount]);
        assert_eq!(kinds("bob", &["ann"]), [Kind::WrongAccount], "another person's account");
        assert_eq!(kinds("bob", &["bob"]), []);
        assert_eq!(kinds("www", &[]), [Kind::UnknownOwner]);
        assert_eq!(kinds("www", &["bob", "eve"]), [Kind::SharedKey, Kind::RevokedOwner]);
        let (kind, what) = found("www", "hello", &[]).remove(0);
        assert_eq!((kind, what.starts_with("it has no key")), (Kind::NoKey, true));
        let (_, what) = found("www", &format!("{KEY} ann@desk"), &[]).remove(0);
        assert!(what.contains(PRINT) && what.ends_with("(ann@desk) belongs to no known owner"), "{what}");
    }

    fn ways(settings: &[(&str, &str, &str)]) -> Vec<(String, String)> {
        let own = |text: &str| text.to_owned();
        let settings = settings.iter().map(|(account, name, value)| Setting {
            account: own(account),
            name: own(name),
            value: own(value),
        });
        let report = Report { uid: Some(0), settings: settings.collect(), ..Report::default() };
        audit("h", &report, &People(Vec::new())).into_iter().map(|one| (one.account, one.to_do)).collect()
    }

    #[test]
    fn ways_into_a_server_without_a_key_are_found() {
        let all = |to_do: &str| vec![(String::new(), to_do.to_owned())];
        assert_eq!(ways(&[("", "passwordauthentication", "yes")]), all("PasswordAuthentication no"));
        assert_eq!(
            ways(&[("", "kbdinteractiveauthentication", "yes")]),
            all("KbdInteractiveAuthentication no")
        );
        let with = |methods| {
            ways(&[("", "passwordauthentication", "yes"), ("", "authenticationmethods", methods)]).len()
        };
        assert_eq!((with("any"), with("publickey,password"), with("publickey password")), (1, 0, 1));
        let of_account = ways(&[
            ("", "passwordauthentication", "no"),
            ("ftp", "passwordauthentication", "yes"),
            ("www", "passwordauthentication", "no"),
        ]);
        assert_eq!(of_account, [("ftp".to_owned(), "PasswordAuthentication no".to_owned())]);
        let both = ways(&[("", "passwordauthentication", "yes"), ("www", "passwordauthentication", "yes")]);
        assert_eq!(both.len(), 1, "said once");
        assert_eq!(ways(&[("", "permitrootlogin", "yes")]), all("PermitRootLogin prohibit-password"));
        assert_eq!(ways(&[("", "permitrootlogin", "prohibit-password")]), []);
        assert_eq!(ways(&[("", "trustedusercakeys", "/etc/ca.pub")]).len(), 1);
        assert_eq!(ways(&[("", "authorizedkeyscommand", "none")]), []);
    }

    #[test]
    fn only_equal_findings_are_folded() {
        let one = |what: &str| unseen("root", "/k:1", what.to_owned(), "");
        let of = |host: &str, what: &str| (host.to_owned(), one(what));
        let folded = fold(vec![of("h1", "key A"), of("h2", "key B"), of("h3", "key A")]);
        let hosts: Vec<_> =
            folded.iter().map(|(hosts, finding)| (hosts.join(","), finding.what.as_str())).collect();
        assert_eq!(hosts, [("h1,h3".to_owned(), "key A"), ("h2".to_owned(), "key B")]);
    }
}
