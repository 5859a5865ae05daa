//! Evaluation of the files for one host: selection of blocks, and the first value of each keyword.

use std::collections::BTreeMap;

use super::criteria::{Criterion, Negation, Test};
use super::jump::{self, Hop, Jump};
use super::keyword::{Keyword, Shape, nearest};
use super::pattern::{Listed, host_listed, listed, matches};
use super::setting::Value;
use super::source::{Item, Source};
use super::tokens::{self, Tokens};
use super::{Asked, Fault, Local, Machine, Place};

/// A value and its line; `None` for the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub value: Value,
    pub place: Option<Place>,
}

pub(super) struct Evaluation<'a> {
    pub asked: &'a Asked,
    pub local: &'a Local,
    pub machine: &'a dyn Machine,
    /// Keywords with one value: the first value counts.
    pub first: BTreeMap<Keyword, Found>,
    /// Keywords whose lines add up.
    pub all: BTreeMap<Keyword, Vec<Found>>,
    /// Lines that OpenSSH ignores, with the reason.
    pub passed: Vec<(Place, &'static str)>,
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass<'a> {
    /// `Host` matches the name that the operator typed.
    First,
    /// `Host` matches the name after `HostName`, and `Match final` is true.
    Final(&'a str),
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(asked: &'a Asked, local: &'a Local, machine: &'a dyn Machine) -> Self {
        let mut first = BTreeMap::new();
        let mut typed = |keyword, value: Option<Value>| {
            if let Some(value) = value {
                first.insert(keyword, Found { value, place: None });
            }
        };
        typed(Keyword::User, asked.user.clone().map(Value::Text));
        typed(Keyword::Port, asked.port.map(|port| Value::Number(port.into())));
        typed(Keyword::ProxyJump, asked.jump.clone().map(Value::Jump));
        Self { asked, local, machine, first, all: BTreeMap::new(), passed: Vec::new(), faults: Vec::new() }
    }

    pub(super) fn read(&mut self, source: &Source, pass: Pass<'_>) {
        self.walk(source, pass, Reach::Reached, Block::Holds);
    }

    pub(super) fn text(&self, keyword: Keyword) -> Option<&str> {
        match &self.first.get(&keyword)?.value {
            Value::Text(text) => Some(text),
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(super) fn number(&self, keyword: Keyword) -> Option<u64> {
        match self.first.get(&keyword)?.value {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    fn walk(&mut self, source: &Source, pass: Pass<'_>, reach: Reach, mut block: Block) {
        for line in &source.lines {
            match &line.item {
                Item::Host(patterns) => {
                    let host = match pass {
                        Pass::First => &self.asked.host,
                        Pass::Final(host) => host,
                    };
                    block = Block::of(reach == Reach::Reached && host_line(host, patterns));
                }
                Item::Match(criteria) => {
                    block = Block::of(reach == Reach::Reached && self.holds(&line.place, criteria, pass));
                }
                Item::Include(sources) => {
                    let reach = if block == Block::Holds { reach } else { Reach::Never };
                    // A block in an included file ends with the file.
                    for source in sources {
                        self.walk(source, pass, reach, block);
                    }
                }
                Item::Set(settings) => {
                    for (keyword, value) in settings {
                        self.set(*keyword, value, &line.place, block);
                    }
                }
                Item::Unknown(word) => self.unknown(word, &line.place),
                Item::Passed(why) => {
                    if !self.passed.iter().any(|(place, _)| *place == line.place) {
                        self.passed.push((line.place.clone(), why));
                    }
                }
            }
        }
    }

    fn set(&mut self, keyword: Keyword, value: &Value, place: &Place, block: Block) {
        let found = || Found { value: value.clone(), place: Some(place.clone()) };
        // OpenSSH applies these two keywords even in a block that does not match, and the last mask counts.
        match keyword {
            Keyword::StreamLocalBindMask => {
                self.first.insert(keyword, found());
                return;
            }
            Keyword::SyslogFacility => {}
            _ if block == Block::Fails => return,
            _ => {}
        }
        match keyword.shape() {
            Shape::File | Shape::Forward(_) => {
                // A remote dynamic forward counts as a remote forward.
                let all = self.all.entry(keyword).or_default();
                if !all.iter().any(|other| other.value == *value) {
                    all.push(found());
                }
            }
            Shape::SendEnv => self.send_env(value, place),
            Shape::Words | Shape::Domains | Shape::Cnames | Shape::PermitRemoteOpen | Shape::SetEnv
                if *value == Value::Words(Vec::new()) => {}
            // The first of the two keywords counts, but `ProxyJump none` still permits a later ProxyCommand.
            _ if keyword == Keyword::ProxyCommand && self.jumps().is_some() => {}
            _ if keyword == Keyword::ProxyJump && self.first.contains_key(&Keyword::ProxyCommand) => {}
            _ => {
                self.first.entry(keyword).or_insert_with(found);
            }
        }
    }

    /// Evaluates `SendEnv`: a pattern is added; a pattern after `-` removes earlier ones.
    fn send_env(&mut self, value: &Value, place: &Place) {
        let Value::Words(words) = value else { return };
        let all = self.all.entry(Keyword::SendEnv).or_default();
        for word in words {
            match word.strip_prefix('-') {
                Some(pattern) => all.retain(|found| match &found.value {
                    Value::Text(name) => !matches(name, pattern),
                    _ => true,
                }),
                None => {
                    all.push(Found { value: Value::Text(word.clone()), place: Some(place.clone()) });
                }
            }
        }
    }

    fn unknown(&mut self, word: &str, place: &Place) {
        let ignored = self.text(Keyword::IgnoreUnknown).unwrap_or_default().to_ascii_lowercase();
        if listed(word, &ignored) == Listed::Yes {
            return;
        }
        let hint = match nearest(word) {
            Some(name) => format!("did you mean {name}?"),
            None => format!("`IgnoreUnknown {word}` above it makes OpenSSH and penstock ignore it"),
        };
        let fault = Fault::new(place, format!("{word}: no such keyword"), Some(hint));
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    fn holds(&mut self, place: &Place, criteria: &[Criterion], pass: Pass<'_>) -> bool {
        let host = match pass {
            Pass::Final(host) => host.to_owned(),
            Pass::First => match self.host() {
                Ok(host) => host,
                Err(why) => {
                    self.faults.push(Fault::new(place, why, None));
                    return false;
                }
            },
        };
        let user = self.text(Keyword::User).unwrap_or(&self.local.user).to_owned();
        let yes = |listed| listed == Listed::Yes;
        for criterion in criteria {
            let is = match &criterion.test {
                Test::All => true,
                Test::Canonical | Test::Final => pass != Pass::First,
                Test::Host(list) => yes(host_listed(&host, list)),
                Test::OriginalHost(list) => yes(host_listed(&self.asked.host, list)),
                Test::User(list) => yes(listed(&user, list)),
                Test::LocalUser(list) => yes(listed(&self.local.user, list)),
                Test::Tagged(list) => named(self.text(Keyword::Tag).unwrap_or_default(), list),
                Test::Command(list) => named(self.asked.command.as_deref().unwrap_or_default(), list),
                Test::SessionType(list) => yes(listed(self.session_type(), list)),
                Test::LocalNetwork(networks) => match self.machine.addresses() {
                    Ok(addresses) => addresses.iter().any(|address| in_networks(*address, networks)),
                    Err(why) => return self.undecided(place, format!("localnetwork: {why}"), None),
                },
                Test::Version(_) => {
                    let hint = "penstock is not a version of OpenSSH: --engine openssh lets OpenSSH decide";
                    return self.undecided(place, "match version: cannot be decided".to_owned(), Some(hint));
                }
                Test::Exec(command) => {
                    // Names with shell characters are refused later anyway; no shell may see these names before.
                    let user_fault = || jump::user_fault(&user).map(|(what, _)| what);
                    if let Some(why) = jump::host_fault(&host).or_else(user_fault) {
                        return self.undecided(place, format!("match exec {command}: not run: {why}"), None);
                    }
                    let command = match self.tokens(&host, &user).expand(command) {
                        Ok(command) => command,
                        Err(why) => return self.undecided(place, format!("match exec: {why}"), None),
                    };
                    match self.machine.exec(&command) {
                        Ok(success) => success,
                        Err(why) => {
                            return self.undecided(place, format!("match exec {command}: {why}"), None);
                        }
                    }
                }
            };
            if is == (criterion.sense == Negation::IsNot) {
                return false;
            }
        }
        true
    }

    fn undecided(&mut self, place: &Place, what: String, hint: Option<&str>) -> bool {
        self.faults.push(Fault::new(place, what, hint.map(str::to_owned)));
        false
    }

    /// Host name after `HostName`, as far as known.
    pub(super) fn host(&self) -> Result<String, String> {
        let typed = &self.asked.host;
        match self.text(Keyword::HostName) {
            Some(name) => tokens::expand(name, |token| (token == 'h').then(|| typed.clone()))
                .map_err(|why| format!("hostname: {why}")),
            None => Ok(typed.clone()),
        }
    }

    pub(super) fn jumps(&self) -> Option<&[Hop]> {
        match &self.first.get(&Keyword::ProxyJump)?.value {
            Value::Jump(Jump::Through(hops)) => Some(hops),
            _ => None,
        }
    }

    fn session_type(&self) -> &'static str {
        match (self.text(Keyword::SessionType), self.asked.command.as_deref()) {
            (Some("subsystem"), _) => "subsystem",
            (Some("none"), _) => "none",
            (_, Some(command)) if !command.is_empty() => "exec",
            _ => "shell",
        }
    }

    /// Values of tokens in `Match exec`, where some are not known yet.
    fn tokens(&self, host: &str, user: &str) -> Tokens {
        let alias = self.text(Keyword::HostKeyAlias).unwrap_or(host).to_owned();
        Tokens { key_alias: alias, ..self.all_tokens(host, user) }
    }

    /// Values of tokens in paths and commands.
    pub(super) fn all_tokens(&self, host: &str, user: &str) -> Tokens {
        let jump = self.jumps().and_then(|hops| hops.last()).map(|hop| hop.host.clone());
        let port = self.number(Keyword::Port).and_then(|port| u16::try_from(port).ok());
        Tokens {
            home: self.local.home.clone(),
            host: host.to_owned(),
            uid: self.local.uid,
            jump: jump.unwrap_or_default(),
            key_alias: self.asked.host.clone(),
            here: self.local.hostname.clone(),
            typed: self.asked.host.clone(),
            port: port.unwrap_or(22),
            user: user.to_owned(),
            local_user: self.local.user.clone(),
        }
    }
}

/// Effect of an included file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Reached,
    /// A block that does not match includes the file: only faults count.
    Never,
}

/// State of a block: the lines of the block apply to the host or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Holds,
    Fails,
}

impl Block {
    fn of(holds: bool) -> Self {
        if holds { Self::Holds } else { Self::Fails }
    }
}

/// Evaluates a `Host` line: one pattern must match, and none with `!`.
fn host_line(host: &str, patterns: &[String]) -> bool {
    let mut found = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(host, pattern) => return false,
            Some(_) => {}
            None => found |= matches(host, pattern),
        }
    }
    found
}

/// An empty text matches only an empty list.
fn named(text: &str, list: &str) -> bool {
    if text.is_empty() { list.is_empty() } else { listed(text, list) == Listed::Yes }
}

fn in_networks(address: std::net::IpAddr, networks: &[ipnet::IpNet]) -> bool {
    networks.iter().any(|network| network.contains(&address))
}
