//! `tls` of a listener.

use std::path::PathBuf;

use logic::client_name::NamePattern;

use super::duration;
use super::parser::{Parser, Zero, count};
use crate::de::{At, Key};
use crate::quote::quote;
use crate::raw::{OneOrMany, RawClientCertificates, RawTls};
use crate::types::{
    AcmeSource, Cipher, CipherOrder, ClientCertificateMode, ClientCertificates, ClientHeader, Group,
    MinVersion, Ocsp, TlsPolicy, TlsSettings, UnknownRevocation,
};
use text::nearest::nearest;

impl Parser<'_> {
    pub(super) fn tls(&mut self, at: &At<RawTls>) -> Option<TlsSettings> {
        let raw = &at.value;
        let (certificates, acme) = self.certificate_sources(at);
        let default = match &raw.default {
            Some(name) if name.value.is_empty() || name.value.contains(['/', '\0']) => {
                let hint = "a name of the certificate, or the name of its files without .pem or .crt";
                drop(self.refuse(name, "is not the name of a certificate").hint(hint));
                None
            }
            name => Some(name.as_ref().map(|name| name.value.as_str().into())),
        };
        let key_passphrase_file = match &raw.key_passphrase_file {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let ticket_keys = match &raw.ticket_keys {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let handshake_timeout = self.time(&raw.handshake_timeout, Zero::Refused, duration::DAY);
        let policy = self.tls_policy(at);
        let client_certificates = match &raw.client_certificates {
            Some(clients) => self.client_certificates(clients).map(Some),
            None if self.nodes.is_broken(at.id, "client-certificates") => None,
            None => Some(None),
        };
        Some(TlsSettings {
            certificates: certificates?,
            acme: acme?,
            default: default?,
            key_passphrase_file: key_passphrase_file?,
            ocsp: match raw.ocsp.as_ref()?.value.as_str() {
                "off" => Ocsp::Off,
                _ => Ocsp::On,
            },
            ticket_keys: ticket_keys?,
            policy: policy?,
            handshake_timeout: handshake_timeout?,
            handshakes: count(raw.handshakes.as_ref()?.value),
            client_certificates: client_certificates?,
        })
    }

    /// Returns the preferred certificate directory, and the `[acme.NAME]` section, which may use another directory.
    fn certificate_sources(&mut self, at: &At<RawTls>) -> (Option<PathBuf>, Option<Option<AcmeSource>>) {
        let raw = &at.value;
        let acme = match &raw.acme {
            Some(name) => self.acme_named(name).map(Some),
            None => Some(None),
        };
        let broken = |key| self.nodes.is_broken(at.id, key);
        let directory = match (&raw.certificates, &acme) {
            (Some(path), _) => self.file(path),
            (None, Some(Some(source))) => Some(source.directory.clone()),
            (None, None) => None,
            (None, Some(None)) => {
                if !broken("certificates") && !broken("acme") {
                    let hint = "add certificates = \"/etc/penstock/certs\"";
                    drop(self.report.at_key(self.nodes, at.id, "certificates is missing").hint(hint));
                }
                None
            }
        };
        (directory, acme)
    }

    fn client_certificates(&mut self, at: &At<RawClientCertificates>) -> Option<ClientCertificates> {
        let raw = &at.value;
        let ca = raw.ca.as_ref().and_then(|path| self.file(path));
        let crls = raw.crl.as_ref().and_then(|crl| match &crl.value {
            OneOrMany::One(path) => self.file(&At { id: crl.id, value: path.clone() }).map(|path| vec![path]),
            OneOrMany::Many(paths) => {
                let paths: Vec<_> = paths.iter().map(|path| self.file(path)).collect();
                paths.into_iter().collect()
            }
        });
        let names = raw.names.as_ref().and_then(|names| {
            let names: Vec<_> = names.value.iter().map(|name| self.client_name(name)).collect();
            names.into_iter().collect()
        });
        let headers = match &raw.headers {
            Some(headers) => {
                let headers: Vec<_> = headers.value.iter().map(|word| self.client_header(word)).collect();
                headers.into_iter().collect()
            }
            None if self.nodes.is_broken(at.id, "headers") => None,
            None => {
                let usual = ClientHeader::ALL.into_iter().filter(|header| *header != ClientHeader::Chain);
                Some(usual.collect())
            }
        };
        let mode = match raw.mode.as_ref()?.value.as_str() {
            "request" => ClientCertificateMode::Request,
            _ => ClientCertificateMode::Require,
        };
        let unknown_revocation = match raw.unknown_revocation.as_ref()?.value.as_str() {
            "allow" => UnknownRevocation::Allow,
            _ => UnknownRevocation::Refuse,
        };
        Some(ClientCertificates {
            mode,
            ca: ca?,
            crls: crls?,
            unknown_revocation,
            names: names?,
            headers: headers?,
        })
    }

    fn client_name(&mut self, name: &At<String>) -> Option<NamePattern> {
        match name.value.parse() {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                drop(self.refuse_with(name, &error));
                None
            }
        }
    }

    fn client_header(&mut self, word: &At<String>) -> Option<ClientHeader> {
        let known = ClientHeader::ALL.into_iter().find(|known| known.word() == word.value);
        if known.is_none() {
            let words = ClientHeader::ALL.map(ClientHeader::word);
            let near = nearest(&word.value, words);
            let reason = format!("is not a known header; known: {}", words.join(", "));
            let draft = self.refuse(word, &reason);
            if let Some(near) = near {
                drop(draft.hint_from_value(format!("did you mean {}?", quote(near))));
            }
        }
        known
    }

    fn tls_policy(&mut self, at: &At<RawTls>) -> Option<TlsPolicy> {
        let raw = &at.value;
        let word = |key: &Key<String>| key.as_ref().map(|word| word.value.clone());
        let mut policy = match word(&raw.policy)?.as_str() {
            "modern" => TlsPolicy::modern(),
            "compatible" => TlsPolicy::compatible(),
            _ => TlsPolicy::intermediate(),
        };
        match word(&raw.min_version).as_deref() {
            Some("1.3") => policy.min_version = MinVersion::Tls13,
            Some(_) if word(&raw.policy).as_deref() == Some("modern") => policy = TlsPolicy::intermediate(),
            _ => {}
        }
        if word(&raw.cipher_order)? == "server" {
            policy.order = CipherOrder::Server;
        }
        let ciphers = self.known(&raw.ciphers, "cipher", &Cipher::ALL, Cipher::names);
        let groups = self.known(&raw.groups, "group of the key exchange", &Group::ALL, Group::names);
        if let Some(ciphers) = ciphers? {
            policy.ciphers = ciphers;
        }
        if let Some(groups) = groups? {
            policy.groups = groups;
        }
        let allowed = |version| version >= policy.min_version;
        if !policy.ciphers.iter().any(|cipher| allowed(cipher.version())) {
            let id = raw.ciphers.as_ref().map_or(at.id, |ciphers| ciphers.id);
            let message = "none of these ciphers is for TLS 1.3, and nothing older is allowed";
            drop(self.report.at(self.nodes, id, message).hint("add \"TLS_AES_256_GCM_SHA384\""));
            return None;
        }
        let only_old = policy.ciphers.iter().all(|cipher| cipher.version() == MinVersion::Tls12);
        if only_old && policy.groups.iter().all(|group| group.version() == MinVersion::Tls13) {
            let id = raw.groups.as_ref().map_or(at.id, |groups| groups.id);
            let message = "none of these groups works with TLS 1.2, and all listed ciphers are for TLS 1.2";
            drop(self.report.at(self.nodes, id, message).hint("add \"X25519\""));
            return None;
        }
        Some(policy)
    }

    /// Parses names from a closed list without repetitions. The inner `None` means that the key is absent.
    fn known<T: Copy + PartialEq>(
        &mut self,
        key: &Key<Vec<At<String>>>,
        what: &str,
        all: &[T],
        names: fn(T) -> &'static [&'static str],
    ) -> Option<Option<Vec<T>>> {
        let Some(list) = key else { return Some(None) };
        if list.value.is_empty() {
            if !self.nodes.is_incomplete(list.id) {
                drop(self.report.at(self.nodes, list.id, "this list is empty: no handshake could succeed"));
            }
            return None;
        }
        let mut found = Vec::new();
        let mut faults = 0;
        for entry in &list.value {
            let is_meant = |name: &str| name.eq_ignore_ascii_case(&entry.value);
            match all.iter().find(|known| names(**known).iter().any(|name| is_meant(name))) {
                Some(known) if found.contains(known) => {}
                Some(known) => found.push(*known),
                None => {
                    faults += 1;
                    let every = || all.iter().flat_map(|known| names(*known)).copied();
                    let near = nearest(&entry.value, every());
                    let firsts: Vec<_> = all.iter().map(|known| names(*known)[0]).collect();
                    let known = format!("known are {}", firsts.join(", "));
                    let draft = self.refuse(entry, &format!("is no {what} that is known here; {known}"));
                    if let Some(near) = near {
                        drop(draft.hint_from_value(format!("did you mean {}?", quote(near))));
                    }
                }
            }
        }
        (faults == 0).then_some(Some(found))
    }
}
