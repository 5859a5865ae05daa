//! `listen` of `[control]`, and the keys that belong to it.

use access::Mechanism;
use std::time::Duration;

use access::policy::{Policy, Role, Subject};

use super::bound::Owner;
use super::parser::{Parser, Zero};
use super::refused::Refused;
use crate::de::{At, Key};
use crate::raw::{BindText, RawConfig, RawControl, RawKerberos, RawRoles};
use crate::types::{BindAddress, Kerberos, RemoteControl, StepUp, TlsSettings, TlsStart, Transport};
use text::nearest::nearest;

/// Mechanisms of SASL that a client may use.
const MECHANISMS: [Mechanism; 6] = [
    Mechanism::External,
    Mechanism::Gs2Krb5Plus,
    Mechanism::ScramSha256Plus,
    Mechanism::Gs2Krb5,
    Mechanism::ScramSha256,
    Mechanism::Bearer,
];

/// Longest time for which a one-time password is enough.
const LONGEST_STEP: Duration = Duration::from_secs(24 * 3600);

impl Parser<'_> {
    /// Control over the network; `Some(None)` without it.
    pub(super) fn remote_control(&mut self, raw: &RawConfig) -> Option<Option<RemoteControl>> {
        let Some(control) = &raw.control else { return Some(None) };
        let Some(listen) = &control.value.listen else {
            if self.nodes.is_broken(control.id, "listen") {
                return None;
            }
            self.without_listen(&control.value);
            return Some(None);
        };
        let RawControl { tls_start, users, mechanisms, roles, kerberos, .. } = &control.value;
        let address = self.remote_bind(listen);
        let tls = self.remote_tls(control);
        let users = match users {
            Some(users) => self.file(users).map(Some),
            None if self.nodes.is_broken(control.id, "users") => None,
            None => Some(None),
        };
        let kerberos = match kerberos {
            Some(kerberos) => self.kerberos(&kerberos.value).map(Some),
            None if self.nodes.is_broken(control.id, "kerberos") => None,
            None => Some(None),
        };
        let mechanisms = self.mechanisms(mechanisms);
        let policy = match roles {
            Some(roles) => self.policy(&roles.value),
            None if self.nodes.is_broken(control.id, "roles") => None,
            None => Some(Policy::default()),
        };
        let step_up = self.step_up(raw, &control.value);
        let start = match tls_start.as_ref()?.value.as_str() {
            "starttls" => TlsStart::StartTls,
            _ => TlsStart::Implicit,
        };
        let (listen_at, listen, tls, users, kerberos) = (listen, address?, tls?, users?, kerberos?);
        if users.is_none() && kerberos.is_none() && tls.client_certificates.is_none() {
            let hint = "add users = \"/etc/penstock/users\", kerberos, or client-certificates to tls";
            let message =
                "no operator could log in: there are neither users nor Kerberos nor client certificates";
            drop(self.report.at(self.nodes, listen_at.id, message).hint(hint));
            return None;
        }
        let (mechanisms, policy, step_up) = (mechanisms?, policy?, step_up?);
        Some(Some(RemoteControl { listen, tls, start, users, kerberos, mechanisms, policy, step_up }))
    }

    /// `Some(None)`: no one-time passwords are asked for.
    fn step_up(&mut self, raw: &RawConfig, control: &RawControl) -> Option<Option<StepUp>> {
        let lasts = self.time(&control.step_up_for, Zero::Refused, LONGEST_STEP);
        let except = self.subjects(&control.step_up_except);
        let wanted = control.step_up.as_ref()?;
        let (lasts, except) = (lasts?, except?);
        if wanted.value != "writes" {
            return Some(None);
        }
        if raw.otp.is_none() {
            let message = "step-up needs the section [otp]: without tokens no operator could change anything";
            let hint = "add [otp]; penstock otp init makes its store, penstock otp enrol its tokens";
            drop(self.report.at(self.nodes, wanted.id, message).hint(hint));
            return None;
        }
        Some(Some(StepUp { lasts, except }))
    }

    fn without_listen(&mut self, raw: &RawControl) {
        let keys = [
            raw.tls.as_ref().map(|key| key.id),
            raw.users.as_ref().map(|key| key.id),
            raw.mechanisms.as_ref().map(|key| key.id),
            raw.roles.as_ref().map(|key| key.id),
            raw.kerberos.as_ref().map(|key| key.id),
        ];
        for id in keys.into_iter().flatten() {
            let message = "does nothing without listen: no operator can log in over the network";
            drop(self.report.at_key(self.nodes, id, message).warning());
        }
    }

    fn kerberos(&mut self, raw: &RawKerberos) -> Option<Kerberos> {
        let keytab = match &raw.keytab {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let part = |text: &str| {
            let fits = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
            match !text.is_empty() && text.len() <= 255 && text.chars().all(fits) {
                true => Ok(text.to_owned()),
                false => Err(Refused::new("is no part of a name: letters, digits, dots, hyphens".to_owned())),
            }
        };
        let service = self.read(raw.service.as_ref()?, part);
        let host = match &raw.host {
            Some(host) => self.read(host, part).map(Some),
            None => Some(None),
        };
        Some(Kerberos { keytab: keytab?, service: service?, host: host? })
    }

    fn remote_bind(&mut self, text: &At<BindText>) -> Option<BindAddress> {
        let bind = self.bind_one(text, Owner::Control, Transport::Stream)?;
        match bind {
            BindAddress::AnyIp(_) | BindAddress::Ip(_) => Some(bind),
            BindAddress::Unix(_) | BindAddress::Systemd(_) | BindAddress::EveryPort(_) => {
                let hint = "give an address and a port: \":4040\", \"192.0.2.1:4040\"";
                drop(self.refuse(text, "is no address of the network").hint(hint));
                None
            }
        }
    }

    fn remote_tls(&mut self, control: &At<RawControl>) -> Option<TlsSettings> {
        match &control.value.tls {
            Some(tls) => self.tls(tls),
            None => {
                if !self.nodes.is_broken(control.id, "tls") {
                    let hint = "add tls = { certificates = \"/etc/penstock/certs\" }";
                    let message = "tls is missing: no operator logs in without encryption";
                    drop(self.report.at_key(self.nodes, control.id, message).hint(hint));
                }
                None
            }
        }
    }

    fn mechanisms(&mut self, key: &Key<Vec<At<String>>>) -> Option<Vec<Mechanism>> {
        let Some(key) = key else { return Some(MECHANISMS.to_vec()) };
        let mut found = Vec::new();
        for word in &key.value {
            match MECHANISMS.into_iter().find(|mechanism| mechanism.name() == word.value) {
                Some(mechanism) => found.push(mechanism),
                None => {
                    let names = MECHANISMS.map(Mechanism::name);
                    let near = nearest(&word.value.to_ascii_uppercase(), names);
                    let reason = format!("is no mechanism; there are: {}", names.join(", "));
                    let draft = self.refuse(word, &reason);
                    if let Some(near) = near {
                        drop(draft.hint_from_value(format!("did you mean \"{near}\"?")));
                    }
                }
            }
        }
        (found.len() == key.value.len()).then_some(found)
    }

    fn policy(&mut self, raw: &RawRoles) -> Option<Policy> {
        let lists = [(&raw.view, Role::View), (&raw.operate, Role::Operate), (&raw.admin, Role::Admin)];
        let rules = lists.map(|(list, role)| {
            self.subjects(list).map(|subjects| subjects.into_iter().map(move |subject| (subject, role)))
        });
        let rules: Option<Vec<_>> = rules.into_iter().collect();
        rules.map(|rules| Policy::new(rules.into_iter().flatten()))
    }

    fn subjects(&mut self, list: &Key<Vec<At<String>>>) -> Option<Vec<Subject>> {
        let entries = || list.iter().flat_map(|list| &list.value);
        let read = entries().filter_map(|entry| match entry.value.parse::<Subject>() {
            Ok(subject) => Some(subject),
            Err(why) => {
                let hint = "\"user:ann\", \"group:ops\", \"principal:ann@EXAMPLE.ORG\", \"certificate:ann\", \"token:ci\"";
                drop(self.refuse(entry, &why.to_string()).hint(hint));
                None
            }
        });
        let read: Vec<_> = read.collect();
        (read.len() == entries().count()).then_some(read)
    }
}
