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
use crate::quote::quote;
use crate::raw::RawConfig;
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
        let mut answering: HashSet<Arc<str>> = HashSet::new();
        let mut refused = 0;
        for name in section.listeners.as_ref().into_iter().flat_map(|names| &names.value) {
            let Some(listeners) = listeners else { continue };
            match listeners.iter().find(|listener| *listener.name == *name.value) {
                Some(listener) if listener.protocol.is_http() => {
                    answering.insert(listener.name.clone());
                }
                Some(_) => {
                    let draft = self.refuse(name, "is no listener with protocol = \"http\"");
                    drop(draft.hint("only such a listener reads requests"));
                    refused += 1;
                }
                None => {
                    let near = nearest(&name.value, listeners.iter().map(|listener| &*listener.name));
                    let draft = self.refuse(name, "is no listener");
                    drop(match near {
                        Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                        None => draft.hint("write the NAME of a [listener.NAME]"),
                    });
                    refused += 1;
                }
            }
        }
        let auth_socket = match &section.socket {
            Some(path) => Some(self.read(path, address::unix_path)?),
            None => None,
        };
        let mut validators = Vec::new();
        for text in section.peers.as_ref().into_iter().flat_map(|peers| &peers.value) {
            match text.value.parse::<SocketAddr>() {
                Ok(address) if address.port() > 0 => validators.push(address),
                _ => {
                    drop(
                        self.refuse(text, "is no address with a port").hint("write it as \"10.0.0.2:8080\""),
                    );
                    refused += 1;
                }
            }
        }
        let named = self.peers(&section.sync_from)?;
        let sync_from = match named.is_empty() {
            false => named,
            true => validators
                .iter()
                .map(|peer| PeerSetEntry::Network(IpNet::from(peer.ip())))
                .collect::<PeerSet>(),
        };
        let users = match &section.users {
            Some(path) => Some(self.file(path)?),
            None => None,
        };
        let log_in: Option<LogIn> = section.log_in.as_ref().and_then(|word| word.value.parse().ok());
        if let (Some(at), Some(LogIn::Password | LogIn::Either | LogIn::Both), None) =
            (&section.log_in, log_in, &section.users)
        {
            let draft = self.refuse(at, "asks for passwords, and there are no users with passwords");
            drop(draft.hint("add users = \"/etc/penstock/users\", which `penstock user add` writes"));
            refused += 1;
        }
        let level = count(section.sync_level.as_ref()?.value);
        let sync_timeout = self.time(&section.sync_timeout, Zero::Refused, LONGEST_WAIT)?;
        let (store, key_file) = (store?, key_file?);
        let sync_level = u8::try_from(level).unwrap_or(100);
        let otp = Otp {
            store,
            key_file,
            answering,
            auth_socket,
            validators,
            sync_from,
            sync_level,
            sync_timeout,
            users,
            log_in,
        };
        (refused == 0 && listeners.is_some()).then_some(Some(otp))
    }
}
