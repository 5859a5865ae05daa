//! Settings that OpenSSH supports and Penstock does not, with file and line.

use std::collections::BTreeMap;

use super::Place;
use super::evaluate::Found;
use super::keyword::Keyword;
use super::setting::Value;

/// Effect of an unsupported setting on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// The connection is the same or better without the setting.
    Harmless,
    /// The connection works, but without a requested feature.
    Ignored,
    /// Penstock might reach another host, or none: only OpenSSH can connect as configured.
    NeedsOpenSsh,
}

impl Effect {
    /// Word in reports and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Ignored => "ignored",
            Self::NeedsOpenSsh => "needs --engine openssh",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Place of the setting; `None` for the command line.
    pub place: Option<Place>,
    /// Keyword; `None` for a line that OpenSSH ignores too.
    pub keyword: Option<Keyword>,
    pub value: String,
    pub effect: Effect,
    pub meaning: &'static str,
}

/// Collects the notices, sorted by effect, the most important first.
pub(super) fn collect(
    first: &BTreeMap<Keyword, Found>,
    all: &BTreeMap<Keyword, Vec<Found>>,
    passed: &[(Place, &'static str)],
) -> Vec<Notice> {
    let several = all.iter().flat_map(|(keyword, found)| found.iter().map(move |found| (keyword, found)));
    let mut notices: Vec<Notice> = first
        .iter()
        .chain(several)
        .filter_map(|(keyword, found)| {
            let (effect, meaning) = judge(*keyword, &found.value)?;
            let value = found.value.to_string();
            Some(Notice { place: found.place.clone(), keyword: Some(*keyword), value, effect, meaning })
        })
        .collect();
    if let (Some(Found { value: Value::Word("yes"), .. }), Some(command)) =
        (first.get(&Keyword::PermitLocalCommand), first.get(&Keyword::LocalCommand))
    {
        notices.push(Notice {
            place: command.place.clone(),
            keyword: Some(Keyword::LocalCommand),
            value: command.value.to_string(),
            effect: Effect::Ignored,
            meaning: "no local command is run",
        });
    }
    notices.extend(passed.iter().map(|(place, meaning)| Notice {
        place: Some(place.clone()),
        keyword: None,
        value: String::new(),
        effect: Effect::Harmless,
        meaning,
    }));
    notices.sort_by(|a, b| (b.effect, &a.place, a.keyword).cmp(&(a.effect, &b.place, b.keyword)));
    notices
}

/// Effect of a setting that Penstock ignores; `None` if the setting is supported or asks for what Penstock always does.
fn judge(keyword: Keyword, value: &Value) -> Option<(Effect, &'static str)> {
    use Effect::{Harmless, Ignored, NeedsOpenSsh};
    let word = match value {
        Value::Word(word) => *word,
        Value::Text(text) => text.as_str(),
        _ => "",
    };
    let off = matches!(word, "no" | "false") || word.eq_ignore_ascii_case("none");
    let unless_off = |effect, meaning| (!off).then_some((effect, meaning));
    match keyword {
        Keyword::CanonicalizeHostname => {
            unless_off(NeedsOpenSsh, "the name is looked up as it is, without search domains")
        }
        Keyword::CanonicalizePermittedCnames => match value {
            Value::Words(rules) if rules.first().is_some_and(|rule| rule != "none") => {
                Some((NeedsOpenSsh, "CNAMEs do not change the name of the host"))
            }
            _ => None,
        },
        Keyword::Pkcs11Provider => {
            unless_off(NeedsOpenSsh, "keys on smart cards are used only through an agent (ssh-add -s)")
        }
        Keyword::ProxyUseFdpass => {
            unless_off(NeedsOpenSsh, "no descriptor is taken over from a proxy command")
        }
        Keyword::PubkeyAuthentication if off => {
            Some((NeedsOpenSsh, "only public keys and certificates are supported"))
        }
        Keyword::PreferredAuthentications if !word.split(',').any(|method| method.trim() == "publickey") => {
            Some((NeedsOpenSsh, "only public keys and certificates are supported"))
        }
        Keyword::GssApiKeyExchange => unless_off(NeedsOpenSsh, "GSSAPI key exchange is not supported"),
        Keyword::BindAddress | Keyword::BindInterface => {
            Some((NeedsOpenSsh, "the address to connect from is left to the system"))
        }
        Keyword::ConnectionAttempts if *value != Value::Number(1) => {
            Some((Ignored, "one attempt is made; `penstock run` tries again where that is safe"))
        }
        Keyword::CaSignatureAlgorithms => {
            Some((Ignored, "certificates of hosts are judged by `penstock host`"))
        }
        Keyword::SetEnv => Some((Ignored, "no variables are set there")),
        Keyword::SendEnv => Some((Harmless, "no variables of this machine are sent")),
        Keyword::TcpKeepAlive if off => Some((Harmless, "dead connections are noticed anyway")),
        Keyword::HostbasedAuthentication => unless_off(Ignored, "no login by the key of this machine"),
        Keyword::AddKeysToAgent => unless_off(Ignored, "no key is added to the agent"),
        Keyword::CheckHostIp => unless_off(Ignored, "the identity of a host is its name, never its address"),
        Keyword::ForwardAgent | Keyword::ForwardAgentSocket => unless_off(
            Ignored,
            "the agent is not forwarded: commands there cannot log in elsewhere with your keys",
        ),
        Keyword::ForwardX11 => unless_off(Ignored, "no X11 programs"),
        Keyword::KnownHostsCommand if super::launcher::is_ours(word) => {
            Some((Harmless, "it asks `penstock host`, which judges host keys here too"))
        }
        Keyword::KnownHostsCommand => {
            unless_off(Ignored, "host keys are judged by `penstock host`, which does not ask this command")
        }
        Keyword::NoHostAuthenticationForLocalhost => {
            unless_off(Ignored, "the key of this machine is judged like any other")
        }
        Keyword::RevokedHostKeys => {
            unless_off(Ignored, "host keys are judged by `penstock host`: revoke these keys there")
        }
        Keyword::StrictHostKeyChecking if matches!(word, "false" | "accept-new") => {
            Some((Ignored, "host keys are judged by `penstock host`, which accepts no host without proof"))
        }
        Keyword::UserKnownHostsFile | Keyword::GlobalKnownHostsFile if names_none(value) => {
            Some((Harmless, "no file: host keys are judged by `penstock host`"))
        }
        Keyword::UserKnownHostsFile | Keyword::GlobalKnownHostsFile => {
            Some((Ignored, "host keys are judged by `penstock host`: import this file there"))
        }
        Keyword::VerifyHostKeyDns => {
            unless_off(Ignored, "`penstock host` decides whether host keys from the DNS (SSHFP) are trusted")
        }
        Keyword::RemoteCommand => unless_off(Ignored, "only the requested command is run"),
        Keyword::SecurityKeyProvider if word != "internal" => {
            unless_off(Ignored, "security keys are used only through an agent")
        }
        Keyword::SessionType if word != "default" => Some((Ignored, "penstock always runs a command")),
        Keyword::LocalForward | Keyword::RemoteForward | Keyword::DynamicForward => {
            Some((Ignored, "forwards are opened by `penstock tunnel` only"))
        }
        Keyword::Tunnel => unless_off(Ignored, "no network interface is tunnelled"),
        Keyword::ChannelTimeout => Some((Ignored, "penstock has no timeout for channels")),
        Keyword::GssApiAuthentication => unless_off(Harmless, "no login by Kerberos: keys are tried"),
        Keyword::GssApiDelegateCredentials => unless_off(Harmless, "no login by Kerberos"),
        Keyword::Compression => unless_off(Harmless, "nothing is compressed"),
        Keyword::ControlMaster | Keyword::ControlPath | Keyword::ControlPersist => {
            unless_off(Harmless, "penstock shares its own connections only with itself")
        }
        Keyword::UpdateHostKeys => Some((Harmless, "new host keys are recorded as `penstock host` says")),
        Keyword::HashKnownHosts => {
            unless_off(Harmless, "no known_hosts file is written").filter(|_| word == "yes")
        }
        Keyword::IpQos => Some((Harmless, "packets are not marked")),
        Keyword::LogLevel | Keyword::LogVerbose | Keyword::SyslogFacility => {
            Some((Harmless, "penstock has its own logs"))
        }
        Keyword::ForkAfterAuthentication | Keyword::StdinNull | Keyword::RequestTty | Keyword::EscapeChar => {
            Some((Harmless, "the penstock command decides this"))
        }
        Keyword::ObscureKeystrokeTiming | Keyword::VersionAddendum | Keyword::VisualHostKey => {
            unless_off(Harmless, "has no effect on non-interactive commands")
        }
        _ => None,
    }
}

/// True if the value is only `none`.
fn names_none(value: &Value) -> bool {
    match value {
        Value::Words(words) => words.iter().all(|word| word.eq_ignore_ascii_case("none")),
        Value::Text(text) => text.eq_ignore_ascii_case("none"),
        _ => false,
    }
}
