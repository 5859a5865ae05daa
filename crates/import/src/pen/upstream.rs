//! How servers are connected to: from which address, and with which TCP keep-alive.

use std::net::{Ipv4Addr, SocketAddr};

use super::emitter::Emitter;
use super::model::is_on;
use crate::Effect;
use crate::document::{Section, quoted};
use crate::keys::{NewKey, State};

/// The kernel's own time (`net.ipv4.tcp_keepalive_time`), which Pen does not change.
const KEEPALIVE: &str = "2h";

/// Writes the keys of a pool with servers at these addresses.
pub(super) fn keys(emitter: &mut Emitter, section: &mut Section, addresses: &[String]) {
    source(emitter, section, addresses);
    if let Some(keepalive) = emitter.pen.keepalive.clone().filter(|_| !is_on(&emitter.pen.udp)) {
        let text = "the time of the kernel, which Pen leaves as it is";
        let comment = emitter.note(Effect::Same, &keepalive.place, text);
        section.put("tcp-keepalive", quoted(KEEPALIVE), &[comment]);
    }
}

fn source(emitter: &mut Emitter, section: &mut Section, addresses: &[String]) {
    let transparent = emitter.pen.transparent.clone().filter(|_| is_on(&emitter.pen.transparent));
    if let Some(source) = emitter.pen.source.clone() {
        if let Some(transparent) = transparent {
            emitter.note(Effect::Dropped, &transparent.place, "no effect beside `source` in Pen either");
        }
        if emitter.key(NewKey::SourceAddress, &source.place) == State::Awaited {
            return;
        }
        let is_ipv4 = source.value.parse::<Ipv4Addr>().is_ok();
        let other = addresses.iter().find(|address| match address.parse::<SocketAddr>() {
            Ok(address) => address.ip().to_canonical().is_ipv4() != is_ipv4,
            Err(_) => false,
        });
        match other {
            None => section.put("source-address", quoted(&source.value), &[]),
            Some(address) => {
                let text =
                    format!("{address} cannot be reached from an address of another family: it is left out");
                let comment = emitter.note(Effect::Missing, &source.place, &text);
                section.comment(comment);
            }
        }
        return;
    }
    let Some(transparent) = transparent else { return };
    match addresses.iter().find(|address| address.starts_with("unix:")) {
        None => {
            let text =
                "as in Pen, what servers answer must be routed back through this machine (docs/serve.md)";
            let comment = emitter.note(Effect::Same, &transparent.place, text);
            section.put("source-address", quoted("client"), &[comment]);
        }
        Some(address) => {
            let text = format!("a Unix socket has no addresses: with {address} the key is left out");
            let comment = emitter.note(Effect::Missing, &transparent.place, &text);
            section.comment(comment);
        }
    }
}
