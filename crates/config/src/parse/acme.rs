//! `[acme.NAME]`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::parser::{Parser, Zero};
use super::refused::Refused;
use crate::de::At;
use crate::quote::quote;
use crate::raw::{OneOrMany, RawAcme, RawAcmeTlsa, RawConfig, RawDnsUpdates};
use crate::tree::{NodeId, Nodes};
use crate::types::{
    Acme, AcmeCertificate, AcmeChallenge, AcmeSource, AcmeTlsa, BindAddress, DnsCommand, DnsUpdates,
    ExternalAccount, Listener, TlsSettings, certificates_directory,
};
use text::nearest::nearest;

impl Parser<'_> {
    /// Converts all sections. Their files are below the state directory.
    pub(super) fn all_acme(&mut self, raw: &RawConfig) -> Option<Vec<Acme>> {
        let Some(sections) = &raw.acme else {
            return (!self.nodes.is_broken(Nodes::ROOT, "acme")).then(Vec::new);
        };
        let has_process_fault = raw.process.as_ref().is_none_or(|process| {
            self.nodes.is_broken(process.id, "state-directory") || process.value.state_directory.is_some()
        });
        if let (None, false, Some((_, first))) =
            (&self.acme.state, has_process_fault, sections.value.0.first())
        {
            let message = "account and certificates must survive a restart, and there is no state directory";
            let hint = "add state-directory = \"/var/lib/penstock\" to [process]";
            drop(self.report.at_key(self.nodes, first.id, message).hint(hint));
        }
        let all: Vec<_> =
            sections.value.0.iter().map(|(name, section)| self.acme_section(name, section)).collect();
        all.into_iter().collect()
    }

    fn acme_section(&mut self, name: &str, at: &At<RawAcme>) -> Option<Acme> {
        let raw = &at.value;
        let valid = self.name(name, at.id);
        let agreed = raw.terms_agreed.as_ref().and_then(|agreed| {
            if !agreed.value {
                let message =
                    "the authority issues certificates only with your consent to its terms of service";
                drop(self.report.at(self.nodes, agreed.id, message).hint("read them, then write true"));
            }
            agreed.value.then_some(())
        });
        let directory = raw.directory.as_ref().and_then(|url| self.read(url, https_url));
        let contacts = match &raw.contact {
            None => Some(Vec::new()),
            Some(contact) => self.texts(contact, mailbox),
        };
        let challenge = self.challenge(at.id, raw);
        let tlsa = match &raw.tlsa {
            Some(tlsa) => self.acme_tlsa(tlsa).map(Some),
            None => Some(None),
        };
        let ca = match &raw.ca {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let profile = match &raw.profile {
            Some(profile) => self.read(profile, word).map(Some),
            None => Some(None),
        };
        let external_account = match &raw.external_account {
            Some(account) => {
                let id = account.value.id.as_ref().and_then(|id| self.read(id, word));
                let key_file = account.value.key_file.as_ref().and_then(|path| self.file(path));
                id.zip(key_file).map(|(id, key_file)| Some(ExternalAccount { id: id.into(), key_file }))
            }
            None => Some(None),
        };
        let wildcards = match raw.challenge.as_ref().map(|challenge| challenge.value.as_str()) {
            Some("dns-01") => Wildcards::Allowed,
            _ => Wildcards::Refused,
        };
        let certificates = raw.names.as_ref().and_then(|list| self.acme_certificates(list, wildcards));
        valid?;
        agreed?;
        Some(Acme {
            name: name.into(),
            directory: directory?,
            contacts: contacts?,
            challenge: challenge?,
            tlsa: tlsa?,
            ca: ca?,
            profile: profile?,
            external_account: external_account?,
            certificates: certificates?,
            state: self.acme.state.as_ref()?.join(name),
        })
    }

    fn acme_tlsa(&mut self, tlsa: &At<RawAcmeTlsa>) -> Option<AcmeTlsa> {
        let raw = &tlsa.value;
        let server = raw.server.as_ref().and_then(|server| self.read(server, dns_server));
        let key_file = raw.key_file.as_ref().and_then(|path| self.file(path));
        let services = raw.services.as_ref().and_then(|list| {
            if list.value.is_empty() {
                let message = "this list is empty: there is no port for the records";
                drop(self.report.at(self.nodes, list.id, message));
                return None;
            }
            let all: Vec<_> = list.value.iter().map(|entry| self.read(entry, service)).collect();
            all.into_iter().collect()
        });
        let servers = match &raw.servers {
            Some(list) => {
                let all: Vec<_> = list.value.iter().map(|entry| self.read(entry, dns_server)).collect();
                all.into_iter().collect()
            }
            None => Some(Vec::new()),
        };
        let limit = self.time(&raw.time_limit, Zero::Refused, LONGEST_LIMIT);
        Some(AcmeTlsa {
            server: server?,
            key_file: key_file?,
            services: services?,
            servers: servers?,
            limit: limit?,
        })
    }

    fn challenge(&mut self, section: NodeId, raw: &RawAcme) -> Option<AcmeChallenge> {
        let word = raw.challenge.as_ref()?;
        match (word.value.as_str(), &raw.dns) {
            ("dns-01", Some(dns)) => self.dns_records(dns),
            ("dns-01", None) => {
                if !self.nodes.is_broken(section, "dns") {
                    let hint = "dns = { server = \"192.0.2.53\", key-file = \"/etc/penstock/acme.key\" }";
                    let message = "dns-01 needs a name server that takes updates, or a command";
                    drop(self.report.at(self.nodes, word.id, message).hint(hint));
                }
                None
            }
            (other, dns) => {
                if let Some(dns) = dns {
                    let message = "is for challenge = \"dns-01\" only";
                    drop(self.report.at_key(self.nodes, dns.id, message));
                    return None;
                }
                let is_alpn = other == "tls-alpn-01";
                Some(if is_alpn { AcmeChallenge::TlsAlpn01 } else { AcmeChallenge::Http01 })
            }
        }
    }

    fn dns_records(&mut self, dns: &At<RawDnsUpdates>) -> Option<AcmeChallenge> {
        let raw = &dns.value;
        let wait = self.time(&raw.wait, Zero::Allowed, LONGEST_WAIT);
        let limit = self.time(&raw.time_limit, Zero::Refused, LONGEST_WAIT);
        if let Some(command) = &raw.command {
            for other in [raw.server.as_ref().map(|key| key.id), raw.key_file.as_ref().map(|key| key.id)] {
                let message = "is not used with command: remove one of them";
                other.into_iter().for_each(|id| drop(self.report.at_key(self.nodes, id, message)));
            }
            let words: Vec<String> = command.value.iter().map(|word| word.value.clone()).collect();
            let fault = match words.first() {
                None => Some("this list is empty: it is a program and its arguments"),
                Some(program) if !program.starts_with('/') => {
                    Some("the program needs its whole path, which begins with /")
                }
                Some(_) if words.iter().any(|word| word.contains('\0')) => Some("a word has a zero byte"),
                Some(_) => None,
            };
            if let Some(message) = fault {
                let hint = "command = [\"/etc/penstock/dns-hook\"]";
                drop(self.report.at(self.nodes, command.id, message).hint(hint));
                return None;
            }
            if raw.server.is_some() || raw.key_file.is_some() {
                return None;
            }
            return Some(AcmeChallenge::DnsCommand(DnsCommand { words, limit: limit?, wait: wait? }));
        }
        for (key, is_there) in [("server", raw.server.is_some()), ("key-file", raw.key_file.is_some())] {
            let is_broken = [key, "command"].iter().any(|key| self.nodes.is_broken(dns.id, key));
            if !is_there && !is_broken {
                let message = format!("{key} is missing: server and key-file are needed, or command");
                let hint = "dns = { server = \"192.0.2.53\", key-file = \"/etc/penstock/acme.key\" }";
                drop(self.report.at_key(self.nodes, dns.id, message).hint(hint));
            }
        }
        let server = raw.server.as_ref().and_then(|server| self.read(server, dns_server));
        let key_file = raw.key_file.as_ref().and_then(|path| self.file(path));
        Some(AcmeChallenge::Dns01(DnsUpdates { server: server?, key_file: key_file?, wait: wait? }))
    }

    fn acme_certificates(
        &mut self,
        list: &At<Vec<At<OneOrMany<String>>>>,
        wildcards: Wildcards,
    ) -> Option<Vec<AcmeCertificate>> {
        if list.value.is_empty() {
            if !self.nodes.is_incomplete(list.id) {
                drop(self.report.at(self.nodes, list.id, "this list is empty: nothing would be ordered"));
            }
            return None;
        }
        let all: Vec<_> = list.value.iter().map(|entry| self.acme_certificate(entry, wildcards)).collect();
        let all: Vec<AcmeCertificate> = all.into_iter().collect::<Option<_>>()?;
        let mut seen: HashMap<Arc<str>, NodeId> = HashMap::new();
        for (entry, certificate) in list.value.iter().zip(&all) {
            if let Some(first) = seen.insert(certificate.name.clone(), entry.id) {
                let place = self.report.whereabouts(self.nodes, first);
                let message = format!(
                    "another certificate begins with {}{place}, and files are named by the first name",
                    quote(&certificate.name)
                );
                drop(self.report.at(self.nodes, entry.id, message));
                return None;
            }
        }
        Some(all)
    }

    fn acme_certificate(
        &mut self,
        entry: &At<OneOrMany<String>>,
        wildcards: Wildcards,
    ) -> Option<AcmeCertificate> {
        let names = self.texts(entry, |text| host_name(text, wildcards))?;
        if names.len() > MOST_NAMES {
            let message = format!("{} names: authorities put at most {MOST_NAMES} into one", names.len());
            drop(self.report.at(self.nodes, entry.id, message).hint("make several certificates of them"));
            return None;
        }
        let mut unique: Vec<String> = Vec::new();
        for name in names {
            if !unique.contains(&name) {
                unique.push(name);
            }
        }
        let Some(first) = unique.first() else {
            drop(self.report.at(
                self.nodes,
                entry.id,
                "this list of host names is empty: a certificate needs at least one name",
            ));
            return None;
        };
        // An asterisk in the name of a file is trouble for every shell.
        Some(AcmeCertificate { name: first.replacen('*', "_wildcard", 1).into(), names: unique })
    }

    /// Reads a list of texts or a single text.
    fn texts<V>(
        &mut self,
        at: &At<OneOrMany<String>>,
        read: impl Fn(&str) -> Result<V, Refused>,
    ) -> Option<Vec<V>> {
        match &at.value {
            OneOrMany::One(text) => {
                self.read(&At { id: at.id, value: text.clone() }, read).map(|value| vec![value])
            }
            OneOrMany::Many(list) => {
                let all: Vec<_> = list.iter().map(|text| self.read(text, &read)).collect();
                all.into_iter().collect()
            }
        }
    }

    /// Finds the section that a listener names.
    pub(super) fn acme_named(&mut self, name: &At<String>) -> Option<AcmeSource> {
        if self.acme.names.contains(&name.value) {
            // A missing state directory was already reported.
            let directory = certificates_directory(&self.acme.state.as_ref()?.join(&name.value));
            return Some(AcmeSource { name: name.value.as_str().into(), directory });
        }
        if self.nodes.is_broken(Nodes::ROOT, "acme") {
            return None;
        }
        let near = nearest(&name.value, self.acme.names.iter().map(String::as_str));
        let hint = near.map(|near| format!("did you mean {}?", quote(near)));
        let shown = self.nodes.show(name.id, &name.value);
        let draft = self.report.at(
            self.nodes,
            name.id,
            format!("there is no section of this name: {shown} needs an [acme.NAME]"),
        );
        drop(match hint {
            Some(hint) => draft.hint_from_value(hint),
            None => draft.hint("add [acme.NAME] with names and terms-agreed"),
        });
        None
    }

    /// Reports sections that no listener uses, and challenges that no listener can answer.
    pub(super) fn useless_acme(&mut self, raw: &RawConfig, sections: &[Acme], listeners: &[Listener]) {
        let Some(all) = &raw.acme else { return };
        let names = |tls: &TlsSettings, section: &Acme| {
            tls.acme.as_ref().is_some_and(|source| source.name == section.name)
        };
        for (section, (_, at)) in sections.iter().zip(&all.value.0) {
            if !listeners.iter().any(|it| it.tls.as_ref().is_some_and(|tls| names(tls, section))) {
                let message =
                    "no listener uses these certificates, so they are not requested from the authority";
                let hint = format!("add acme = {} to tls of a listener", quote(&section.name));
                drop(self.report.at_key(self.nodes, at.id, message).warning().hint(hint));
                continue;
            }
            let (port, what, fits): (u16, _, fn(&Listener) -> bool) = match &section.challenge {
                AcmeChallenge::Http01 => (80, "without tls and with protocol = \"http\"", |listener| {
                    listener.tls.is_none() && listener.protocol.is_http()
                }),
                AcmeChallenge::TlsAlpn01 => (443, "with tls", |listener| listener.tls.is_some()),
                AcmeChallenge::Dns01(_) | AcmeChallenge::DnsCommand(_) => continue,
            };
            let word = section.challenge.word();
            let mut able = listeners.iter().filter(|listener| fits(listener)).peekable();
            if able.peek().is_none() {
                let message = format!("{word} is answered by a listener {what}, and there is none");
                drop(self.report.at_key(self.nodes, at.id, message));
                continue;
            }
            let at_port = |bind: &BindAddress| match bind {
                BindAddress::AnyIp(own) => *own == port,
                BindAddress::Ip(address) => address.port() == port,
                // It terminates no TLS.
                BindAddress::EveryPort(_) => false,
                BindAddress::Unix(_) | BindAddress::Systemd(_) => true,
            };
            if !able.any(|listener| listener.binds.iter().any(at_port)) {
                let message = format!(
                    "authorities connect to port {port} of each name, and no listener {what} is on it: forward it \
                     here"
                );
                drop(self.report.at_key(self.nodes, at.id, message).warning());
            }
        }
    }
}

/// Largest number of names in one certificate, as at Let's Encrypt and other authorities.
const MOST_NAMES: usize = 100;

/// Checks that a URL has `https` and a host.
fn https_url(text: &str) -> Result<Box<str>, Refused> {
    let Some(rest) = text.strip_prefix("https://") else {
        let reason = match text.starts_with("http://") {
            true => "is not encrypted: ACME is spoken over https only",
            false => "is not a URL with https",
        };
        return Err(Refused::new(reason));
    };
    let host = rest.split('/').next().unwrap_or_default();
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte));
    if host.is_empty() || host.starts_with(':') || host.contains('@') || !visible || text.len() > 2048 {
        return Err(Refused::new("is not a URL of a directory"));
    }
    Ok(text.into())
}

/// Converts a contact to the `mailto` URL that ACME requires.
fn mailbox(text: &str) -> Result<String, Refused> {
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"\",?%:<>()[]\\".contains(&byte);
    match address.split_once('@') {
        Some((who, domain))
            if !who.is_empty()
                && !domain.is_empty()
                && !domain.contains('@')
                && text.len() <= 320
                && address.bytes().all(fits) =>
        {
            Ok(format!("mailto:{address}"))
        }
        _ => Err(Refused::new("is not an e-mail address").in_general("such as \"admin@example.org\"")),
    }
}

fn word(text: &str) -> Result<Box<str>, Refused> {
    match (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.into()),
        false => Err(Refused::new("is not one word of visible characters")),
    }
}

/// Longest time between an update and the look at it.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 60);

/// Longest wait for a record at all servers.
const LONGEST_LIMIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Reads the address of a service.
fn service(text: &str) -> Result<SocketAddr, Refused> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok(address),
        _ => Err(Refused::new("is not an address with a port")
            .in_general("such as \"192.0.2.10:443\" or \"[2001:db8::10]:443\"")),
    }
}

/// Whether the challenge of a section allows wildcards (RFC 8555 section 7.1.3).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wildcards {
    Allowed,
    Refused,
}

/// Reads an address with or without a port.
fn dns_server(text: &str) -> Result<SocketAddr, Refused> {
    const PORT: u16 = 53;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().map(|address: IpAddr| SocketAddr::new(address, PORT));
    let address = address.or_else(|_| text.parse());
    match address {
        Ok(address) if address.port() != 0 => Ok(address),
        _ => Err(Refused::new("is not the address of a name server")
            .in_general("such as \"192.0.2.53\" or \"[2001:db8::53]:5353\"")),
    }
}

/// Checks that a public authority could connect to a name for its validation (RFC 1123 section 2.1).
fn host_name(text: &str, wildcards: Wildcards) -> Result<String, Refused> {
    if let (Some(parent), Wildcards::Allowed) = (text.strip_prefix("*."), wildcards) {
        return host_name(parent, Wildcards::Refused).map(|parent| format!("*.{parent}"));
    }
    if text.contains('*') {
        let (reason, hint) = match wildcards {
            Wildcards::Allowed => {
                ("has an asterisk in another place than the first label", "write \"*.example.org\"")
            }
            Wildcards::Refused => (
                "is a wildcard, which can only be validated by DNS (dns-01)",
                "set challenge = \"dns-01\" and dns, or name the hosts one by one",
            ),
        };
        return Err(Refused::new(reason).in_general(hint));
    }
    if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Err(Refused::new("is an address: certificates are ordered for names only"));
    }
    if text.contains("://") || text.contains('/') {
        return Err(Refused::new("is a URL, not a host name"));
    }
    if !text.is_ascii() {
        let hint = "write it as DNS does, in Punycode: \"xn--...\"";
        return Err(Refused::new("has characters that host names do not have").in_general(hint));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return Err(Refused::new("is not a host name"));
    }
    Ok(name.to_ascii_lowercase())
}
