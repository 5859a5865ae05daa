//! From the file's structs to a [`Config`]: every value gets its meaning here, or a fault.
//! Nothing stops at a fault: the rest is read all the same, so that all faults are said at once.
//! A `None` below means that the report already says why.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use logic::account::{Percent, Shares};
use logic::peers::{PeerSet, PeerSetEntry};
use logic::route::PoolId;

mod acme;
mod address;
mod backend_tls;
mod bind;
mod duration;
mod header;
mod hsts;
mod listener;
mod pool;
mod route;
mod size;
mod tls;
mod tunnel;

use acme::AcmeNames;

use crate::de::At;
use crate::error::{Draft, Report, quote};
use crate::nearest::nearest;
use crate::raw::{
    DurationText, Key, NetworkText, RawAccessLog, RawConfig, RawProcess, RawShares, Scalar, SizeText,
};
use crate::tree::{NodeId, Nodes};
use crate::types::{
    AccessLog, Admin, Config, Control, LogFormat, LogTarget, MaxConnections, Process, Workers,
};

/// The configuration, unless the report has errors.
pub(crate) fn parse(raw: &RawConfig, nodes: &Nodes, report: &mut Report) -> Option<Config> {
    let pools = PoolNames::new(raw);
    let acme = AcmeNames::new(raw);
    let mut parser = Parser { nodes, report, pools, acme, binds: Vec::new(), routes: 0 };
    let process = raw.process.as_ref().and_then(|process| parser.process(&process.value));
    parser.acme.keep_in(process.as_ref().and_then(|process| process.state_directory.as_deref()));
    let acme = parser.all_acme(raw);
    let access_log = raw.access_log.as_ref().and_then(|log| parser.access_log(&log.value));
    let control = parser.control(raw);
    let admin = raw.admin.as_ref().map(|admin| {
        let bind = admin.value.bind.as_ref()?;
        parser.admin(bind).map(|bind| Admin { bind })
    });
    let listeners = parser.listeners(raw);
    let pools = parser.all_pools(raw);
    let tunnels = parser.tunnels(raw);
    parser.collisions(raw, control.as_ref().and_then(Option::as_ref));
    if let (Some(listeners), Some(pools)) = (&listeners, &pools) {
        parser.loops(raw, listeners, pools);
        parser.keys_of_tcp(raw, listeners, pools);
        parser.preload_without_redirect(raw, listeners);
    }
    if !parser.report.has_errors() {
        parser.unused_pools();
    }
    if let (Some(sections), Some(listeners)) = (&acme, &listeners) {
        parser.useless_acme(raw, sections, listeners);
    }
    Some(Config {
        process: process?,
        access_log: access_log?,
        control: flatten(control)?,
        admin: flatten(admin)?,
        listeners: listeners?,
        pools: pools?,
        acme: acme?,
        tunnels: tunnels?,
    })
}

/// The control socket alone, unless the report has errors.
pub(crate) fn control(raw: &RawConfig, nodes: &Nodes, report: &mut Report) -> Option<Control> {
    let (pools, acme) = (PoolNames::new(raw), AcmeNames::new(raw));
    let mut parser = Parser { nodes, report, pools, acme, binds: Vec::new(), routes: 0 };
    parser.control(raw).flatten()
}

/// A duration that stands by itself.
pub(crate) fn duration_of(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|Refused { reason, instead, .. }| {
        let instead = instead.map_or_else(String::new, |instead| format!("; {instead}"));
        format!("{} {reason}{instead}", quote(text))
    })
}

/// Absent is fine, refused is not.
fn flatten<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(inner) => inner.map(Some),
    }
}

/// Why a text is refused, in words that do not repeat it: it may be a secret.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    /// Follows the text: `is no duration: the unit is missing`.
    reason: String,
    /// What to write instead, made from the text.
    instead: Option<String>,
    /// The same without the text, for one that must not be shown.
    in_general: Option<&'static str>,
}

impl Refused {
    fn new(reason: impl Into<String>) -> Self {
        Refused { reason: reason.into(), instead: None, in_general: None }
    }

    fn instead(mut self, instead: impl Into<String>) -> Self {
        self.instead = Some(instead.into());
        self
    }

    fn in_general(mut self, hint: &'static str) -> Self {
        self.in_general = Some(hint);
        self
    }
}

/// The pools that the file names, also those with faults.
struct PoolNames {
    ids: HashMap<String, (PoolId, NodeId)>,
    order: Vec<(String, NodeId)>,
    used: HashSet<PoolId>,
}

impl PoolNames {
    fn new(raw: &RawConfig) -> Self {
        let entries = raw.pool.as_ref().map(|pools| pools.value.0.as_slice()).unwrap_or_default();
        let order: Vec<_> = entries.iter().map(|(name, pool)| (name.clone(), pool.id)).collect();
        let ids =
            order.iter().enumerate().map(|(at, (name, id))| (name.clone(), (PoolId(at), *id))).collect();
        PoolNames { ids, order, used: HashSet::new() }
    }
}

struct Parser<'a> {
    nodes: &'a Nodes,
    report: &'a mut Report,
    pools: PoolNames,
    acme: AcmeNames,
    /// Every address that is bound, for collisions.
    binds: Vec<bind::Bound>,
    /// Routes so far, over all listeners.
    routes: usize,
}

impl Parser<'_> {
    fn process(&mut self, raw: &RawProcess) -> Option<Process> {
        let workers = raw.workers.as_ref().map(|workers| match &workers.value {
            Scalar::Integer(count) => {
                usize::try_from(*count).ok().and_then(NonZeroUsize::new).map_or(Workers::Auto, Workers::Count)
            }
            Scalar::Text(_) | Scalar::Switch(_) => Workers::Auto,
        });
        let max_connections = raw.max_connections.as_ref().map(|most| match &most.value {
            Scalar::Integer(most) => MaxConnections::Count(count(*most)),
            Scalar::Text(_) | Scalar::Switch(_) => MaxConnections::Auto,
        });
        let shares = raw.shares.as_ref().and_then(|shares| shares_of(&shares.value));
        let user = self.account(&raw.user);
        let group = self.account(&raw.group);
        let drain_timeout = self.time(&raw.drain_timeout, Zero::Allowed, duration::DAY);
        let state_directory = match &raw.state_directory {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        Some(Process {
            workers: workers?,
            user: user?,
            group: group?,
            drain_timeout: drain_timeout?,
            max_connections: max_connections?,
            shares: shares?.0,
            source_ipv6_prefix: shares?.1,
            state_directory: state_directory?,
        })
    }

    fn control(&mut self, raw: &RawConfig) -> Option<Option<Control>> {
        raw.control.as_ref().map(|control| {
            let socket = control.value.socket.as_ref()?;
            let socket = self.read(socket, address::unix_path)?;
            Some(Control { socket })
        })
    }

    /// Name of a user or group.
    fn account(&mut self, key: &Key<String>) -> Option<Option<String>> {
        let Some(name) = key else {
            return Some(None);
        };
        let text = &name.value;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.$".contains(&byte);
        if text.is_empty() || text.len() > 32 || text.starts_with('-') || !text.bytes().all(fits) {
            drop(self.refuse(name, "is no name of an account"));
            return None;
        }
        Some(Some(text.clone()))
    }

    fn access_log(&mut self, raw: &RawAccessLog) -> Option<AccessLog> {
        let target = raw.target.as_ref().and_then(|target| {
            Some(match target.value.as_ref() {
                "stdout" => LogTarget::Stdout,
                "stderr" => LogTarget::Stderr,
                "off" => LogTarget::Off,
                path if path.starts_with('/') => LogTarget::File(self.file(target)?),
                other => {
                    let near = nearest(other, ["stdout", "stderr", "off"]);
                    let draft =
                        self.refuse(target, "is not \"stdout\", \"stderr\", \"off\" or an absolute path");
                    drop(match near {
                        Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                        None => draft.hint("a file is named from the root: \"/var/log/penstock/access.log\""),
                    });
                    return None;
                }
            })
        });
        let format = raw.format.as_ref().map(|format| match format.value.as_str() {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        });
        Some(AccessLog { target: target?, format: format? })
    }

    /// An absolute path of a file or directory.
    fn file<T: AsRef<str>>(&mut self, path: &At<T>) -> Option<PathBuf> {
        self.read(path, address::absolute_path)
    }

    /// A set of peers that are believed.
    fn peers(&mut self, key: &Key<Vec<At<NetworkText>>>) -> Option<PeerSet> {
        let mut entries = Vec::new();
        let mut faults = 0;
        for entry in &key.as_ref()?.value {
            match entry.value.as_ref().parse::<PeerSetEntry>() {
                Ok(parsed) => {
                    if matches!(parsed, PeerSetEntry::Network(network) if network.prefix_len() == 0) {
                        let message = "this network is the whole internet: anybody is believed";
                        drop(self.report.at(self.nodes, entry.id, message).warning());
                    }
                    entries.push(parsed);
                }
                Err(error) => {
                    faults += 1;
                    drop(self.refuse_with(entry, &error));
                }
            }
        }
        (faults == 0).then(|| entries.into_iter().collect())
    }

    /// The pool of that name.
    fn pool_id(&mut self, name: &At<String>) -> Option<PoolId> {
        if let Some((id, _)) = self.pools.ids.get(&name.value) {
            self.pools.used.insert(*id);
            return Some(*id);
        }
        if self.nodes.is_broken(Nodes::ROOT, "pool") {
            // It may be in the section that was refused.
            return None;
        }
        let shown = self.nodes.show(name.id, &name.value);
        let near = nearest(&name.value, self.pools.order.iter().map(|(name, _)| name.as_str()));
        let near = near.and_then(|near| self.pools.ids.get_key_value(near));
        let hint = near.map(|(near, (_, id))| {
            format!("did you mean {}?{}", quote(near), self.report.whereabouts(self.nodes, *id))
        });
        let known: Vec<_> = self.pools.order.iter().take(8).map(|(name, _)| name.as_str()).collect();
        let known = match known.as_slice() {
            [] => "there is no [pool.NAME] section".to_owned(),
            known => format!("the pools are: {}", known.join(", ")),
        };
        let draft = self.report.at(self.nodes, name.id, format!("no pool named {shown}"));
        drop(match hint {
            Some(hint) => draft.hint_from_value(hint),
            None => draft.hint(known),
        });
        None
    }

    fn unused_pools(&mut self) {
        for (at, (_, id)) in self.pools.order.iter().enumerate() {
            if !self.pools.used.contains(&PoolId(at)) {
                drop(self.report.at_key(self.nodes, *id, "no listener uses this pool").warning());
            }
        }
    }

    /// Names of listeners and pools appear in logs, metrics and commands.
    fn name(&mut self, name: &str, id: NodeId) -> Option<()> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
            return Some(());
        }
        let message = format!("{} is no name: up to 64 of A-Z a-z 0-9 _ -", quote(name));
        drop(self.report.at_key(self.nodes, id, message));
        None
    }

    fn time(&mut self, key: &Key<DurationText>, zero: Zero, most: Duration) -> Option<Duration> {
        let key = key.as_ref()?;
        let time = self.read(key, duration::parse)?;
        if time.is_zero() && zero == Zero::Refused {
            drop(self.refuse(key, "leaves no time at all").hint("give at least \"1ms\""));
            return None;
        }
        if time > most {
            let hint = format!("at most {}", quote(&duration::write(most)));
            drop(self.refuse(key, "is absurdly long here").hint(hint));
            return None;
        }
        Some(time)
    }

    fn size(&mut self, key: &Key<SizeText>, least: u64, most: u64) -> Option<u64> {
        let key = key.as_ref()?;
        // Which unit zero has makes no difference.
        let is_zero = key.value.as_ref() == "0" && least > 0;
        let size = if is_zero { 0 } else { self.read(key, size::parse)? };
        if (least..=most).contains(&size) {
            return Some(size);
        }
        let (least, most) = (size::write(least), size::write(most));
        let draft = self.refuse(key, &format!("is out of range: from {least} to {most}"));
        drop(match size {
            0 => draft.hint(format!("write {} or more: zero does not mean \"no limit\" here", quote(&least))),
            _ => draft,
        });
        None
    }

    /// Reads a text, or says why not.
    fn read<T: AsRef<str>, V>(
        &mut self,
        at: &At<T>,
        read: impl FnOnce(&str) -> Result<V, Refused>,
    ) -> Option<V> {
        match read(at.value.as_ref()) {
            Ok(value) => Some(value),
            Err(Refused { reason, instead, in_general }) => {
                let mut draft = self.refuse(at, &reason);
                if let Some(hint) = in_general {
                    draft = draft.hint(hint);
                }
                if let Some(instead) = instead {
                    drop(draft.hint_from_value(instead));
                }
                None
            }
        }
    }

    /// A fault of a text: the text in quotes, or what stands for it, and the reason.
    fn refuse<T: AsRef<str>>(&mut self, at: &At<T>, reason: &str) -> Draft<'_> {
        let shown = self.nodes.show(at.id, at.value.as_ref());
        self.report.at(self.nodes, at.id, format!("{shown} {reason}"))
    }

    /// A fault in the words of `logic`, which may repeat the text.
    fn refuse_with<T: AsRef<str>>(&mut self, at: &At<T>, error: &dyn Display) -> Draft<'_> {
        if self.nodes.may_be_shown(at.id) {
            return self.report.at(self.nodes, at.id, error.to_string());
        }
        self.refuse(at, "stands for a value that is not valid here")
    }
}

/// Whether a time may be zero.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    Allowed,
    Refused,
}

/// The schema keeps the numbers in range.
fn shares_of(raw: &RawShares) -> Option<(Shares, u8)> {
    let number = |key: &Key<i64>| key.as_ref().and_then(|key| u8::try_from(key.value).ok());
    let percent = |key: &Key<i64>| number(key).and_then(Percent::new);
    let shares = Shares { connection: percent(&raw.connection)?, source: percent(&raw.source)? };
    Some((shares, number(&raw.ipv6_prefix)?))
}

/// A number that the schema keeps within 0 and what fits.
fn count(integer: i64) -> usize {
    usize::try_from(integer).unwrap_or(0)
}

/// The same, for smaller numbers.
fn small(integer: i64) -> u32 {
    u32::try_from(integer).unwrap_or(0)
}
