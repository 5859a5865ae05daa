//! What holds for one host, after everything was read: typed, with tokens replaced.

use std::net::IpAddr;
use std::time::Duration;

use super::algorithms::{Catalogue, List};
use super::evaluate::{Evaluation, Found, Pass};
use super::jump::{self, Hop};
use super::keyword::Keyword;
use super::load::Loaded;
use super::notice::{self, Effect, Notice};
use super::setting::Value;
use super::tokens::{self, Tokens};
use super::{Asked, Fault, Faults, Jump, Local, Machine, Place, value};

/// What holds for one host. What is `None` or empty was not configured.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// As it was typed.
    pub typed: String,
    /// The host to connect to: `HostName`, in lower case.
    pub host: String,
    /// `HostKeyAlias`, in lower case.
    pub key_alias: Option<String>,
    /// The port.
    pub port: u16,
    /// The login.
    pub user: String,
    /// What the connection goes through.
    pub proxy: Proxy,
    /// Which kind of address is used.
    pub family: Family,
    /// The address to connect from.
    pub bind_address: Option<String>,
    /// The interface to connect from.
    pub bind_interface: Option<String>,
    /// The limit for connecting and the key exchange.
    pub connect_timeout: Option<Duration>,
    /// How often to try; one try is made where nothing is said.
    pub connection_attempts: u32,
    /// After how much silence the server is asked whether it lives; zero is never.
    pub alive_interval: Option<Duration>,
    /// How many questions may stay without an answer.
    pub alive_count: Option<u32>,
    /// When keys are exchanged anew.
    pub rekey: Rekey,
    /// `IdentityFile`, in order; empty: the default files.
    pub identity_files: Vec<KeyFile>,
    /// `CertificateFile`, in order.
    pub certificate_files: Vec<KeyFile>,
    /// The agent.
    pub agent: Agent,
    /// `IdentitiesOnly`, as it is written.
    pub identities_only: bool,
    /// `PubkeyAuthentication`, as it is written: false for `no` only.
    pub public_key: bool,
    /// `KexAlgorithms`, resolved.
    pub kex: Option<Vec<String>>,
    /// `Ciphers`, resolved.
    pub ciphers: Option<Vec<String>>,
    /// `MACs`, resolved.
    pub macs: Option<Vec<String>>,
    /// `HostKeyAlgorithms`, resolved.
    pub host_key_algorithms: Option<Vec<String>>,
    /// `PubkeyAcceptedAlgorithms`, resolved.
    pub accepted_algorithms: Option<Vec<String>>,
    /// `CASignatureAlgorithms`, resolved.
    pub ca_algorithms: Option<Vec<String>>,
    /// RSA keys with fewer bits are no keys.
    pub required_rsa_bits: u32,
    /// Patterns of variables to pass on.
    pub send_env: Vec<String>,
    /// Variables to set, `NAME=VALUE`.
    pub set_env: Vec<String>,
    /// Every value that was found, by keyword, and where.
    pub settings: Vec<Setting>,
    /// What OpenSSH would do and we do not.
    pub notices: Vec<Notice>,
    pub(super) shown: Vec<(&'static str, String)>,
}

/// What a connection goes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    /// Nothing.
    Direct,
    /// Hosts, the nearest first, each with a configuration of its own.
    Jump(Vec<Hop>),
    /// The input and output of a command for the user's shell; tokens are replaced.
    Command(String),
}

/// Which kind of address is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Family {
    /// Any.
    #[default]
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Whether an address is of this kind.
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    /// As `AddressFamily` has it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::V4 => "inet",
            Self::V6 => "inet6",
        }
    }
}

/// When keys are exchanged anew; `None`: as the cipher asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rekey {
    /// After so many bytes.
    pub bytes: Option<u64>,
    /// After this time.
    pub time: Option<Duration>,
}

/// A file with a key or certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// Its path; tokens, variables and `~` are replaced.
    pub path: String,
    /// The line that names it.
    pub place: Option<Place>,
}

/// Which agent is asked for keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agent {
    /// The one that `SSH_AUTH_SOCK` names.
    Environment,
    /// None.
    Nobody,
    /// The one behind this socket.
    Socket(String),
}

/// A value that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The keyword.
    pub keyword: Keyword,
    /// What it is set to.
    pub value: Value,
    /// Where; `None`: on the command line.
    pub place: Option<Place>,
}

impl Resolved {
    /// The name under which the host's identity is known: `HostKeyAlias`, else what was typed.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.key_alias.as_deref().unwrap_or(&self.typed)
    }

    /// Where a keyword was set, if it was.
    #[must_use]
    pub fn place(&self, keyword: Keyword) -> Option<&Place> {
        self.settings.iter().find(|setting| setting.keyword == keyword)?.place.as_ref()
    }

    /// What a keyword was set to, if it was; of several values the first.
    #[must_use]
    pub fn setting(&self, keyword: Keyword) -> Option<&Value> {
        self.settings.iter().find(|setting| setting.keyword == keyword).map(|setting| &setting.value)
    }

    /// What only OpenSSH can do, although it was asked for.
    pub fn obstacles(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter().filter(|notice| notice.effect == Effect::NeedsOpenSsh)
    }
}

pub(super) fn resolve(
    loaded: &Loaded,
    known: &Catalogue,
    asked: &Asked,
    local: &Local,
    machine: &dyn Machine,
) -> Result<Resolved, Faults> {
    let typed = typed_faults(asked);
    if !typed.is_empty() {
        return Err(Faults(typed));
    }
    let mut evaluation = Evaluation::new(asked, local, machine);
    for source in &loaded.sources {
        evaluation.read(source, Pass::First);
    }
    let mut faults = loaded.faults.clone();
    let host = evaluation.host().unwrap_or_else(|why| {
        faults.push(Fault { place: place(&evaluation, Keyword::HostName), what: why, hint: None });
        String::new()
    });
    let host = match value::address(&host) {
        Some(address) => address.to_string(),
        None => host.to_ascii_lowercase(),
    };
    let canonical = evaluation.text(Keyword::CanonicalizeHostname).is_some_and(|word| word != "false");
    if canonical || loaded.sources.iter().any(|source| source.wants_final) {
        for source in &loaded.sources {
            evaluation.read(source, Pass::Final(&host));
        }
    }
    faults.append(&mut evaluation.faults);
    let builder = Builder::new(&evaluation, known, host, faults);
    builder.build()
}

/// What is wrong with the names that somebody typed, or that came from a list of hosts. They are judged before anything else:
/// reading the files may run commands (`Match exec`) which have these names in them.
fn typed_faults(asked: &Asked) -> Vec<Fault> {
    let user = asked.user.as_deref().and_then(user_fault);
    let hops = match &asked.jump {
        Some(Jump::Through(hops)) => hops.as_slice(),
        _ => &[],
    };
    let hop = hops.iter().find(|hop| !hop.is_plausible());
    let hop = hop.map(|hop| format!("proxyjump: \"{hop}\" is no host to go through"));
    let whats = host_fault(&asked.host).into_iter().chain(hop).map(|what| (what, None));
    whats.chain(user).map(|(what, hint)| Fault { place: None, what, hint }).collect()
}

/// Why that is no name of a host: a shell would take it apart, or it looks like an option.
pub(super) fn host_fault(host: &str) -> Option<String> {
    (!jump::is_safe_host(host)).then(|| format!("hostname: \"{host}\" is no name of a host"))
}

/// Why that is no login, and what to do: a shell would take it apart, or it looks like an option.
pub(super) fn user_fault(user: &str) -> Option<(String, Option<String>)> {
    if user.contains('%') || user.contains("${") {
        let what = format!("user: \"{user}\": OpenSSH before 10.1 takes it as it is, later ones replace it");
        return Some((what, Some("write the login itself".to_owned())));
    }
    (!jump::is_safe_user(user)).then(|| (format!("user: \"{user}\" is no login"), None))
}

fn place(evaluation: &Evaluation<'_>, keyword: Keyword) -> Option<Place> {
    evaluation.first.get(&keyword)?.place.clone()
}

struct Builder<'a> {
    from: &'a Evaluation<'a>,
    known: &'a Catalogue,
    host: String,
    user: String,
    tokens: Tokens,
    faults: Vec<Fault>,
}

impl<'a> Builder<'a> {
    fn new(from: &'a Evaluation<'a>, known: &'a Catalogue, host: String, faults: Vec<Fault>) -> Self {
        let user = from.text(Keyword::User).unwrap_or(&from.local.user).to_owned();
        let mut tokens = from.all_tokens(&host, &user);
        if let Some(alias) = from.text(Keyword::HostKeyAlias) {
            tokens.key_alias = alias.to_ascii_lowercase();
        }
        Self { from, known, host, user, tokens, faults }
    }

    fn build(mut self) -> Result<Resolved, Faults> {
        self.check_names();
        let proxy = self.proxy();
        let agent = self.agent();
        let identity_files = self.key_files(Keyword::IdentityFile);
        let certificate_files = self.key_files(Keyword::CertificateFile);
        let from = self.from;
        let number = |keyword| from.number(keyword).and_then(|number| u32::try_from(number).ok());
        let seconds = |keyword| from.number(keyword).map(Duration::from_secs);
        let text = |keyword| from.text(keyword).map(str::to_owned);
        let attempts = number(Keyword::ConnectionAttempts).unwrap_or(1);
        if attempts == 0 {
            self.fault(Keyword::ConnectionAttempts, "connectionattempts: no try is too few".to_owned(), None);
        }
        if let Some(reason) = from.text(Keyword::RefuseConnection) {
            let reason = format!("the configuration refuses connections to this host: {reason}");
            self.fault(Keyword::RefuseConnection, reason, None);
        }
        let shown = super::show::lines(from, self.known, &self.host, &self.tokens, &mut self.faults);
        if !self.faults.is_empty() {
            return Err(Faults(self.faults));
        }
        let list = |keyword, list| from.text(keyword).and_then(|text| self.known.assemble(list, text));
        let bytes = from.number(Keyword::RekeyLimit).filter(|bytes| *bytes > 0);
        let time = seconds(Keyword::RekeyInterval).filter(|time| !time.is_zero());
        Ok(Resolved {
            typed: from.asked.host.clone(),
            key_alias: text(Keyword::HostKeyAlias).map(|alias| alias.to_ascii_lowercase()),
            port: self.tokens.port,
            proxy,
            family: match from.text(Keyword::AddressFamily) {
                Some("inet") => Family::V4,
                Some("inet6") => Family::V6,
                _ => Family::Any,
            },
            bind_address: text(Keyword::BindAddress),
            bind_interface: text(Keyword::BindInterface),
            connect_timeout: seconds(Keyword::ConnectTimeout).filter(|time| !time.is_zero()),
            connection_attempts: attempts,
            alive_interval: seconds(Keyword::ServerAliveInterval),
            alive_count: number(Keyword::ServerAliveCountMax),
            rekey: Rekey { bytes, time },
            identity_files,
            certificate_files,
            agent,
            identities_only: from.text(Keyword::IdentitiesOnly) == Some("yes"),
            public_key: from.text(Keyword::PubkeyAuthentication) != Some("false"),
            kex: list(Keyword::KexAlgorithms, List::Kex),
            ciphers: list(Keyword::Ciphers, List::Ciphers),
            macs: list(Keyword::Macs, List::Macs),
            host_key_algorithms: list(Keyword::HostKeyAlgorithms, List::Keys),
            accepted_algorithms: list(Keyword::PubkeyAcceptedAlgorithms, List::Keys),
            ca_algorithms: list(Keyword::CaSignatureAlgorithms, List::Signatures),
            required_rsa_bits: number(Keyword::RequiredRsaSize).unwrap_or(1024),
            send_env: texts(from.all.get(&Keyword::SendEnv)),
            set_env: variables(from.first.get(&Keyword::SetEnv)),
            settings: settings(from),
            notices: notice::collect(&from.first, &from.all, &from.passed),
            shown,
            host: self.host,
            user: self.user,
        })
    }

    fn fault(&mut self, keyword: Keyword, what: String, hint: Option<String>) {
        self.faults.push(Fault { place: place(self.from, keyword), what, hint });
    }

    /// Names go into command lines and onto the wire: what a shell would take apart is no name.
    fn check_names(&mut self) {
        // Where `HostName` itself is wrong there is none.
        if let Some(what) = host_fault(&self.host).filter(|_| !self.host.is_empty()) {
            self.fault(Keyword::HostName, what, None);
        }
        if let Some((what, hint)) = user_fault(&self.user) {
            self.fault(Keyword::User, what, hint);
        }
    }

    fn proxy(&mut self) -> Proxy {
        if let Some(hops) = self.from.jumps() {
            if let Some(hop) = hops.last() {
                let user = hop.user.as_ref().unwrap_or(&self.user);
                let port = hop.port.unwrap_or(22);
                if hop.host == self.host && port == self.tokens.port && *user == self.user {
                    let what = format!("proxyjump: {hop} is the host itself");
                    self.fault(Keyword::ProxyJump, what, Some("`ProxyJump none` for the gate".to_owned()));
                }
            }
            return Proxy::Jump(hops.to_vec());
        }
        let Some(command) = self.from.text(Keyword::ProxyCommand) else { return Proxy::Direct };
        if command.eq_ignore_ascii_case("none") {
            return Proxy::Direct;
        }
        match self.tokens.expand(command) {
            Ok(command) => Proxy::Command(command),
            Err(why) => {
                self.fault(Keyword::ProxyCommand, format!("proxycommand: {why}"), None);
                Proxy::Direct
            }
        }
    }

    fn agent(&mut self) -> Agent {
        let Some(text) = self.from.text(Keyword::IdentityAgent) else { return Agent::Environment };
        if text == "SSH_AUTH_SOCK" {
            return Agent::Environment;
        }
        if text.eq_ignore_ascii_case("none") {
            return Agent::Nobody;
        }
        if let Some(name) = text.strip_prefix('$').filter(|name| !name.starts_with('{')) {
            return self.from.machine.variable(name).map_or(Agent::Nobody, Agent::Socket);
        }
        match self.path(text) {
            Ok(path) => Agent::Socket(path),
            Err(why) => {
                self.fault(Keyword::IdentityAgent, format!("identityagent: {why}"), None);
                Agent::Nobody
            }
        }
    }

    fn key_files(&mut self, keyword: Keyword) -> Vec<KeyFile> {
        let mut files = Vec::new();
        for found in self.from.all.get(&keyword).into_iter().flatten() {
            let Value::Text(text) = &found.value else { continue };
            if text.eq_ignore_ascii_case("none") {
                continue;
            }
            match self.path(text) {
                Ok(path) => files.push(KeyFile { path, place: found.place.clone() }),
                Err(why) => self.faults.push(Fault {
                    place: found.place.clone(),
                    what: format!("{}: {why}", keyword.name()),
                    hint: None,
                }),
            }
        }
        if files.len() > MOST_KEYS {
            let what = format!("{}: more than {MOST_KEYS} files for one host", keyword.name());
            self.faults.push(Fault { place: None, what, hint: None });
        }
        files
    }

    fn path(&self, text: &str) -> Result<String, String> {
        path(text, &self.tokens, self.from)
    }
}

/// A path with `~`, tokens and variables.
pub(super) fn path(text: &str, tokens: &Tokens, from: &Evaluation<'_>) -> Result<String, String> {
    let text = tokens::tilde(text, &from.local.home)?;
    // What a variable holds has no tokens, and what a token stands for has no variables.
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("${") {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end + 1);
        out.push_str(&tokens.expand(&rest[..at])?);
        out.push_str(&tokens::environment(&rest[at..end], &|name| from.machine.variable(name))?);
        rest = &rest[end..];
    }
    out.push_str(&tokens.expand(rest)?);
    Ok(out)
}

/// The texts of several values.
pub(super) fn texts(found: Option<&Vec<Found>>) -> Vec<String> {
    found.into_iter().flatten().map(|found| found.value.to_string()).collect()
}

/// Variables with values; of two with one name the first holds.
pub(super) fn variables(found: Option<&Found>) -> Vec<String> {
    let Some(Found { value: Value::Words(pairs), .. }) = found else { return Vec::new() };
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let mut out: Vec<String> = Vec::new();
    for pair in pairs {
        if !out.iter().any(|other| name(other) == name(pair)) {
            out.push(pair.clone());
        }
    }
    out
}

fn settings(from: &Evaluation<'_>) -> Vec<Setting> {
    let several = from.all.iter().flat_map(|(keyword, all)| all.iter().map(move |found| (keyword, found)));
    let mut settings: Vec<Setting> = from
        .first
        .iter()
        .chain(several)
        .map(|(keyword, found)| Setting {
            keyword: *keyword,
            value: found.value.clone(),
            place: found.place.clone(),
        })
        .collect();
    settings.sort_by_key(|setting| setting.keyword);
    settings
}

/// OpenSSH takes no more.
const MOST_KEYS: usize = 100;
