//! Settings of one host, parsed and with tokens expanded.

use std::net::IpAddr;
use std::time::Duration;

use super::algorithms::{KnownAlgorithms, List};
use super::evaluate::{Evaluation, Pass};
use super::expand::{path, texts, variables};
use super::jump::{Hop, host_fault, user_fault};
use super::keyword::Keyword;
use super::load::Loaded;
use super::notice::{self, Effect, Notice};
use super::setting::Value;
use super::tokens::Tokens;
use super::{Asked, Fault, Faults, Jump, Local, Machine, Place, value};

/// Settings of one host. `None` or an empty value means that the setting is not configured.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub typed: String,
    /// Host to connect to: `HostName`, in lower case.
    pub host: String,
    /// `HostKeyAlias`, in lower case.
    pub key_alias: Option<String>,
    pub port: u16,
    pub user: String,
    pub proxy: Proxy,
    pub family: Family,
    pub bind_address: Option<String>,
    pub bind_interface: Option<String>,
    /// Timeout of the connection and the key exchange.
    pub connect_timeout: Option<Duration>,
    /// Number of tries; 1 if not configured.
    pub connection_attempts: u32,
    /// Silence of the server before a keep-alive request; zero means no requests.
    pub alive_interval: Option<Duration>,
    /// Limit of keep-alive requests without an answer.
    pub alive_count: Option<u32>,
    pub rekey: Rekey,
    /// `IdentityFile`, in order; empty for the default files.
    pub identity_files: Vec<KeyFile>,
    /// `CertificateFile`, in order.
    pub certificate_files: Vec<KeyFile>,
    pub agent: Agent,
    /// `IdentitiesOnly`, as configured.
    pub identities_only: bool,
    /// `PubkeyAuthentication`, as configured: false only for `no`.
    pub public_key: bool,
    /// `KexAlgorithms`, with `+`, `-` and `^` resolved.
    pub kex: Option<Vec<String>>,
    /// `Ciphers`, resolved as `kex`.
    pub ciphers: Option<Vec<String>>,
    /// `MACs`, resolved as `kex`.
    pub macs: Option<Vec<String>>,
    /// `HostKeyAlgorithms`, resolved as `kex`.
    pub host_key_algorithms: Option<Vec<String>>,
    /// `PubkeyAcceptedAlgorithms`, resolved as `kex`.
    pub accepted_algorithms: Option<Vec<String>>,
    /// `CASignatureAlgorithms`, resolved as `kex`.
    pub ca_algorithms: Option<Vec<String>>,
    /// RSA keys with fewer bits are refused.
    pub required_rsa_bits: u32,
    /// Patterns of environment variables to pass on.
    pub send_env: Vec<String>,
    /// Environment variables to set, `NAME=VALUE`.
    pub set_env: Vec<String>,
    /// All values by keyword, with their places.
    pub settings: Vec<Setting>,
    /// Settings that OpenSSH supports and Penstock does not.
    pub notices: Vec<Notice>,
    pub(super) shown: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    Direct,
    /// Jump hosts, the nearest first, each with its own configuration.
    Jump(Vec<Hop>),
    /// Command for the shell of the user, with tokens expanded; its input and output carry the connection.
    Command(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Family {
    #[default]
    Any,
    V4,
    V6,
}

impl Family {
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::V4 => "inet",
            Self::V6 => "inet6",
        }
    }
}

/// Limits before a rekey; `None` for the limit of the cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rekey {
    pub bytes: Option<u64>,
    pub time: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// Path, with tokens, variables and `~` expanded.
    pub path: String,
    pub place: Option<Place>,
}

/// Agent for keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agent {
    /// Agent of `SSH_AUTH_SOCK`.
    Environment,
    None,
    /// Agent with this socket.
    Socket(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub keyword: Keyword,
    pub value: Value,
    /// Place of the setting; `None` for the command line.
    pub place: Option<Place>,
}

impl Resolved {
    /// Name of the identity of the host: `HostKeyAlias`, or the name that the operator typed.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.key_alias.as_deref().unwrap_or(&self.typed)
    }

    /// Place of the setting; `None` for the command line, or if the keyword was not set.
    #[must_use]
    pub fn place(&self, keyword: Keyword) -> Option<&Place> {
        self.settings.iter().find(|setting| setting.keyword == keyword)?.place.as_ref()
    }

    /// Value of a keyword; of several values the first.
    #[must_use]
    pub fn setting(&self, keyword: Keyword) -> Option<&Value> {
        self.settings.iter().find(|setting| setting.keyword == keyword).map(|setting| &setting.value)
    }

    /// Requested settings that only OpenSSH supports.
    pub fn obstacles(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter().filter(|notice| notice.effect == Effect::NeedsOpenSsh)
    }
}

pub(super) fn resolve(
    loaded: &Loaded,
    known: &KnownAlgorithms,
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

/// Faults of names from the command line or from a host list. They are checked first, because reading the files may run
/// commands (`Match exec`) that contain these names.
fn typed_faults(asked: &Asked) -> Vec<Fault> {
    let user = asked.user.as_deref().and_then(user_fault);
    let hops = match &asked.jump {
        Some(Jump::Through(hops)) => hops.as_slice(),
        _ => &[],
    };
    let hop = hops.iter().find(|hop| !hop.is_plausible());
    let hop = hop.map(|hop| format!("proxyjump: \"{hop}\" is not a valid jump host"));
    let whats = host_fault(&asked.host).into_iter().chain(hop).map(|what| (what, None));
    whats.chain(user).map(|(what, hint)| Fault { place: None, what, hint }).collect()
}

impl Resolved {
    /// Keywords with their values as `ssh -G` writes them, in alphabetical order. Defaults that differ between builds
    /// of OpenSSH are omitted.
    #[must_use]
    pub fn like_ssh(&self) -> &[(&'static str, String)] {
        &self.shown
    }
}

fn place(evaluation: &Evaluation<'_>, keyword: Keyword) -> Option<Place> {
    evaluation.first.get(&keyword)?.place.clone()
}

struct Builder<'a> {
    from: &'a Evaluation<'a>,
    known: &'a KnownAlgorithms,
    host: String,
    user: String,
    tokens: Tokens,
    faults: Vec<Fault>,
}

impl<'a> Builder<'a> {
    fn new(from: &'a Evaluation<'a>, known: &'a KnownAlgorithms, host: String, faults: Vec<Fault>) -> Self {
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
            self.fault(
                Keyword::ConnectionAttempts,
                "connectionattempts: it must be at least 1".to_owned(),
                None,
            );
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

    /// Checks names that go into command lines and to the server: special characters of a shell are refused.
    fn check_names(&mut self) {
        // The host is empty if `HostName` itself is wrong.
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
                    self.fault(
                        Keyword::ProxyJump,
                        what,
                        Some("`ProxyJump none` for the jump host".to_owned()),
                    );
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
            return Agent::None;
        }
        if let Some(name) = text.strip_prefix('$').filter(|name| !name.starts_with('{')) {
            return self.from.machine.variable(name).map_or(Agent::None, Agent::Socket);
        }
        match self.path(text) {
            Ok(path) => Agent::Socket(path),
            Err(why) => {
                self.fault(Keyword::IdentityAgent, format!("identityagent: {why}"), None);
                Agent::None
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

/// Limit of OpenSSH.
const MOST_KEYS: usize = 100;
