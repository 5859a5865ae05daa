//! `[otp]`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use logic::peers::{PeerSet, PeerSetEntry};
use text::nearest::nearest;

use super::address;
use super::parser::{Parser, Zero, count};
use crate::de::At;
use crate::quote::quote;
use crate::raw::{RawConfig, RawOtp};
use crate::tree::Nodes;
use crate::types::{Listener, LogIn, Otp};

/// Longest time for other servers to answer.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Parser<'_> {
    /// `Some(None)` without the section. `listeners` is `None` if one of them was refused.
    pub(super) fn otp(&mut self, raw: &RawConfig, listeners: Option<&[Listener]>) -> Option<Option<Otp>> {
        let Some(section) = &raw.otp else {
            return (!self.nodes.is_broken(Nodes::ROOT, "otp")).then_some(None);
        };
        let section = &section.value;
        let store = section.store.as_ref().and_then(|path| self.file(path));
        let key_file = section.key_file.as_ref().and_then(|path| self.file(path));
        let answering = self.answering(section, listeners);
        let auth_socket = match &section.socket {
            Some(path) => Some(self.read(path, address::unix_path)?),
            None => None,
        };
        let validators = self.validators(section);
        let named = self.peers(&section.sync_from)?;
        let users = match &section.users {
            Some(path) => Some(self.file(path)?),
            None => None,
        };
        let log_in = self.log_in(section);
        let level = count(section.sync_level.as_ref()?.value);
        let sync_timeout = self.time(&section.sync_timeout, Zero::Refused, LONGEST_WAIT)?;
        let validators = validators?;
        let sync_from = match named.is_empty() {
            false => named,
            true => validators
                .iter()
                .map(|peer| PeerSetEntry::Network(IpNet::from(peer.ip())))
                .collect::<PeerSet>(),
        };
        Some(Some(Otp {
            store: store?,
            key_file: key_file?,
            answering: answering?,
            auth_socket,
            validators,
            sync_from,
            sync_level: u8::try_from(level).unwrap_or(100),
            sync_timeout,
            users,
            log_in: log_in?,
        }))
    }

    /// Names of the listeners that answer as a validation server. `None` if one cannot, or if listeners were refused.
    fn answering(&mut self, section: &RawOtp, listeners: Option<&[Listener]>) -> Option<HashSet<Arc<str>>> {
        let listeners = listeners?;
        let names = section.listeners.as_ref().into_iter().flat_map(|names| &names.value);
        // The fault of each is told before the first one counts.
        let read: Vec<_> = names.map(|name| self.http_listener(name, listeners)).collect();
        read.into_iter().collect()
    }

    fn http_listener(&mut self, name: &At<String>, listeners: &[Listener]) -> Option<Arc<str>> {
        match listeners.iter().find(|listener| *listener.name == *name.value) {
            Some(listener) if listener.protocol.is_http() => return Some(listener.name.clone()),
            Some(_) => {
                let draft = self.refuse(name, "is no listener with protocol = \"http\"");
                drop(draft.hint("only such a listener reads requests"));
            }
            None => {
                let near = nearest(&name.value, listeners.iter().map(|listener| &*listener.name));
                let draft = self.refuse(name, "is no listener");
                drop(match near {
                    Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                    None => draft.hint("write the NAME of a [listener.NAME]"),
                });
            }
        }
        None
    }

    /// Other validation servers. `None` if one is no address.
    fn validators(&mut self, section: &RawOtp) -> Option<Vec<SocketAddr>> {
        let texts = section.peers.as_ref().into_iter().flat_map(|peers| &peers.value);
        let read = texts.map(|text| match text.value.parse::<SocketAddr>() {
            Ok(address) if address.port() > 0 => Some(address),
            _ => {
                drop(self.refuse(text, "is no address with a port").hint("write it as \"10.0.0.2:8080\""));
                None
            }
        });
        // Each is read before the first fault counts.
        let read: Vec<_> = read.collect();
        read.into_iter().collect()
    }

    /// What a log-in must prove. `None` if it needs passwords, and no user has one.
    fn log_in(&mut self, section: &RawOtp) -> Option<Option<LogIn>> {
        let log_in = section.log_in.as_ref().and_then(|word| word.value.parse().ok());
        if let (Some(at), Some(LogIn::Password | LogIn::Either | LogIn::Both), None) =
            (&section.log_in, log_in, &section.users)
        {
            let draft = self.refuse(at, "asks for passwords, and there are no users with passwords");
            drop(draft.hint("add users = \"/etc/penstock/users\", which `penstock user add` writes"));
            return None;
        }
        Some(log_in)
    }
}
